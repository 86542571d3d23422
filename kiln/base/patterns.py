"""Regular expressions that compile at their first use, kinds of archives, and rules for names in paths."""

from __future__ import annotations

import re
import unicodedata
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

if TYPE_CHECKING:
    from re import Pattern


class _LazyPattern:
    """A regular expression's text and flags, until an attribute of the expression is used."""

    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the compiled expression, and keep it: the next use is as fast as the expression's."""
        if name.startswith("__"):  # copies and pickles look for these before there is a text
            raise AttributeError(name)
        value = self.__dict__[name] = getattr(re.compile(self._text, self._flags), name)
        return value


def lazy_pattern(text: str, flags: int = 0) -> Pattern[str]:
    """Return a regular expression that compiles at its first use; for constants of modules, whose methods are called.

    It is not an instance of `re.Pattern`, so the functions of `re` do not take it.
    """
    return _LazyPattern(text, flags)  # type: ignore[return-value]


# conda-build's decompressible_exts (conda_build/utils.py): the ending of a file's name decides whether it is unpacked.
ARCHIVES = (
    *(".7z", ".tar", ".tar.bz2", ".tar.gz", ".tar.lzma", ".tar.xz", ".tar.z", ".tar.zst"),
    *(".tgz", ".whl", ".zip", ".rpm", ".deb"),
)
BY_ENGINE = (".tar", ".tar.bz2", ".tar.gz", ".tar.xz", ".tar.zst", ".tgz", ".zip")  # but 7z, which it lets lead out


# The kinds that a name promises, and the beginnings of files of each kind.
KINDS = {
    "gzip": (".gz", ".tgz"),
    "zip": (".zip", ".whl", ".conda"),
    "bzip2": (".bz2", ".tbz2", ".tbz"),
    "xz": (".xz", ".txz"),
    "zstd": (".zst",),
    "7z": (".7z",),
    "tar": (".tar",),
}
_MAGIC = {
    "gzip": b"\x1f\x8b",
    "zip": b"PK",
    "bzip2": b"BZh",
    "xz": b"\xfd7zXZ\x00",
    "zstd": b"\x28\xb5\x2f\xfd",
    "7z": b"7z\xbc\xaf\x27\x1c",
}
_TAR_MAGIC, _TAR_OFFSET = b"ustar", 257  # of the first header, in POSIX's and GNU's formats
HEADER = 512  # bytes of a file from which its kind is known


def kind_of_name(name: str) -> str | None:
    """Return the kind of file that a name promises; None for others than those of `KINDS`."""
    return next((kind for kind, ends in KINDS.items() if name.lower().endswith(ends)), None)


def kind_of_content(beginning: bytes) -> str | None:
    """Return the kind of a file that begins with these bytes; None for others."""
    if beginning[_TAR_OFFSET:].startswith(_TAR_MAGIC):
        return "tar"
    return next((kind for kind, magic in _MAGIC.items() if beginning.startswith(magic)), None)


def is_misnamed(path: Path, name: str) -> bool:
    """Return whether a file is an archive of another kind than its name says."""
    with path.open("rb") as file:
        kind = kind_of_content(file.read(HEADER))
    return kind is not None and kind != kind_of_name(name)


def is_archive(name: str) -> bool:
    """Return whether conda-build unpacks a file of this name."""
    return name.lower().endswith(ARCHIVES)


def is_unpacked_by_rattler_build(name: str) -> bool:
    """Return whether rattler-build unpacks a file of this name."""
    return name.lower().endswith(BY_ENGINE)


def is_wheel(name: str) -> bool:
    """Return whether a file is a wheel, which conda-build copies and unpacks."""
    return name.lower().endswith(".whl")


def file_name_of_url(url: str) -> str:
    """Return the name of the file at an address."""
    return PurePosixPath(urlsplit(url).path).name


