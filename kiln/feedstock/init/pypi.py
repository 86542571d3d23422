"""A recipe for a project on PyPI: facts of its metadata and its source, written by conda-forge's rules."""

from __future__ import annotations

import json
import re
import tempfile
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from packaging.markers import InvalidMarker, Marker
from packaging.specifiers import SpecifierSet
from packaging.utils import canonicalize_name

from kiln.base import patterns, process
from kiln.base.errors import DownloadFailed, UsageError
from kiln.base.yaml import ScalarInterpretation, parse_document
from kiln.conda.pypi import conda_name
from kiln.conda.specs import MatchSpec
from kiln.feedstock import sources
from kiln.feedstock.init.sdist import MINORS, SdistFacts, read_sdist_facts
from kiln.feedstock.sources import SourceSearch
from kiln.recipe.rendered import Source

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping


_SECONDS = 180.0
ADDRESS = "https://{}".format(".".join(("pypi", "org")))  # noqa: FLY002 - no file of the project names a registry
_LARGEST_ARCHIVE = 200_000_000  # bytes of a source archive that is read
_SHA256 = re.compile(r"[0-9a-f]{64}")
_MARKED = re.compile(r"^\s*# - (?P<spec>[^#]+?) # (?P<marker>(?!.*\bextra\b).+)$", re.MULTILINE)
_LOWER = re.compile(r">=?\s*(3\.\d+)")
BACKENDS = frozenset({
    "flit-core", "hatchling", "maturin", "meson-python", "pdm-backend", "poetry-core", "scikit-build-core",
    "setuptools", "uv-build",
})  # fmt: skip
PYTHON_MIN = "3.10"  # conda-forge-pinning's python_min in November 2026, for where no pinning can be read
_EXTRAS = re.compile(r"^([\w.-]+)\[[\w\s,.-]*\]")  # of pip's requirements, which conda's do not have
_PINNED_MIN = re.compile(r"^python_min:\s*\n\s*-\s*['\"]?(3\.\d+)", re.MULTILINE)
_PLATFORMS = {  # of markers, by the names of conditions in recipes
    "linux": {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix"},
    "osx": {"sys_platform": "darwin", "platform_system": "Darwin", "os_name": "posix"},
    "win": {"sys_platform": "win32", "platform_system": "Windows", "os_name": "nt"},
}
_LATER_FIX = 20  # a patch release for "python_full_version", later than those that bounds name
_FILE = "the recipe that py-rattler-build generated"


@dataclass(frozen=True, slots=True, kw_only=True)
class ConditionalRequirement:
    """A requirement of some Pythons or platforms: ``python`` is a bound such as ``<3.11``, both are empty for all.

    ``text`` is the requirement with its marker.
    """

    spec: str
    text: str
    python: str = ""
    platforms: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonProject:
    """The facts about a release on PyPI that its recipe is made of; requirements are conda's match specs.

    ``python_min`` is the oldest Python where it is not the pinning's, ``python_bounds`` are further bounds, such as
    ``<3.14``. ``languages`` are those of compilers, ``tools`` the programs of the build, ``tests`` the files and
    folders for pytest, ``programs`` entry points that a test calls.
    """

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
    python_bounds: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    tools: tuple[str, ...] = ()
    conditional: tuple[ConditionalRequirement, ...] = ()
    left_out: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    tests: tuple[str, ...] = ()
    test_requirements: tuple[str, ...] = ()
    notes: tuple[str, ...] = ()


def python_min_of_pinning(variant_file: Path | None) -> str:
    """Return the oldest Python of a pinning's ``noarch`` packages; conda-forge's of November 2026 without one."""
    text = variant_file.read_text(encoding="utf-8", errors="replace") if variant_file is not None else ""
    match = _PINNED_MIN.search(text)
    return match[1] if match else PYTHON_MIN


def fetch_project(
    name: str, version: str | None, *, python_min: str = PYTHON_MIN, own_tests: bool = True, env: Mapping[str, str]
) -> PythonProject:
    """Return the facts about a project's release, by default the newest; ``python_min`` is the pinning's.

    ``own_tests`` are those of the source archive, for pytest.

    Raises:
        DownloadFailed: PyPI has no such release, has no source archive of it, or cannot be reached.
        UsageError: the project's name is invalid.
    """
    if not re.fullmatch(r"[A-Za-z0-9](?:[A-Za-z0-9._-]*[A-Za-z0-9])?", name):
        project, _, pinned = name.partition("==")
        hint = f"kiln init {project} --pypi --version {pinned}" if pinned else ""
        why = "names are letters, digits, '.', '_' and '-'"
        raise UsageError(f"{name!r} cannot be a project on PyPI", why=why, hint=hint)
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
        asked=name,
        mapped=bool(answer["mapped"]),
        python_min=python_min,
        source_facts=lambda project: _fetch_source_facts(project, env, own_tests=own_tests),
    )


