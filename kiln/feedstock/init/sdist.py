"""The facts of a source archive of Python's: metadata, build backend, languages, modules, programs, licenses and tests.

Nothing of the archive runs, and an archive beyond the limits of time and memory has no facts.
"""

from __future__ import annotations

import configparser
import contextlib
import re
import tarfile
import zlib
from collections import Counter
from dataclasses import dataclass, field
from functools import cache
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from packaging.licenses import InvalidLicenseExpression, canonicalize_license_expression
from packaging.metadata import RawMetadata, parse_email
from packaging.requirements import InvalidRequirement, Requirement
from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from kiln.base import files, limits
from kiln.base.errors import UnsafeTemplate
from kiln.base.serialization import list_or_empty, mapping_or_empty, nested_value, toml_or_empty
from kiln.conda.pypi import conda_spec

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MOST_MEMBERS = 200_000
_LARGEST_FILE = 2_000_000  # bytes of a file that is read
_READ = frozenset({
    "PKG-INFO", "pyproject.toml", "setup.cfg", "setup.py", "meson.build", "CMakeLists.txt", "Cargo.toml",
})  # fmt: skip
_IN_EGG_INFO = frozenset({"top_level.txt", "entry_points.txt"})
_BSD = "License :: OSI Approved :: BSD License"
_LICENSE = re.compile(r"(?:LICEN[CS]E|COPYING)(?:[.-][\w.-]+)?", re.IGNORECASE)
_MODULE = re.compile(r"[A-Za-z_]\w*", re.ASCII)
_ENTRY = re.compile(r"[\w.-]+ = [\w.]+:[\w.]+")
_ASIDE = frozenset({
    "tests", "test", "testing", "docs", "doc", "examples", "example", "benchmarks", "benchmark", "scripts", "tools",
    "packaging", "ci", "bench", "samples", "demo", "demos",
})  # fmt: skip
_OWN = frozenset({"setup", "conftest", "noxfile", "tasks", "versioneer", "build", "dodo", "fabfile"})
_SOURCE_FOLDERS = ("src", "lib", "python", "")  # where packages of modules are looked for, in this order
_SETUPTOOLS = ("setuptools",)  # PEP 517: the backend of a project that names none
_LANGUAGES = {
    ".c": "c", ".pyx": "c", ".cpp": "cxx", ".cc": "cxx", ".cxx": "cxx", ".f": "fortran", ".f90": "fortran",
    ".for": "fortran", ".cu": "cuda", ".rs": "rust",
}  # fmt: skip
_ORDER = ("c", "cxx", "fortran", "cuda", "rust")  # of languages, as they are written
_TOOLS = frozenset({"cmake", "ninja", "meson", "swig", "patchelf", "pkgconfig", "pkg-config", "make"})
_EXTENSIONS = re.compile(r"\bext_modules\b|\bExtension\(|\bcffi_modules\b|\brust_extensions\b|\bcythonize\(")
_MESON_PROJECT = re.compile(
    r"\bproject\(\s*'[^']*'\s*,(?P<rest>(?:\s*\[?\s*'[a-z]+'\s*\]?\s*,)*\s*\[?\s*'[a-z]+'\s*\]?)"
)
_MESON_MORE = re.compile(r"\badd_languages\(\s*'(?P<rest>[a-z]+)'")
_MESON_DEPENDENCY = re.compile(r"\bdependency\(\s*'(?P<name>[\w.+-]+)'")
_CMAKE_PROJECT = re.compile(r"\bproject\s*\((?P<rest>[^)]*)\)", re.IGNORECASE)
_CMAKE_MORE = re.compile(r"\benable_language\s*\(\s*(?P<rest>\w+)", re.IGNORECASE)
_NAMES = {"cython": "c", "cpp": "cxx"}  # languages of Meson's and CMake's, in lower case
_OF_PYTHON = frozenset({"python", "python3", "numpy", "pybind11", "threads", "openmp", "nanobind", "mpi"})
_LABELS = {
    "homepage": ("homepage", "home"),
    "repository": ("repository", "source", "sourcecode", "code", "github", "sources", "git"),
    "documentation": ("documentation", "docs", "doc", "apidocs"),
}
_FORGE = re.compile(r"https?://(?:github\.com|gitlab\.com|codeberg\.org|bitbucket\.org)/[\w.-]+/[\w.-]+")
_TEST_GROUPS = ("test", "tests", "testing")
_TEST_FILE = re.compile(r"test_\w+\.py|\w+_test\.py")
_TEST_SETTINGS = ("pyproject.toml", "pytest.ini", "tox.ini", "setup.cfg", "conftest.py")
MINORS = tuple(range(6, 20))  # of Python 3, in which bounds are looked for


