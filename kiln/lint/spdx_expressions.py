"""SPDX license expressions, and conda-build's license families."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path

from kiln import files
from kiln.lazy_pattern import lazy_pattern

# Identifiers of the SPDX License List (spdx.org/licenses), without deprecated ones, as of August 2026.
SPDX = Path(__file__).with_name("spdx.csv")
_TOKEN = lazy_pattern(r"[()]|[^\s()]+")
_REFERENCE = lazy_pattern(r"LicenseRef[a-zA-Z0-9\-.]*")
# The letters of words: i for an identifier. A license with its exception is a term, t.
_SHAPES = {"(": "(", ")": ")", "and": "o", "or": "o", "with": "w"}
_LICENSE = lazy_pattern(r"i(?:wi)?")
_TERMS = lazy_pattern(r"t(?:ot)*")
_IN_PARENTHESES = lazy_pattern(r"\(t(?:ot)*\)")
_DEEPEST = 50

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
        if words and not _is_well_formed(words):
            return cls(licenses=(text,), exceptions=())
        names = [(word, before.lower() == "with") for before, word in pairwise(("", *words)) if not _is_keyword(word)]
        return cls(
            licenses=tuple(name for name, is_exception in names if not is_exception),
            exceptions=tuple(name for name, is_exception in names if is_exception),
        )

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
    return token.lower() in _SHAPES


def _is_well_formed(words: list[str]) -> bool:
    """Return whether words are an expression: terms in parentheses, inner ones first, become one term each."""
    shape = _LICENSE.sub("t", "".join(_SHAPES.get(word.lower(), "i") for word in words))
    for _ in range(_DEEPEST):
        shape = _IN_PARENTHESES.sub("t", shape)
    return bool(_TERMS.fullmatch(shape))


@cache
def spdx_identifiers(kind: str) -> frozenset[str]:
    """Return the SPDX identifiers of licenses or exceptions."""
    return frozenset(row["identifier"] for row in files.csv_rows(SPDX) if row["kind"] == kind)


def is_license_family(name: str) -> bool:
    """Return whether conda-build accepts a license family."""
    return _normalized_license_family(name) in {_normalized_license_family(family) for family in FAMILIES}


def _normalized_license_family(name: str) -> str:
    words = name.upper()
    for pattern, short in _FAMILY_WORDS:
        words = re.sub(pattern, short, words)
    return words.translate(_NO_LETTERS)
