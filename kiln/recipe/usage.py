"""The variant keys that a text uses, line by line.

The tests are conda-build's (conda_build/variants.py): a key counts as used where a selector names it, where a Jinja
expression or statement does, where it is a requirement without a version, or through ``compiler()`` and similar.
"""

from __future__ import annotations

import re
from functools import lru_cache
from typing import TYPE_CHECKING

from kiln.errors import MalformedYaml
from kiln.lazy_pattern import lazy_pattern
from kiln.template.recent import BoundedDict

if TYPE_CHECKING:
    from collections.abc import Iterable

_TOOL = lazy_pattern(r"(.*?)_(compiler|stdlib)(_version)?$")
_MAX_LENGTH = 10_000
_MAX_STATEMENT_LENGTH = 4_000
_SYSROOT = "CONDA_BUILD_SYSROOT"

Used = frozenset[str]


@lru_cache(maxsize=4096)
def _selector(key: str) -> re.Pattern[str]:
    tests = [rf"^[^#\[]*?\#?\s\[[^\]]*?(?<![_\w\d]){re.escape(key)}[=\s<>!\]]"]
    if key.startswith("cdt_") and not _TOOL.match(key):
        tests.append(r"\{{\s*cdt\(")
    return re.compile("|".join(tests))


@lru_cache(maxsize=4096)
def _elsewhere(key: str) -> re.Pattern[str]:
    name = re.escape(key)
    spelt = "[-_]".join(map(re.escape, key.split("_")))
    bare = rf"(?<![a-zA-Z_0-9]){name}(?![a-zA-Z_0-9])"
    tests = [
        rf"\{{\s*(?:pin_[a-z]+\(\s*?['\"])?{name}(?:[^_0-9a-zA-Z].*?)?\}}\}}",
        rf"^\s+\-\s+{spelt}\s*(?:\s[\[#]|$)",
        rf"(?:^|[^\{{])\{{%\s*(?:el)?if\s*.*{name}\s*(?:[^%]*?)?%\}}",
        rf"(?:^|[^\{{])\{{%\s*for\s*.*\s*in\s*{name}(?![a-zA-Z_0-9])(?:[^%]*?)?%\}}",
        rf"(?:^|[^\{{])\{{%\s*set\s*.*\s*=\s*.*{bare}(?:[^%]*?)?%\}}",
    ]
    if tool := _TOOL.match(key):
        tests.append(rf"\{{\s*{tool[2]}\([\'\"]{re.escape(tool[1])}[\"\'][^\{{]*?\}}")
    elif key.startswith("cdt_"):
        tests.append(r"\{{\s*cdt\(")
    return re.compile("|".join(tests))


class Usage:
    """The use of a set of keys, cached by line."""

    def __init__(self, keys: Iterable[str]) -> None:
        self._keys = tuple(sorted(keys))
        self._tools = tuple((key, tool[1]) for key in self._keys if (tool := _TOOL.match(key)))
        self._cdt = tuple(key for key in self._keys if key.startswith("cdt_"))
        self._sysroot = _SYSROOT in self._keys
        self._in_line: tuple[BoundedDict[str, Used], BoundedDict[str, Used]] = (BoundedDict(16384), BoundedDict(16384))
        self._in_text: tuple[BoundedDict[str, Used], BoundedDict[str, Used]] = (BoundedDict(1024), BoundedDict(1024))

    def selectors(self, text: str) -> Used:
        """Return the keys that the selectors of a text use."""
        return self._text(text, 0)

    def elsewhere(self, text: str) -> Used:
        """Return the keys that a text uses outside selectors."""
        return self._text(text, 1)

    def _text(self, text: str, kind: int) -> Used:
        memory = self._in_text[kind]
        keys = memory.get(text)
        if keys is None:
            used: set[str] = set()
            for line in text.splitlines():
                used |= self._line(line, kind)
            if self._sysroot and used & {"c_stdlib", "c_compiler", "cxx_compiler"}:
                used.add(_SYSROOT)
            keys = memory[text] = frozenset(used)
        return keys

    def _line(self, line: str, kind: int) -> Used:
        memory = self._in_line[kind]
        keys = memory.get(line)
        if keys is None:
            check_line_length(line)
            pattern = _elsewhere if kind else _selector
            candidates = self._candidates(line, kind)
            keys = memory[line] = frozenset(key for key in candidates if pattern(key).search(line))
        return keys

    def _candidates(self, line: str, kind: int) -> list[str]:
        """Return the keys that a line may use, by a search without regular expressions."""
        cdt = self._cdt if "cdt(" in line else ()
        if not kind and "[" not in line:
            return list(cdt)
        if kind and "{" not in line and not line.lstrip().startswith("-"):
            return []
        flat = line.replace("-", "_")
        candidates = [key for key in self._keys if key in flat]
        if kind and ("compiler(" in line or "stdlib(" in line):
            candidates.extend(key for key, language in self._tools if language in line)
        return [*candidates, *cdt]


def check_line_length(line: str) -> None:
    """Check that a line is not longer than in any real recipe.

    Raises:
        MalformedYaml: the line is too long.
    """
    if len(line) > (_MAX_STATEMENT_LENGTH if "{%" in line else _MAX_LENGTH):
        raise MalformedYaml(f"a line of {len(line):,} characters", hint="break the line, or move the text into a file")


def in_shell(keys: Iterable[str], text: str) -> Used:
    """Return the keys that a shell script uses as variables."""
    return frozenset(key for key in keys if key in text and _shell(key).search(text))


@lru_cache(maxsize=4096)
def _shell(key: str) -> re.Pattern[str]:
    # Only the first dollar sign of a line counts in conda-build's test.
    return re.compile(rf"^[^$\n]*\$\{{?\s*{re.escape(key)}\s*[\s|\}}]", re.MULTILINE)


def in_batch(keys: Iterable[str], text: str) -> Used:
    """Return the keys that a Windows batch script uses as variables."""
    return frozenset(key for key in keys if f"%{key}%" in text)