@dataclass(frozen=True, slots=True, kw_only=True)
class SdistFacts:
    """The facts of a source archive.

    ``build`` and ``test_requirements`` are conda's match specs, ``tools`` programs of the build, ``programs`` entry
    points on a console, ``python`` is the metadata's bound, ``urls`` are by the keys of a recipe's about, ``tests`` are
    the files and folders that pytest needs.
    """

    build: tuple[str, ...] = _SETUPTOOLS
    tools: tuple[str, ...] = ()
    languages: tuple[str, ...] = ()
    programs: tuple[str, ...] = ()
    licenses: tuple[str, ...] = ()
    license: str = ""
    modules: tuple[str, ...] = ()
    python: str = ""
    summary: str = ""
    urls: Mapping[str, str] = field(default_factory=dict)
    tests: tuple[str, ...] = ()
    test_requirements: tuple[str, ...] = ()


def read_sdist_facts(archive: Path) -> SdistFacts | None:
    """Return the facts of a ``.tar.gz``; None for another, a damaged, or one beyond the limits of time and memory."""
    try:
        return limits.run_bounded(lambda: _read_sdist_facts_unbounded(archive))
    except UnsafeTemplate:
        return None


def _read_sdist_facts_unbounded(archive: Path) -> SdistFacts | None:
    paths: list[PurePosixPath] = []
    texts: dict[str, str] = {}
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
                top, in_egg_info = len(path.parts) == 1, len(path.parts) > 1 and path.parts[-2].endswith(".egg-info")
                wanted = path.name in (_READ if top else _IN_EGG_INFO if in_egg_info else ())
                file = tar.extractfile(member) if wanted or (top and _LICENSE.fullmatch(path.name)) else None
                if file is not None:
                    texts[path.name] = file.read(_LARGEST_FILE).decode(errors="replace")
    except (tarfile.TarError, OSError, EOFError, ValueError, zlib.error):  # the last two by damaged headers and data
        return None
    return _Source(paths, texts).facts()


