"""What a source asks for, by the files of its archive, and what changes of it between two versions."""

from __future__ import annotations

import configparser
import lzma
import re
import tarfile
import zipfile
import zlib
from email.parser import HeaderParser
from itertools import islice
from pathlib import PurePosixPath
from typing import TYPE_CHECKING, Any

from packaging.requirements import InvalidRequirement, Requirement

from kiln.base.patterns import lazy_pattern
from kiln.base.serialization import list_or_empty, nested_value, toml_or_empty
from kiln.conda.pypi import conda_spec

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping
    from pathlib import Path

# The errors of Python's readers for damaged or malicious files; RuntimeError is zipfile's for encrypted members.
_UNREADABLE = (
    *(tarfile.TarError, zipfile.BadZipFile, zlib.error, lzma.LZMAError, OSError, EOFError),
    *(ValueError, LookupError, NotImplementedError, RuntimeError),
)
_MOST_MEMBERS = 100_000
_LARGEST = 1_000_000  # bytes of a file that is read
_CMAKE = lazy_pattern(r"^\s*cmake_minimum_required\s*\(\s*VERSION\s+([^\s)]+)", re.IGNORECASE | re.MULTILINE)
_MESON = lazy_pattern(r"\bmeson_version\s*:\s*'([^']+)'")
_RUST = lazy_pattern(r'^\s*rust-version\s*=\s*"([^"]+)"', re.MULTILINE)

Requirements = dict[tuple[str, str], str]  # constraints by section, build or run, and conda's name


def requirement_changes(old: Path, new: Path) -> tuple[str, ...]:
    """Return a line for each requirement that differs between two archives of a source.

    Read are ``pyproject.toml``, ``setup.cfg`` and ``PKG-INFO`` of Python projects, the minimum versions of CMake and
    Meson, and Cargo's of Rust, at the top of the archive. Other kinds of archives have no requirements.
    """
    before, after = (requirements_of_archive(path) for path in (old, new))
    if not before or not after:
        return ()
    return tuple(
        _change_text(section, name, before.get((section, name)), after.get((section, name)))
        for section, name in sorted(before.keys() | after.keys())
        if before.get((section, name)) != after.get((section, name))
    )


def _change_text(section: str, name: str, old: str | None, new: str | None) -> str:
    if old is None or new is None:
        return f"{section}: {name} {new if old is None else old}".rstrip() + (" is new" if old is None else " is gone")
    return f"{section}: {name} {old or '(any)'} -> {new or '(any)'}"


def requirements_of_archive(path: Path) -> Requirements:
    """Return what a source asks for, by the files at the top of its archive; empty for other files."""
    texts = _texts_at_top(path)
    found: Requirements = {}
    for name, read in _READERS.items():  # later ones are more exact
        if name in texts:
            found |= read(texts[name])
    return found


def _texts_at_top(path: Path) -> dict[str, str]:
    """Return the texts of the files that have requirements, at the top of an archive; empty for other files."""
    texts: dict[str, str] = {}
    try:
        for name, data in _members(path):
            texts.setdefault(name, data.decode("utf-8", "replace"))
    except _UNREADABLE:
        return {}
    return texts


def _members(path: Path) -> Iterator[tuple[str, bytes]]:
    if zipfile.is_zipfile(path):
        with zipfile.ZipFile(path) as file:
            for info in islice(file.infolist(), _MOST_MEMBERS):
                if (name := _name_at_top(info.filename)) and info.file_size <= _LARGEST:
                    yield name, file.read(info)
        return
    with tarfile.open(path) as archive:
        for member in islice(archive, _MOST_MEMBERS):
            if (name := _name_at_top(member.name)) and member.isfile() and member.size <= _LARGEST:
                content = archive.extractfile(member)
                yield name, content.read() if content is not None else b""


def _name_at_top(name: str) -> str:
    parts = PurePosixPath(name).parts
    return parts[-1] if len(parts) <= 2 and parts[-1:] and parts[-1] in _READERS else ""


def _from_texts(section: str, texts: Iterable[Any]) -> Requirements:
    found: Requirements = {}
    for text in texts:
        try:
            requirement = Requirement(str(text))
        except InvalidRequirement:
            continue
        if requirement.marker is None or "extra" not in str(requirement.marker):
            name, _, constraint = conda_spec(requirement).partition(" ")
            marker = f"  [{requirement.marker}]" if requirement.marker else ""
            found[section, name] = f"{constraint}{marker}".strip()
    return found


def _from_python(version: Any) -> Requirements:
    return _from_texts("run", [f"python {version}"]) if version else {}


def _from_pyproject(text: str) -> Requirements:
    content = toml_or_empty(text)
    return {
        **_from_texts("build", list_or_empty(nested_value(content, "build-system", "requires"))),
        **_from_texts("run", list_or_empty(nested_value(content, "project", "dependencies"))),
        **_from_python(nested_value(content, "project", "requires-python")),
    }


def _from_setup_cfg(text: str) -> Requirements:
    parser = configparser.ConfigParser(interpolation=None, strict=False)
    try:
        parser.read_string(text)
    except configparser.Error:
        return {}
    options = parser["options"] if parser.has_section("options") else {}
    return {
        **_from_texts("build", options.get("setup_requires", "").splitlines()),
        **_from_texts("run", options.get("install_requires", "").splitlines()),
        **_from_python(options.get("python_requires")),
    }


def _from_pkg_info(text: str) -> Requirements:
    headers = HeaderParser().parsestr(text)
    runs = _from_texts("run", headers.get_all("Requires-Dist") or [])
    return {**runs, **_from_python(headers.get("Requires-Python"))}


def _from_pattern(pattern: Any, name: str, sign: str) -> Callable[[str], Requirements]:
    def read(text: str) -> Requirements:
        match = pattern.search(text)
        return {("build", name): f"{sign}{match[1]}"} if match else {}

    return read


_READERS: Mapping[str, Callable[[str], Requirements]] = {
    "CMakeLists.txt": _from_pattern(_CMAKE, "cmake", ">="),
    "meson.build": _from_pattern(_MESON, "meson", ""),
    "Cargo.toml": _from_pattern(_RUST, "rust", ">="),
    "setup.cfg": _from_setup_cfg,
    "pyproject.toml": _from_pyproject,
    "PKG-INFO": _from_pkg_info,
}
