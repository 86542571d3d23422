"""A recipe for a project on PyPI: facts of its metadata and its source, written by conda-forge's rules."""

from __future__ import annotations

import configparser
import contextlib
import json
import re
import sys
import tarfile
import tempfile
import zlib
from dataclasses import dataclass, replace
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from kiln.base import limits, patterns, process
from kiln.base.errors import DownloadFailed, UnsafeTemplate, UsageError
from kiln.base.serialization import mapping_or_empty
from kiln.base.yaml import ScalarInterpretation, parse_document
from kiln.conda.pypi import conda_name, conda_spec
from kiln.conda.specs import MatchSpec
from kiln.feedstock import sources
from kiln.feedstock.sources import SourceSearch
from kiln.recipe.rendered import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


_MOST_MEMBERS = 200_000
_LARGEST_FILE = 2_000_000  # bytes of a file that is read
_LICENSE = re.compile(r"(?:LICEN[CS]E|COPYING)(?:[.-][\w.-]+)?", re.IGNORECASE)
_MODULE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ENTRY = re.compile(r"[\w.-]+ = [\w.]+:[\w.]+")
_ASIDE = frozenset({"tests", "test", "testing", "docs", "doc", "examples", "example", "benchmarks", "scripts", "tools"})
_OWN = frozenset({"setup", "conftest", "noxfile", "tasks"})
_SETUPTOOLS = ("setuptools",)  # PEP 517: the backend of a project that names none


@dataclass(frozen=True, slots=True, kw_only=True)
class SdistFacts:
    """The facts of a source archive; ``build`` are conda's match specs, ``programs`` are entry points."""

    build: tuple[str, ...] = _SETUPTOOLS
    programs: tuple[str, ...] = ()
    licenses: tuple[str, ...] = ()
    modules: tuple[str, ...] = ()


def read_sdist_facts(archive: Path) -> SdistFacts | None:
    """Return the facts of a ``.tar.gz``; None for another, a damaged, or one beyond the limits of time and memory."""
    try:
        return limits.run_bounded(lambda: _read_sdist_facts_unbounded(archive))
    except UnsafeTemplate:
        return None


def _read_sdist_facts_unbounded(archive: Path) -> SdistFacts | None:
    paths, texts = [], {}
    try:
        with tarfile.open(archive, "r:gz") as tar:
            for number, member in enumerate(tar):
                if number >= _MOST_MEMBERS:
                    return None
                name = PurePosixPath(member.name)
                if not member.isfile() or name.is_absolute() or ".." in name.parts or len(name.parts) < 2:
                    continue
                path = PurePosixPath(*name.parts[1:])
                paths.append(path)
                file = tar.extractfile(member) if str(path) in {"pyproject.toml", "setup.cfg"} else None
                if file is not None:
                    texts[str(path)] = file.read(_LARGEST_FILE).decode(errors="replace")
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error):  # the last two by damaged headers and data
        return None
    project = _parse_toml_or_empty(texts.get("pyproject.toml", ""))
    return SdistFacts(
        build=tuple(_build_requirements(project)) or _SETUPTOOLS,
        programs=tuple(_entry_points(project, texts.get("setup.cfg", ""))),
        licenses=tuple(sorted(str(path) for path in paths if len(path.parts) == 1 and _LICENSE.fullmatch(path.name))),
        modules=tuple(sorted(_importable_modules(paths))),
    )


def _parse_toml_or_empty(text: str) -> dict[str, Any]:
    library = import_module("tomllib" if sys.version_info >= (3, 11) else "pip._vendor.tomli")
    try:
        value: dict[str, Any] = library.loads(text)
    except (ValueError, RecursionError):
        return {}
    return value


def _nested_table(value: Any, *keys: str) -> Mapping[str, Any]:
    for key in keys:
        value = value.get(key) if isinstance(value, dict) else None
    return mapping_or_empty(value)