class _Source:
    """The paths of an archive below its folder, and the texts of those of its files that say how it is built."""

    def __init__(self, paths: list[PurePosixPath], texts: Mapping[str, str]) -> None:
        self.paths, self.texts = paths, texts
        self.project = toml_or_empty(texts.get("pyproject.toml", ""))
        self.metadata: RawMetadata = {}
        with contextlib.suppress(ValueError, UnicodeError):
            self.metadata, _ = parse_email(texts.get("PKG-INFO", ""))
        self.requires = [str(text) for text in list_or_empty(nested_value(self.project, "build-system", "requires"))]

    def facts(self) -> SdistFacts:
        specs = list(dict.fromkeys(_conda_specs(self.requires))) or list(_SETUPTOOLS)
        names: set[str] = {canonicalize_name(spec.split()[0]) for spec in specs}
        languages = self._languages(names)
        tests, requirements = self._tests()
        return SdistFacts(
            build=tuple(spec for spec in specs if spec.split()[0] not in _TOOLS),
            tools=tuple(sorted({*self._tools(names), *(name for name in names if name in _TOOLS)})),
            languages=tuple(language for language in _ORDER if language in languages),
            programs=tuple(self._programs()),
            licenses=self._licenses(),
            license=self._license(),
            modules=self._modules(),
            python=_valid_bound(
                self.metadata.get("requires_python") or nested_value(self.project, "project", "requires-python")
            ),
            summary=self.metadata.get("summary", ""),
            urls=self._urls(),
            tests=tests,
            test_requirements=requirements,
        )

    def _languages(self, names: set[str]) -> set[str]:
        """Return the languages that are compiled; empty for a project of Python alone."""
        found: set[str] = set()
        if names & {"maturin", "setuptools-rust"}:
            found |= {"c", "rust"}  # rustc links by the C compiler
        if "meson-python" in names:
            text = self.texts.get("meson.build", "")
            for match in (*_MESON_PROJECT.finditer(text), *_MESON_MORE.finditer(text)):
                found |= {_NAMES.get(word, word) for word in re.findall(r"[a-z]+", match["rest"])}
        if names & {"scikit-build-core", "scikit-build", "cmake", "py-build-cmake"} or "CMakeLists.txt" in self.texts:
            text = re.sub(r"#.*", "", self.texts.get("CMakeLists.txt", ""))
            for match in _CMAKE_PROJECT.finditer(text):
                words = re.findall(r"\w+", match["rest"].lower())[1:]
                known = {_NAMES.get(word, word) for word in words} & set(_ORDER)
                found |= known or ({"c", "cxx"} if "none" not in words and names & {"scikit-build-core"} else set())
            found |= {_NAMES.get(m["rest"].lower(), m["rest"].lower()) for m in _CMAKE_MORE.finditer(text)}
        setuptools = _table(self.project, "tool", "setuptools")
        if _EXTENSIONS.search(self.texts.get("setup.py", "")) or "ext-modules" in setuptools:
            kinds = Counter(
                _LANGUAGES[path.suffix.lower()]
                for path in self.paths
                if path.suffix.lower() in _LANGUAGES and not _ASIDE & set(path.parts[:-1])
            )
            found |= set(kinds) - {"rust"} or (set() if found else {"c"})
        return found & set(_ORDER)

    def _tools(self, names: set[str]) -> set[str]:
        """Return the programs that the backend calls, which its own requirements do not name."""
        tools: set[str] = set()
        if re.search(r"['\"]cmake['\"]", self.texts.get("setup.py", "")):
            tools |= {"cmake", "make"}
        if names & {"scikit-build-core", "scikit-build", "py-build-cmake"}:
            tools |= {"cmake", "ninja"}
        if "meson-python" in names:
            tools.add("ninja")
            asked = {match["name"] for match in _MESON_DEPENDENCY.finditer(self.texts.get("meson.build", ""))}
            tools |= {"pkg-config"} if asked - _OF_PYTHON else set()
        return tools

    def _programs(self) -> Iterator[str]:
        """Yield the entry points on a console, as ``NAME = MODULE:FUNCTION``."""
        declared = _table(self.project, "project", "scripts") or _table(self.project, "tool", "poetry", "scripts")
        lines = [f"{name} = {target}" for name, target in declared.items() if isinstance(target, str)]
        lines = lines or _ini_list(self.texts.get("setup.cfg", ""), "options.entry_points", "console_scripts")
        lines = lines or _ini_list(_as_list(self.texts.get("entry_points.txt", ""), "console_scripts"), "x", "y")
        yield from (line for line in dict.fromkeys(lines) if _ENTRY.fullmatch(line))

    def _licenses(self) -> tuple[str, ...]:
        """Return the files with licenses: those that the metadata names, and those at the top with such a name."""
        there = {str(path) for path in self.paths}
        named = [name for name in self.metadata.get("license_files", ()) if name in there]
        top = sorted(str(path) for path in self.paths if len(path.parts) == 1 and _LICENSE.fullmatch(path.name))
        folder = sorted(str(path) for path in self.paths if len(path.parts) == 2 and path.parts[0] == "LICENSES")
        licenses = [name for name in named if not re.match(r"AUTHORS|CONTRIBUTORS", name)]
        return tuple(licenses or (*top, *folder))

    def _license(self) -> str:
        """Return the license as the metadata name it: an SPDX expression, or one that a classifier stands for."""
        if expression := self.metadata.get("license_expression"):
            return expression
        with contextlib.suppress(InvalidLicenseExpression):
            return str(canonicalize_license_expression(self.metadata.get("license", "")))
        classifiers = self.metadata.get("classifiers", ())
        texts = [self.texts[name] for name in self._licenses() if name in self.texts]
        if _BSD in classifiers and len(texts) == 1:  # the classifier is of both; only one has the third clause
            return "BSD-3-Clause" if "endorse or promote" in " ".join(texts[0].split()) else "BSD-2-Clause"
        spdx = {classifier_licenses().get(text, "") for text in classifiers} - {""}
        return spdx.pop() if len(spdx) == 1 else ""

    def _modules(self) -> tuple[str, ...]:
        """Return the names to import: those that tools name, else those that lie where packages usually do."""
        there = {str(path) for path in self.paths}
        name = str(self.metadata.get("name", ""))
        own = canonicalize_name(name).replace("-", "_")
        flit = str(nested_value(self.project, "tool", "flit", "module", "name") or "")
        maturin = str(nested_value(self.project, "tool", "maturin", "module-name") or "")
        crate = nested_value(toml_or_empty(self.texts.get("Cargo.toml", "")), "lib", "name")
        for text in (flit, maturin.partition(".")[0]):
            if re.fullmatch(r"[A-Za-z_][\w.]*", text, re.ASCII):
                return (text,)
        folders = _SOURCE_FOLDERS
        if "." in name:  # a namespace: zope.interface
            dotted = name.replace(".", "/")
            if any(f"{folder}/{dotted}/__init__.py".lstrip("/") in there for folder in folders):
                return (name,)
        listed = [line.strip() for line in self.texts.get("top_level.txt", "").splitlines()]
        found = [line for line in listed if _MODULE.fullmatch(line) and line not in _ASIDE]
        for folder in folders if not found else ():
            found = found or sorted(_importable_modules(self.paths, folder, own))
        if not found and crate:
            found = [str(crate)]
        space = name.partition(".")[0] if "." in name else ""  # others have it, too: it cannot be imported itself
        found = [each for each in found if each != space] or found
        same = [each for each in found if each.lower() == own]
        return tuple(same or [each for each in found if not each.startswith("_")] or found)

    def _urls(self) -> dict[str, str]:
        """Return the addresses of the project by the keys of a recipe's about."""
        given = {
            re.sub(r"[\W_]", "", label).lower(): url for label, url in self.metadata.get("project_urls", {}).items()
        }
        urls = {
            key: next((given[label] for label in labels if given.get(label)), "") for key, labels in _LABELS.items()
        }
        urls["homepage"] = urls["homepage"] or self.metadata.get("home_page", "")
        forges = (match[0] for url in (urls["homepage"], *given.values()) if (match := _FORGE.match(url)))
        own = canonicalize_name(str(self.metadata.get("name", "")))
        likely = next((url for url in forges if canonicalize_name(url.rpartition("/")[2]) == own), "")
        own_page = _FORGE.fullmatch(urls["homepage"].rstrip("/"))
        urls["repository"] = urls["repository"] or likely or (own_page[0] if own_page else "")
        urls["homepage"] = urls["homepage"] or urls["repository"] or urls["documentation"]
        return {
            key: url.strip().removesuffix(".git")
            for key, url in urls.items()
            if re.match(r"https?://[^\s]+$", url.strip())
        }

    def _tests(self) -> tuple[tuple[str, ...], tuple[str, ...]]:
        """Return what pytest needs from the sources, and its requirements, if the project declares these."""
        folder = next((name for name in ("tests", "test") if self._has_tests(name)), "")
        requirements = self._test_requirements()
        if not folder or not any(canonicalize_name(spec.split()[0]) == "pytest" for spec in requirements):
            return (), ()
        there = {str(path) for path in self.paths}
        return (f"{folder}/", *(name for name in _TEST_SETTINGS if name in there)), requirements

    def _has_tests(self, folder: str) -> bool:
        return any(path.parts[0] == folder and _TEST_FILE.fullmatch(path.name) for path in self.paths)

    def _test_requirements(self) -> tuple[str, ...]:
        for group in _TEST_GROUPS:
            extra = [text for text in self.metadata.get("requires_dist", ()) if _is_of_extra(text, group)]
            listed = list_or_empty(nested_value(self.project, "dependency-groups", group))
            texts = extra or [text for text in listed if isinstance(text, str)]
            if texts:
                own = canonicalize_name(str(self.metadata.get("name", "")))
                specs = dict.fromkeys(_conda_specs(texts, extra=group))
                return tuple(spec for spec in specs if canonicalize_name(spec.split()[0]) != own)
        return ()


