"""Rules for names that become part of a path or a command, and the characters that hide or reorder text.

Sources: CEP 26 (packages, versions, build strings, subdirs), and conda's own list of subdirs (conda/base/constants.py)
and those that only rattler knows.
"""

from __future__ import annotations

import unicodedata
from typing import TYPE_CHECKING

from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from pathlib import Path

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
