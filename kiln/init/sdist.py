"""The facts in a source archive that a recipe needs and metadata lack: build requirements, programs, licenses, modules.

Sources: PEP 517 and 518 (``[build-system]``), PEP 621 (``[project]``), setuptools' ``setup.cfg``. No code of it is run.
"""

from __future__ import annotations

import configparser
import contextlib
import re
import sys
import tarfile
import zlib
from dataclasses import dataclass
from importlib import import_module
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from packaging.requirements import Requirement

from kiln import limits
from kiln.errors import UnsafeTemplate
from kiln.rehearse.pypi_conda_conversion import conda_spec
from kiln.serialization import mapping_or_empty

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_MOST_MEMBERS = 200_000
_LARGEST = 2_000_000  # bytes of a file that is read
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
                    texts[str(path)] = file.read(_LARGEST).decode(errors="replace")
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