CONDA_PLATFORMS = (
    "emscripten-wasm32", "freebsd-64", "linux-32", "linux-64", "linux-aarch64", "linux-armv6l", "linux-armv7l",
    "linux-ppc64", "linux-ppc64le", "linux-riscv64", "linux-s390x", "osx-64", "osx-arm64", "wasi-wasm32", "win-32",
    "win-64", "win-arm64", "zos-z",
)  # fmt: skip
FORGE_PLATFORMS = tuple(platform.replace("-", "_") for platform in CONDA_PLATFORMS)  # as conda-forge.yml has them
PLATFORMS = frozenset({*CONDA_PLATFORMS, "linux-loong64", "linux-riscv32"})
_BESIDE_CONFIGS = frozenset({"wheels", "sources", "converted", "cache"})  # folders in that of rehearsals
_SYSTEMS = frozenset(platform.partition("-")[0] for platform in PLATFORMS)
_SUBDIR = lazy_pattern(r"[a-z0-9]+(?:-[a-z0-9_]+)+")
_MISSPELT = 0.8  # the likeness from which a name is a misspelling: linux-x86_64, linux-46
MAX_LENGTH = 64  # characters of a package's name, a version, a build string

# C0 and C1 controls, and characters that reorder or hide text: bidirectional marks, zero widths, variation selectors.
_HIDDEN = r"[\x00-\x1f\x7f-\x9f\xad\u061c\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ufff9-\ufffb]"
HIDDEN = lazy_pattern(_HIDDEN)
_ON_A_TERMINAL = lazy_pattern(f"(?![\n\t]){_HIDDEN}|[\ud800-\udfff]")
_PACKAGE = lazy_pattern(r"_?[a-z0-9]+(?:[._-][a-z0-9]+)*[._-]?")
_VERSION = lazy_pattern(r"[A-Za-z0-9._+!]+")
_BUILD = lazy_pattern(r"[A-Za-z0-9._+]+")
_RULES = {
    "package name": (_PACKAGE, "lower-case letters and digits, separated by single hyphens, periods or underscores"),
    "version": (_VERSION, "letters, digits, '.', '_', '+' and '!'"),
    "build string": (_BUILD, "letters, digits, '.', '_' and '+'"),
}


def invalid_name_reason(text: str, kind: str) -> str:
    """Return why a text is not a valid ``package name``, ``version`` or ``build string``; empty when it is valid."""
    rule, description = _RULES[kind]
    if len(text) > MAX_LENGTH:
        return f"it has {len(text)} characters; the limit is {MAX_LENGTH}"
    return "" if rule.fullmatch(text) else f"it consists of {description}"


def is_subdir(name: str) -> bool:
    """Return whether a name is a subdir: one of conda's, or a custom one that is not like a misspelling of those.

    This is the one rule for variants, channels, packages and workers.
    """
    if name in PLATFORMS:
        return True
    from difflib import get_close_matches

    system = name.partition("-")[0]
    like = get_close_matches(name, PLATFORMS, n=1, cutoff=_MISSPELT)
    return len(name) <= MAX_LENGTH and system in _SYSTEMS and _SUBDIR.fullmatch(name) is not None and not like


def is_channel_subdir(name: str) -> bool:
    """Return whether a folder of this name in a channel has packages: those of a subdir, or ``noarch``."""
    return name == "noarch" or is_subdir(name)


def existing_subdirs(channel: Path) -> tuple[str, ...]:
    """Return the names of the folders of packages in a channel's folder, sorted; none where there is no such folder."""
    if not channel.is_dir():
        return ()
    return tuple(sorted(entry.name for entry in channel.iterdir() if is_channel_subdir(entry.name) and entry.is_dir()))


def is_config_name(name: str) -> bool:
    """Return whether a config may have this name, which its files and folders bear.

    Macs have one file for the composed and the decomposed form of a letter, and no system needs the second one.
    """
    hidden = HIDDEN.search(name) or not unicodedata.is_normalized("NFC", name)
    return name[:1] not in {"", ".", "-"} and "/" not in name and not hidden and name not in _BESIDE_CONFIGS


def escaped_for_terminal(text: str) -> str:
    """Return text for a terminal, with escapes for the characters that could move, hide or reorder it."""
    if text.isascii() and text.replace("\n", "").replace("\t", "").isprintable():
        return text  # most of it, without the expression
    return _ON_A_TERMINAL.sub(lambda match: match[0].encode("unicode_escape", "surrogatepass").decode(), text)