def _build_requirements(project: Mapping[str, Any]) -> list[str]:
    requirements, specs = _nested_table(project, "build-system").get("requires"), []
    for text in requirements if isinstance(requirements, list) else ():
        with contextlib.suppress(ValueError, KeyError):  # an invalid requirement, marker, name in a marker, or version
            requirement = Requirement(str(text))
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": ""})
            if applies and requirement.url is None and requirement.name != "wheel":
                specs.append(conda_spec(requirement))
    return specs


def _entry_points(project: Mapping[str, Any], setup: str) -> Iterator[str]:
    scripts = {**_nested_table(project, "project", "scripts"), **_nested_table(project, "project", "gui-scripts")}
    lines = [f"{name} = {target}" for name, target in scripts.items()] or _setup_cfg_entry_points(setup)
    yield from (line for line in lines if _ENTRY.fullmatch(line))


def _setup_cfg_entry_points(text: str) -> list[str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error:
        return []
    value = parser.get("options.entry_points", "console_scripts", fallback="")
    return [" = ".join(part.strip() for part in line.split("=", 1)) for line in value.splitlines() if line.strip()]


def _importable_modules(paths: Iterable[PurePosixPath]) -> set[str]:
    """Return the names that a package can be imported by: those in ``src``, else those at the top."""
    modules: dict[bool, set[str]] = {True: set(), False: set()}
    for path in paths:
        in_src = path.parts[0] == "src"
        parts = path.parts[1:] if in_src else path.parts
        if len(parts) == 2 and parts[1] == "__init__.py":
            modules[in_src].add(parts[0])
        elif len(parts) == 1 and parts[0].endswith(".py"):
            modules[in_src].add(parts[0].removesuffix(".py"))
    candidates = modules[True] or modules[False]
    return {name for name in candidates if _MODULE.fullmatch(name)} - _ASIDE - _OWN


_SECONDS = 180.0
ADDRESS = "https://{}".format(".".join(("pypi", "org")))  # noqa: FLY002 - no file of the project names a registry
_LARGEST_ARCHIVE = 200_000_000  # bytes of a source archive that is read
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MARKED = re.compile(r"^\s*# - (?P<spec>[^#]+?) # (?P<marker>.+)$", re.MULTILINE)
_LOWER = re.compile(r">=?\s*(3\.\d+)")
BACKENDS = frozenset({
    "flit-core", "hatchling", "maturin", "meson-python", "pdm-backend", "poetry-core", "scikit-build-core",
    "setuptools", "uv-build",
})  # fmt: skip
GLOBAL_PYTHON_MIN = (3, 10)  # conda-forge-pinning's python_min in November 2026
_FILE = "the recipe that py-rattler-build generated"


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonProject:
    """The facts about a release on PyPI that its recipe is made of; requirements are conda's match specs."""

    name: str
    version: str
    url: str
    sha256: str
    noarch: bool
    python_min: str
    host: tuple[str, ...]
    run: tuple[str, ...]
    imports: tuple[str, ...]
    about: Mapping[str, str]
    license_files: tuple[str, ...] = ()
    entry_points: tuple[str, ...] = ()
    left_out: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def fetch_project(name: str, version: str | None, *, env: Mapping[str, str]) -> PythonProject:
    """Return the facts about a project's release, by default the newest.

    Raises:
        DownloadFailed: PyPI has no such release, has no source archive of it, or cannot be reached.
        UsageError: the project's name is invalid.
    """
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        raise UsageError(f"{name!r} cannot be a project on PyPI", why="names are letters, digits, '.', '_' and '-'")
    words = process.Program.GENERATOR.script_command(name, *([version] if version else []))
    result = process.capture(words, env=env, timeout=_SECONDS)
    try:
        answer = json.loads(result.stdout)
    except ValueError:
        why = "\n       ".join(result.tail.splitlines()[-3:]) or f"no answer in {_SECONDS:.0f} s"
        raise DownloadFailed(f"no recipe could be generated for {name}", why=why) from None
    if "error" in answer:
        raise _generator_error(name, version, str(answer["error"]))
    return project_from_generated_recipe(
        str(answer["recipe"]),
        mapped=bool(answer["mapped"]),
        source_facts=lambda project: _fetch_source_facts(project, env),
    )


def _fetch_source_facts(project: PythonProject, env: Mapping[str, str]) -> SdistFacts | None:
    """Return the facts in a project's source archive, which is fetched by its hash; None where it cannot be had."""
    with tempfile.TemporaryDirectory(prefix="kiln-init-") as folder:
        source = Source(url=(project.url.replace("{version}", project.version),), sha256=project.sha256)
        search = SourceSearch(store=Path(folder), folder=None, mirror=None, projects=(project.name,), env=env)
        located, _ = search.locate_sources([source])
        if not located or located[0].size > _LARGEST_ARCHIVE:
            return None
        try:
            sources.fetch_sources(located, Path(folder), env=env, on_line=lambda _: None)
        except DownloadFailed:
            return None
        return read_sdist_facts(sources.stored_source_path(located[0], Path(folder)))


def _generator_error(name: str, version: str | None, text: str) -> DownloadFailed:
    requirement = f"{name} {version}" if version else name
    if "404" in text:
        hint = f"check the name and the version: {ADDRESS}/project/{name}/"
        return DownloadFailed(f"PyPI has no {requirement}", why=" ".join(text.split()), hint=hint)
    if "No source distribution" in text:
        hint = f"kiln init {canonicalize_name(name)}, and name the repository's archive of the release as the source"
        return DownloadFailed(f"PyPI has no source archive of {requirement}", why="it has wheels alone", hint=hint)
    hint = "check the network and the proxy (HTTPS_PROXY)"
    return DownloadFailed(f"no recipe could be generated for {requirement}", why=" ".join(text.split()), hint=hint)


def project_from_generated_recipe(
    generated: str, *, mapped: bool, source_facts: Callable[[PythonProject], SdistFacts | None] = lambda _: None
) -> PythonProject:
    """Return the facts in a generated recipe; ``mapped`` says that its requirements have conda's names.

    ``source_facts`` reads the source archive for facts that the generator leaves out.
    """
    root = parse_document(generated, _FILE, ScalarInterpretation.TEXT).value
    name, version = str(root["package"]["name"]).lower(), str(root["context"]["version"])
    for text, kind in ((name, "package name"), (version, "version")):
        if reason := patterns.invalid_name_reason(text, kind):
            raise DownloadFailed(f"{text!r} cannot be a {kind} of conda", why=reason)
    url, sha256 = _versioned_url_and_sha256_of_source(root["source"], name)
    build, needs, about = root["build"], root.get("requirements") or {}, root.get("about") or {}
    host, run = (tuple(_conda_specs(needs.get(kind) or (), mapped=mapped)) for kind in ("host", "run"))
    minimum = next((match[1] for spec in run if (match := _LOWER.match(spec.removeprefix("python ")))), "")
    noarch, guess = build.get("noarch") == "python", name.replace("-", "_")
    imports = tuple(guess if text.lower() == guess else text for text in _tested_imports(root.get("tests") or ()))
    project = PythonProject(
        name=name,
        version=version,
        url=url,
        sha256=sha256,
        noarch=noarch,
        python_min=minimum if _python_version_tuple(minimum) > GLOBAL_PYTHON_MIN else "",
        host=_specs_without_python_and_pip(host),
        run=_specs_without_python_and_pip(run),
        imports=imports or (guess,),
        about={key: str(value) for key, value in about.items() if isinstance(value, str)},
        license_files=_list_or_single_as_texts(about.get("license_file")),
        entry_points=_list_or_single_as_texts((build.get("python") or {}).get("entry_points")) if noarch else (),
        left_out=tuple(_conditional_requirements(generated)),
    )
    source = source_facts(project)
    return _with_placeholders(_with_sdist_facts(project, source), mapped=mapped, is_read=source is not None)


def _with_sdist_facts(project: PythonProject, source: SdistFacts | None) -> PythonProject:
    """Return a project with the facts of its source archive where the generator has none, or a wrong guess."""
    if source is None:
        return project
    has_backend = any(canonicalize_name(spec.split()[0]) in BACKENDS for spec in project.host)
    known = len(source.modules) == 1 and not set(project.imports) & set(source.modules)
    return replace(
        project,
        host=project.host if has_backend else source.build,
        imports=source.modules if known else project.imports,
        license_files=project.license_files or source.licenses,
        entry_points=project.entry_points or (source.programs if project.noarch else ()),
    )


def _with_placeholders(project: PythonProject, *, mapped: bool, is_read: bool) -> PythonProject:
    """Return a project with stand-ins for the facts that the generator did not find, and a note about each."""
    notes, host, license_files = [], project.host, project.license_files
    if not is_read and not any(canonicalize_name(spec.split()[0]) in BACKENDS for spec in host):
        host = (*host, "setuptools")
        notes.append(
            "the source could not be read: check requirements/host (setuptools stands there) and the entry "
            "points by upstream's pyproject.toml"
        )
    if project.left_out:
        notes.append("requirements with conditions are comments in the recipe: " + ", ".join(project.left_out))
    if not project.noarch:
        notes.append("upstream has compiled wheels: the recipe has a C compiler; check which ones it needs, or noarch")
    if not project.about.get("license"):
        notes.append("PyPI names no license: write its SPDX identifier over LicenseRef-unknown in about/license")
    if not license_files:
        license_files = ("LICENSE",)
        notes.append("the name of the license's file is unknown: LICENSE stands in about/license_file")
    if not mapped:
        notes.append("conda's table of names could not be read: check that the requirements have conda's names")
    return replace(project, host=("pip", *host), license_files=license_files, notes=tuple(notes))


def _specs_without_python_and_pip(specs: Iterable[str]) -> tuple[str, ...]:
    return tuple(spec for spec in specs if spec.split()[0] not in {"python", "pip"})


def _python_version_tuple(python: str) -> tuple[int, ...]:
    return tuple(int(part) for part in python.split(".")) if python else ()


def _list_or_single_as_texts(value: Any) -> tuple[str, ...]:
    return tuple(map(str, value)) if isinstance(value, list) else (str(value),) if value else ()


def _conda_specs(values: Iterable[Any], *, mapped: bool) -> Iterator[str]:
    """Yield valid match specs, with a space after the name."""
    for value in values:
        try:
            spec = MatchSpec.parse(str(value))
        except ValueError as error:
            raise DownloadFailed(f"{str(value)[:80]!r} is not a requirement", why=str(error)) from error
        version = str(value).strip().partition("[")[0][len(spec.name) :].strip()
        version = re.sub(r"==(?=[\w.]+\.\*)", "", version)  # conda warns about == with a wildcard
        yield f"{spec.name if mapped else conda_name(spec.name)} {version}".strip()


def _conditional_requirements(generated: str) -> Iterator[str]:
    """Yield the requirements that the generator left out because of a condition, but those of extras."""
    for match in _MARKED.finditer(generated):
        if "extra" not in match["marker"]:
            yield patterns.escaped_for_terminal(f"{match['spec']} ({match['marker']})")


def _versioned_url_and_sha256_of_source(value: Any, name: str) -> tuple[str, str]:
    """Return the address of the source and its SHA-256.

    The address is that by project and version, ``{version}`` in it, which `kiln bump` can change.
    """
    source = value[0] if isinstance(value, list) else value
    path = urlsplit(str(source["url"]).replace("${{ version }}", "{version}")).path
    file, sha256 = unquote(path).rpartition("/")[2], str(source.get("sha256", ""))
    if not re.fullmatch(r"(?:[\w.+-]|\{version\})+", file) or "{version}" not in file:
        raise DownloadFailed(f"the source of {name} has no version in its name", why=file)
    if not _SHA256.fullmatch(sha256):
        raise DownloadFailed(f"PyPI gives no SHA-256 of the source of {name}", why=f"sha256 is {sha256!r}")
    return f"{ADDRESS}/packages/source/{name[0]}/{name}/{file}", sha256


def _tested_imports(tests: Iterable[Any]) -> Iterator[str]:
    for test in tests:
        if isinstance(test, dict) and isinstance(test.get("python"), dict):
            yield from (
                text
                for text in _list_or_single_as_texts(test["python"].get("imports"))
                if re.fullmatch(r"[\w.]+", text)
            )