@cache
def classifier_licenses() -> dict[str, str]:
    """Return the SPDX identifiers of the classifiers of licenses that stand for one license."""
    return {row["classifier"]: row["spdx"] for row in files.csv_rows(Path(__file__).with_name("licenses.csv"))}


def _table(value: Any, *keys: str) -> Mapping[str, Any]:
    return mapping_or_empty(nested_value(value, *keys))


def _conda_specs(texts: Iterable[str], *, extra: str = "") -> Iterator[str]:
    """Yield the match specs of those requirements that apply here."""
    for text in texts:
        with contextlib.suppress(ValueError, KeyError):  # an invalid requirement, marker, name in a marker, or version
            requirement = Requirement(text)
            applies = requirement.marker is None or requirement.marker.evaluate({"extra": extra})
            if applies and requirement.url is None and canonicalize_name(requirement.name) not in {"wheel", "pip"}:
                yield conda_spec(requirement)


def _is_of_extra(text: str, extra: str) -> bool:
    with contextlib.suppress(InvalidRequirement):
        marker = Requirement(text).marker
        return marker is not None and re.search(rf"extra == ['\"]{extra}['\"]", str(marker)) is not None
    return False


def _ini_list(text: str, section: str, key: str) -> list[str]:
    parser = configparser.ConfigParser(interpolation=None)
    try:
        parser.read_string(text)
    except configparser.Error:
        return []
    value = parser.get(section, key, fallback="")
    return [" = ".join(part.strip() for part in line.split("=", 1)) for line in value.splitlines() if line.strip()]


def _as_list(text: str, section: str) -> str:
    """Return a section of a file of entry points as an option with lines, as setup.cfg has it."""
    lines, inside = [], False
    for line in text.splitlines():
        if line.startswith("["):
            inside = line.strip() == f"[{section}]"
        elif inside and line.strip():
            lines.append(f"  {line.strip()}")
    return "\n".join(("[x]", "y =", *lines))


def _importable_modules(paths: Iterable[PurePosixPath], folder: str, own: str) -> set[str]:
    """Return the names of the modules and packages in a folder of the archive, ``""`` for its top.

    ``own`` is the project's name, which counts even where others have something else below it.
    """
    modules = set()
    for path in paths:
        parts = path.parts
        if folder:
            if parts[0] != folder:
                continue
            parts = parts[1:]
        if len(parts) == 2 and parts[1] == "__init__.py":
            modules.add(parts[0])
        elif len(parts) == 1 and parts[0].endswith(".py"):
            modules.add(parts[0].removesuffix(".py"))
    return {name for name in modules if _MODULE.fullmatch(name)} - ((_ASIDE | _OWN) - {own})


def _valid_bound(text: Any) -> str:
    try:
        return str(SpecifierSet(str(text or "")))
    except InvalidSpecifier:
        return ""
