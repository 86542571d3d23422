"""SPDX license expressions, and conda-build's license families."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import cache
from pathlib import Path

from kiln import files
from kiln.lazy_pattern import lazy_pattern

# Identifiers of the SPDX License List (spdx.org/licenses), without deprecated ones, as of August 2026.
SPDX = Path(__file__).with_name("spdx.csv")
_TOKEN = lazy_pattern(r"[()]|[^\s()]+")
_REFERENCE = lazy_pattern(r"LicenseRef[a-zA-Z0-9\-.]*")
_OPERATORS = frozenset({"and", "or"})

# conda_build/license_family.py: the families, and the words that stand for a part of them.
FAMILIES = (
    "AGPL", "APACHE", "BSD", "CC", "GPL", "GPL2", "GPL3", "LGPL", "MIT", "MOZILLA", "NONE", "OTHER", "PROPRIETARY",
    "PSF", "PUBLIC-DOMAIN",
)  # fmt: skip
_FAMILY_WORDS = ((r"GENERAL PUBLIC LICENSE", "GPL"), (r"LESSER *", "L"), (r"AFFERO *", "A"))
_NO_LETTERS = str.maketrans("", "", string.punctuation + string.whitespace)


@dataclass(frozen=True, slots=True, kw_only=True)
class LicenseExpression:
    """The identifiers in a license expression; a malformed expression is a single identifier."""

    licenses: tuple[str, ...]
    exceptions: tuple[str, ...]

    @classmethod
    def parse(cls, text: str) -> LicenseExpression:
        """Parse an expression of identifiers, AND, OR, WITH and parentheses; keywords in any case."""
        words: list[str] = []
        for token in _TOKEN.findall(text):
            # Identifiers have no spaces: several words between keywords are one unknown identifier.
            if words and not (_is_keyword(token) or _is_keyword(words[-1])):
                words[-1] += f" {token}"
            else:
                words.append(token)
        parser = _Parser(words)
        if words and not (parser.expression() and not parser.rest):
            return cls(licenses=(text,), exceptions=())
        return cls(licenses=tuple(parser.licenses), exceptions=tuple(parser.exceptions))

    @property
    def unknown_licenses(self) -> tuple[str, ...]:
        """The licenses that are neither SPDX identifiers nor custom references."""
        known = spdx_identifiers("license")
        return tuple(name for name in self.licenses if name not in known and not _REFERENCE.fullmatch(name))

    @property
    def unknown_exceptions(self) -> tuple[str, ...]:
        """The exceptions that are not SPDX identifiers."""
        known = spdx_identifiers("exception")
        return tuple(name for name in self.exceptions if name not in known)


def _is_keyword(token: str) -> bool:
    return token in {"(", ")"} or token.lower() in {"and", "or", "with"}


class _Parser:
    """A parser by recursive descent; its methods return whether the text is well-formed so far."""

    def __init__(self, words: list[str]) -> None:
        self.rest = words[::-1]
        self.licenses: list[str] = []
        self.exceptions: list[str] = []
        self._depth = 0

    def _next(self) -> str:
        return self.rest[-1].lower() if self.rest else ""

    def expression(self) -> bool:
        """Parse terms between operators."""
        if not self._term():
            return False
        while self._next() in _OPERATORS:
            self.rest.pop()
            if not self._term():
                return False
        return True

    def _term(self) -> bool:
        if self._next() == "(":
            self._depth += 1
            self.rest.pop()
            if self._depth > 50 or not self.expression() or self._next() != ")":
                return False
            self._depth -= 1
            self.rest.pop()
            return True
        if not self._identifier(self.licenses):
            return False
        if self._next() != "with":
            return True
        self.rest.pop()
        return self._identifier(self.exceptions)

    def _identifier(self, names: list[str]) -> bool:
        if not self.rest or _is_keyword(self.rest[-1]):
            return False
        names.append(self.rest.pop())
        return True


@cache
def spdx_identifiers(kind: str) -> frozenset[str]:
    """Return the SPDX identifiers of licenses or exceptions."""
    return frozenset(row["identifier"] for row in files.csv_rows(SPDX) if row["kind"] == kind)


def is_family(name: str) -> bool:
    """Return whether conda-build accepts a license family."""
    return _plain(name) in {_plain(family) for family in FAMILIES}


def _plain(name: str) -> str:
    words = name.upper()
    for pattern, short in _FAMILY_WORDS:
        words = re.sub(pattern, short, words)
    return words.translate(_NO_LETTERS)