def _fetch_source_facts(project: PythonProject, env: Mapping[str, str], *, own_tests: bool = True) -> SdistFacts | None:
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
        facts = read_sdist_facts(sources.stored_source_path(located[0], Path(folder)))
        return facts if own_tests or facts is None else replace(facts, tests=(), test_requirements=())


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
    generated: str,
    *,
    mapped: bool,
    asked: str = "",
    python_min: str = PYTHON_MIN,
    source_facts: Callable[[PythonProject], SdistFacts | None] = lambda _: None,
) -> PythonProject:
    """Return the facts in a generated recipe; ``mapped`` says that its requirements have conda's names.

    Of names that are one to the index (``pydantic_core``, ``pydantic-core``), the one that was ``asked`` for is taken.
    ``source_facts`` reads the source archive, whose own metadata count more: the index has those of another file.
    """
    root = parse_document(generated, _FILE, ScalarInterpretation.TEXT).value
    name, version = str(root["package"]["name"]).lower(), str(root["context"]["version"])
    name = asked.lower() if canonicalize_name(asked) == canonicalize_name(name) else name
    for text, kind in ((name, "package name"), (version, "version")):
        if reason := patterns.invalid_name_reason(text, kind):
            raise DownloadFailed(f"{text!r} cannot be a {kind} of conda", why=reason)
    url, sha256 = _versioned_url_and_sha256_of_source(root["source"], name)
    build, needs, about = root["build"], root.get("requirements") or {}, root.get("about") or {}
    host, run = (tuple(_conda_specs(needs.get(kind) or (), mapped=mapped)) for kind in ("host", "run"))
    bound = next((spec.removeprefix("python ") for spec in run if _LOWER.match(spec.removeprefix("python "))), "")
    noarch, guess = build.get("noarch") == "python", name.replace("-", "_")
    imports = tuple(guess if text.lower() == guess else text for text in _tested_imports(root.get("tests") or ()))
    project = PythonProject(
        name=name,
        version=version,
        url=url,
        sha256=sha256,
        noarch=noarch,
        python_min="",
        host=_specs_without_python_and_pip(host),
        run=_specs_without_python_and_pip(run),
        imports=imports or (guess,),
        about={key: str(value) for key, value in about.items() if isinstance(value, str)},
        license_files=_list_or_single_as_texts(about.get("license_file")),
        entry_points=_list_or_single_as_texts((build.get("python") or {}).get("entry_points")) if noarch else (),
    )
    source = source_facts(project)
    project = _with_python_bounds(_with_sdist_facts(project, source), source.python if source else bound, python_min)
    project = _with_conditional_requirements(project, generated, mapped=mapped, python_min=python_min)
    return _with_placeholders(project, mapped=mapped, is_read=source is not None)


def _with_sdist_facts(project: PythonProject, source: SdistFacts | None) -> PythonProject:
    """Return a project with the facts of its source archive where the generator has none, or a guess."""
    if source is None:
        return replace(project, programs=_program_names(project.entry_points))
    has_backend = any(canonicalize_name(spec.split()[0]) in BACKENDS for spec in project.host)
    about = {**project.about, **source.urls, "summary": source.summary, "license": source.license}
    entry_points = project.entry_points or (source.programs if project.noarch else ())
    return replace(
        project,
        host=source.build if source.languages or not has_backend else project.host,
        imports=source.modules or project.imports,
        about={key: value or project.about.get(key, "") for key, value in about.items()},
        license_files=source.licenses or project.license_files,
        entry_points=entry_points,
        programs=_program_names(entry_points or source.programs),
        languages=() if project.noarch else source.languages,
        tools=() if project.noarch else source.tools,
        tests=source.tests,
        test_requirements=source.test_requirements,
    )


def _program_names(entry_points: Iterable[str]) -> tuple[str, ...]:
    names = (line.partition("=")[0].strip() for line in entry_points)
    return tuple(name for name in names if re.fullmatch(r"[\w.-]+", name, re.ASCII))


def _with_python_bounds(project: PythonProject, bound: str, python_min: str) -> PythonProject:
    """Return a project with the bounds of its Pythons in the parts that a recipe has."""
    allowed = SpecifierSet(bound, prereleases=True)
    oldest = next((minor for minor in MINORS if allowed.contains(f"3.{minor}.{_LATER_FIX}")), 0)
    bounds = tuple(
        f"{each.operator}{each.version}"
        for each in sorted(allowed, key=str)
        if each.operator in {"<", "<=", "!="} and each.version.startswith("3.")
    )
    below = not oldest or (3, oldest) <= _python_version_tuple(python_min)
    return replace(project, python_min="" if below else f"3.{oldest}", python_bounds=bounds)


