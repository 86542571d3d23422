"""The parts of a rendered cell, from a package's metadata."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import RecipeFault
from kiln.model.rendered import Output, Requirements, Script, Source, Tests
from kiln.recipe.specs import sections, with_versions
from kiln.variants.files import as_list

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from typing import Any

    from kiln.model.rendered import Pin
    from kiln.recipe.metadata import Metadata

_TESTED = ("imports", "commands", "requires", "files", "source_files")


def texts(value: Any) -> tuple[str, ...]:
    """A value's items as texts, without empty ones."""
    return tuple(str(item) for item in as_list(value) if item is not None)


def mapping(package: Metadata, section: str) -> Mapping[str, Any]:
    """A section that must be a mapping.

    Raises:
        RecipeFault: it is none.
    """
    value = package.values.get(section) or {}
    if not isinstance(value, dict):
        what = f"{package.name}: the section {section!r} is no mapping"
        raise RecipeFault(what, at=package.recipe.place("outputs" if package.is_output else section))
    return value


def requirements(given: Mapping[str, list[str]]) -> Requirements:
    """The four sections that packages have."""
    return Requirements(
        build=tuple(given.get("build", ())),
        host=tuple(given.get("host", ())),
        run=tuple(given.get("run", ())),
        run_constrained=tuple(given.get("run_constrained", ())),
    )


def output(package: Metadata, *, variant: Mapping[str, str], pins: tuple[tuple[str, int, Pin], ...]) -> Output:
    """The output that a package is."""
    exports = package.value("build", "run_exports")
    return Output(
        name=package.name,
        version=package.version,
        build_number=package.build_number,
        build_string=package.build_string,
        subdir="noarch" if package.noarch or package.noarch_python else package.host_subdir,
        noarch=str(package.noarch) if package.noarch else "python" if package.noarch_python else None,
        requirements=requirements(package.requirements),
        track_features=texts(package.value("build", "track_features")),
        run_exports=run_exports(exports),
        run_exports_bare=not isinstance(exports, dict),
        tests=tests(package),
        script=script(package),
        entry_points=texts(package.value("build", "entry_points")),
        files=texts(_entry(package).get("files")),
        about={str(key): about(value) for key, value in mapping(package, "about").items() if value is not None},
        used={key: str(value) for key, value in package.hashed.items()},
        skip=package.skip,
        platform=package.host_subdir,
        pins=pins,
        variant=variant,
        script_env=texts(package.value("build", "script_env")),
        binary_relocation=relocation(package.value("build", "binary_relocation")),
        detect_binary_files_with_prefix=_yes(package.value("build", "detect_binary_files_with_prefix")),
    )


def relocation(given: Any) -> bool | tuple[str, ...]:
    """``binary_relocation``: all binaries unless told otherwise, none, or those that globs match."""
    return texts(given) if isinstance(given, list) else _yes(given)


def _yes(given: Any) -> bool:
    return given is None or str(given).lower() not in {"false", "no", "off", "0"}


def run_exports(given: Any) -> dict[str, tuple[str, ...]]:
    """Run exports by kind; a bare list is ``weak``. A kind whose lines are all selected away stays, with nothing."""
    if isinstance(given, dict):
        return {str(kind): texts(specs) for kind, specs in given.items()}
    return {"weak": texts(given)} if texts(given) else {}


def tests(package: Metadata) -> Tests:
    """The ``test`` section."""
    given = mapping(package, "test")
    imports, commands, requires, files, source_files = (texts(given.get(key)) for key in _TESTED)
    return Tests(imports=imports, commands=commands, requires=requires, files=files, source_files=source_files)


def about(value: Any) -> str | tuple[str, ...]:
    """A value of the ``about`` section."""
    return texts(value) if isinstance(value, list) else str(value)


def _entry(package: Metadata) -> Mapping[str, Any]:
    entries: Sequence[Mapping[str, Any]] = package.recipe.outputs_of(package.values)
    return next((entry for entry in entries if entry.get("name") == package.name), {})


def script(package: Metadata) -> Script:
    """How a package's files are made after the recipe's own build step, which a single package has alone."""
    named = _entry(package).get("script")
    if isinstance(named, str) and named:
        return Script(file=named)
    lines = texts(named) or texts(package.value("build", "script"))
    if lines:
        return Script(lines=lines)
    return Script() if package.recipe.outputs_of(package.values)[1:] or package.is_output else _default(package)


def _default(package: Metadata) -> Script:
    name = "bld.bat" if package.recipe.platform.system == "win" else "build.sh"
    return Script(file=name) if (package.recipe.source.path.parent / name).is_file() else Script()


def compile_step(top: Metadata) -> tuple[Script, Requirements]:
    """The recipe's own build step and its requirements; none for a recipe that is a single package."""
    if not top.recipe.outputs_of(top.values):
        return Script(), Requirements()
    lines = texts(top.value("build", "script"))
    needs = with_versions(sections(top.values.get("requirements") or {}), top.variant)
    return (Script(lines=lines) if lines else _default(top)), requirements(needs)


def sources(top: Metadata) -> tuple[Source, ...]:
    """The entries of the ``source`` section."""
    given = top.values.get("source") or []
    entries = [given] if isinstance(given, dict) else list(given)
    return tuple(_source(entry) for entry in entries if entry)


def _source(entry: Mapping[str, Any]) -> Source:
    revision = next((entry[key] for key in ("git_rev", "git_tag", "git_branch") if entry.get(key)), None)

    def text(key: str) -> str | None:
        return None if entry.get(key) is None else str(entry[key])

    return Source(
        url=texts(entry.get("url")),
        sha256=text("sha256"),
        git_url=text("git_url"),
        git_rev=None if revision is None else str(revision),
        path=text("path"),
        folder=text("folder"),
        patches=texts(entry.get("patches")),
    )
