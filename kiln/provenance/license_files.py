"""The license files that a package carries: its metadata's, and those among the files that it installs."""

from __future__ import annotations

import hashlib
import posixpath
import re
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kiln.conda_package import reader
from kiln.files import read_chunks

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

LONGEST_TEXT = 1 << 20  # bytes of a text; a longer one is named by its hash alone
LONGEST_TEXTS = 1 << 23  # bytes of all texts of a package
MOST_FILES = 1000
_LONGEST_NAME = 255  # characters, NAME_MAX of linux/limits.h
_METADATA = "info/licenses/"
_FOLDERS = re.compile(r"(?:^|/)(?:[^/]+\.dist-info/licenses|share/licenses)/")
_NAMES = re.compile(
    r"(?:[\w.-]*[._-])?(?:LICEN[CS]ES?|COPYING|NOTICES?|THIRD[_-]?PARTY[\w-]*)(?:[._-][\w.-]*)?", re.IGNORECASE
)
_NO_TEXT = re.compile(r"\.(?:py|pyc|pyi|h|hh|hpp|c|cc|cpp|js|css|so|json|xml|bzl|BUILD)$")
_OF_OTHERS = re.compile(r"NOTICE|THIRD[_-]?PARTY|AUTHORS|PATENTS", re.IGNORECASE)
_CONTROL = re.compile(r"[\x00-\x08\x0b-\x1f\x7f]")
_OPERATORS = re.compile(r"\s+(?:AND|OR)\s+|[()]")
REFERENCE = "LicenseRef-"


@dataclass(frozen=True, slots=True, kw_only=True)
class LicenseFile:
    """A license file by its path in the package; ``text`` is empty for one that is too long.

    ``expression`` is the package's license where this file is its only text; empty where nothing says it.
    """

    path: str
    sha1: str
    sha256: str
    text: str
    expression: str = ""

    @property
    def licenses(self) -> tuple[str, ...]:
        """The licenses in the file: those of the expression, or a reference to this text."""
        named = tuple(dict.fromkeys(part.strip() for part in _OPERATORS.split(self.expression) if part.strip()))
        return named or (self.license_ref,)

    @property
    def license_ref(self) -> str:
        """The name of this text as a license, the same in all packages that carry it."""
        return f"{REFERENCE}text-{self.sha256[:16]}"

    @property
    def text_or_location(self) -> str:
        """The text, or where it is when it is too long."""
        return self.text or f"The text is in the file {self.path} of the package, which has the SHA-256 {self.sha256}."


def package_license_files(package: Path, info: Mapping[str, bytes], *, expression: str) -> tuple[LicenseFile, ...]:
    """Return the license files of a package, given the files below its ``info/`` and its license expression.

    The payload is read only where the list of its files has license files.

    Raises:
        BrokenPackage: when the file is not a .conda package.
    """
    texts = _LicenseFileReader()
    names = [name for name in sorted(info) if f"info/{name}".startswith(_METADATA)]
    files = [texts.read_license_file(f"info/{name}", [info[name]]) for name in names[:MOST_FILES]]
    expected = set(_listed_license_paths(info))
    if expected:
        with reader.open_package_members(package) as members:
            for member, content in members:
                path = posixpath.normpath(member.name)
                if content is not None and path in expected and not path.startswith("info/"):
                    expected.remove(path)
                    files.append(texts.read_license_file(path, read_chunks(content)))
                if not expected:
                    break
    return _with_declared_license(files, expression)


def is_license_file(path: str) -> bool:
    """Return whether a path in a prefix is that of a license text, by its folder or its name."""
    name = posixpath.basename(path)
    named = len(name) <= _LONGEST_NAME and _NAMES.fullmatch(name) and not _NO_TEXT.search(name)
    return bool(named or _FOLDERS.search(path))


def _listed_license_paths(info: Mapping[str, bytes]) -> list[str]:
    """Return the paths of license files in the list of a package's files."""
    try:
        value = reader.parse_strict_json(info.get("paths.json", b"{}"))
    except ValueError:
        return []
    items = value.get("paths") if isinstance(value, dict) else None
    paths = [item.get("_path") for item in items or () if isinstance(item, dict)] if isinstance(items, list) else []
    return sorted(path for path in paths if isinstance(path, str) and is_license_file(path))[:MOST_FILES]


class _LicenseFileReader:
    """A reader of texts within a limit for all of them."""

    def __init__(self) -> None:
        self.remaining = LONGEST_TEXTS

    def read_license_file(self, path: str, parts: Iterable[bytes]) -> LicenseFile:
        """Return a license file, with its text within the limits; SPDX 2.3 requires the SHA-1."""
        sha1, sha256, data, size = hashlib.sha1(usedforsecurity=False), hashlib.sha256(), bytearray(), 0
        limit = min(LONGEST_TEXT, self.remaining)
        for chunk in parts:
            sha1.update(chunk)
            sha256.update(chunk)
            size += len(chunk)
            data += chunk[: max(0, limit + 1 - len(data))]
        text = bytes(data) if size <= limit else b""
        self.remaining -= len(text)
        return LicenseFile(path=path, sha1=sha1.hexdigest(), sha256=sha256.hexdigest(), text=_decode_text(text))


def _decode_text(data: bytes) -> str:
    text = data.decode("utf-8-sig", errors="replace").replace("\r\n", "\n")
    return _CONTROL.sub("\ufffd", text)


def _with_declared_license(files: Sequence[LicenseFile], expression: str) -> tuple[LicenseFile, ...]:
    """Return the files with the package's license where its metadata have one text that is not about others."""
    own = {
        file.sha256
        for file in files
        if file.path.startswith(_METADATA) and not _OF_OTHERS.search(posixpath.basename(file.path))
    }
    if len(own) != 1 or not expression:
        return tuple(files)
    return tuple(replace(file, expression=expression) if file.sha256 in own else file for file in files)