def _with_conditional_requirements(
    project: PythonProject, generated: str, *, mapped: bool, python_min: str
) -> PythonProject:
    """Return a project with the requirements that have a marker, as far as its recipe can express them.

    A ``noarch`` package is one for all: it gets those of any of its Pythons, and those of Linux and macOS.
    """
    run, conditional, left_out, of_some, notes = list(project.run), [], [], [], []
    oldest = _python_version_tuple(project.python_min or python_min)[1]
    for match in _MARKED.finditer(generated):
        text = patterns.escaped_for_terminal(f"{match['spec']} ({match['marker']})")
        (spec,) = _conda_specs([match["spec"]], mapped=mapped)
        condition = _condition(match["marker"], oldest)
        if condition is None:
            left_out.append(text)
        elif condition == ("never", ()):
            continue
        elif condition == ("", ()):
            run.append(spec)
        elif not project.noarch:
            conditional.append(
                ConditionalRequirement(spec=spec, text=text, python=condition[0], platforms=condition[1])
            )
        elif condition[1] == ("win",):
            left_out.append(text)
        else:
            of_some.append((spec, text))
    for spec, text in of_some:
        name = spec.split()[0]
        if name in {each.split()[0] for each in run}:  # with other bounds, which may be those of other Pythons
            notes.append(f"a noarch package cannot require {text} for these alone: its bounds are left out")
            continue
        alone = sum(each.split()[0] == name for each, _ in of_some) == 1
        run.append(spec if alone else name)
        notes.append(f"a noarch package cannot require {text} for these alone: it requires it always")
    if project.noarch and left_out:
        notes.append(
            "a noarch package cannot require by platform: these are comments in the recipe, "
            f"and who uses the package there needs them: {', '.join(left_out)}"
        )
    elif left_out:
        notes.append(f"requirements with conditions are comments in the recipe: {', '.join(left_out)}")
    return replace(
        project,
        run=tuple(dict.fromkeys(run)),
        conditional=tuple(conditional),
        left_out=tuple(left_out),
        notes=tuple(notes),
    )


def _condition(text: str, oldest: int) -> tuple[str, tuple[str, ...]] | None:
    """Return the Pythons and platforms of a marker: a bound, and names; ``never`` for none, None for others."""
    minors = [minor for minor in MINORS if minor >= oldest]
    try:
        marker = Marker(text)
        true = {
            name: [minor for minor in minors if _applies(marker, minor, values)] for name, values in _PLATFORMS.items()
        }
    except (InvalidMarker, KeyError, ValueError):
        return None
    platforms = tuple(name for name, found in true.items() if found)
    if not platforms:
        return "never", ()
    found = true[platforms[0]]
    if any(true[name] != found for name in platforms):
        return None
    named = () if len(platforms) == len(_PLATFORMS) else platforms
    if found == minors:
        return "", named
    if found == minors[: len(found)]:
        return f"<3.{found[-1] + 1}", named
    return (f">=3.{found[0]}", named) if found == minors[-len(found) :] else None


def _applies(marker: Marker, minor: int, platform: Mapping[str, str]) -> bool:
    return marker.evaluate({
        "python_version": f"3.{minor}", "python_full_version": f"3.{minor}.{_LATER_FIX}", "extra": "",
        "implementation_name": "cpython", "platform_python_implementation": "CPython", "platform_machine": "x86_64",
        **platform,
    })  # fmt: skip


def _with_placeholders(project: PythonProject, *, mapped: bool, is_read: bool) -> PythonProject:
    """Return a project with stand-ins for the facts that the generator did not find, and a note about each."""
    notes, host, license_files = list(project.notes), project.host, project.license_files
    if not is_read and not any(canonicalize_name(spec.split()[0]) in BACKENDS for spec in host):
        host = (*host, "setuptools")
        notes.append(
            "the source could not be read: check requirements/host (setuptools stands there) and the entry "
            "points by upstream's pyproject.toml"
        )
    if not project.noarch:
        compilers = ", ".join(project.languages) or "c, as upstream has compiled wheels"
        tools = f" and {', '.join(project.tools)}" if project.tools else ""
        notes.append(
            f"compilers of the recipe: {compilers}{tools}; libraries of other packages that it links to are not known: "
            "put them into requirements/host"
        )
    if "rust" in project.languages:
        notes.append(
            "the licenses of all crates are collected by cargo-bundle-licenses, which a rehearsal takes from this "
            "machine: cargo install cargo-bundle-licenses"
        )
    tests = [f"{name} --help" for name in project.programs] + [f"pytest {name}" for name in project.tests[:1]]
    if tests:
        notes.append(
            f"tests: {', '.join(tests)}; remove those that need more than the package and its requirements"
            + ("; --no-tests leaves pytest's out" if project.tests else "")
        )
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
    for whole in map(str, values):
        value, _, marker = whole.partition(";")  # the generator leaves it in requirements of the build
        if marker and not _is_true_here(marker):
            continue
        value = _EXTRAS.sub(r"\1", value.strip())
        try:
            spec = MatchSpec.parse(value)
        except ValueError as error:
            raise DownloadFailed(f"{whole[:80]!r} is not a requirement", why=str(error)) from error
        version = value.partition("[")[0][len(spec.name) :].strip()
        version = re.sub(r"==(?=[\w.]+\.\*)", "", version)  # conda warns about == with a wildcard
        yield f"{spec.name if mapped else conda_name(spec.name)} {version}".strip()


def _is_true_here(marker: str) -> bool:
    try:
        return Marker(marker).evaluate({"extra": ""})
    except (InvalidMarker, KeyError, ValueError):
        return True


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
