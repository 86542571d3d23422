"""Rules for the sections about, extra and package; SPDX license expressions."""

from __future__ import annotations

import re
import string
from dataclasses import dataclass
from functools import cache
from itertools import pairwise
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files
from kiln.base.patterns import lazy_pattern
from kiln.base.serialization import mapping_or_empty
from kiln.conda.specs import version_or_none
from kiln.feedstock.lint.model import Problem, hint_rule, lint_rule
from kiln.feedstock.lint.reading import key_with_place

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.base.position import Place
    from kiln.feedstock.lint.model import LintedFeedstock


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


_NAME = lazy_pattern(r"[a-z0-9_\-.]+")
# Families whose licenses ask for their text to be distributed, as conda-smithy lists them.
_TEXT_REQUIRED = ("gpl", "bsd", "mit", "apache", "psf")
_LICENSE_IN_NAMES = ("unlicense", "licenseref", "-license")


def _place_in_about(subject: LintedFeedstock, *names: str) -> Place:
    return subject.recipe.place_in_section("about", *names)


def _license_text(subject: LintedFeedstock) -> str:
    license_ = subject.recipe.section("about").get("license")
    return "" if license_ is None else str(license_)


def missing_about_items(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield the items that every about section has, and this one lacks."""
    about = subject.recipe.section("about")
    for item in ("homepage" if subject.recipe.version else "home", "license", "summary"):
        if not about.get(item):
            yield Problem(
                text=f"about/{item} is missing",
                at=_place_in_about(subject, item),
                cure=f"add {item}: to the about section",
            )


def license_called_unknown(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a license that is called unknown."""
    if _license_text(subject).strip().lower() == "unknown":
        yield Problem(text="the license is 'unknown'", at=_place_in_about(subject, "license"))


def license_word_in_license_name(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a license whose name has the word license, which no SPDX identifier needs."""
    name = _license_text(subject).lower()
    if "license" in name and not any(part in name for part in _LICENSE_IN_NAMES):
        yield Problem(
            text=f"the license {_license_text(subject)!r} has the word 'license' in its name",
            at=_place_in_about(subject, "license"),
        )


def missing_license_file(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a missing license file: always in recipe.yaml, in meta.yaml for families that ask for it."""
    about = subject.recipe.section("about")
    if about.get("license_file"):
        return
    family = about.get("license_family")
    name = str(_license_text(subject) if family is None else family).lower()
    if subject.recipe.version or any(part in name for part in _TEXT_REQUIRED):
        yield Problem(text="about/license_file is missing", at=_place_in_about(subject, "license_file", "license"))


def invalid_license_family(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a license family that conda-build refuses."""
    family = subject.recipe.section("about").get("license_family")
    if subject.recipe.version == 0 and family is not None and not is_license_family(str(family)):
        yield Problem(
            text=f"about/license_family {str(family)!r} is not one of conda-build's families",
            at=_place_in_about(subject, "license_family"),
            cure=f"remove it, or write one of {', '.join(FAMILIES)}",
        )


def non_spdx_license(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield licenses that are not SPDX identifiers."""
    for name in LicenseExpression.parse(_license_text(subject).strip()).unknown_licenses[:1]:
        yield Problem(text=f"the license {name!r} is not an SPDX identifier", at=_place_in_about(subject, "license"))


def non_spdx_exception(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield license exceptions that are not SPDX identifiers."""
    for name in LicenseExpression.parse(_license_text(subject).strip()).unknown_exceptions[:1]:
        yield Problem(
            text=f"the license exception {name!r} is not an SPDX identifier", at=_place_in_about(subject, "license")
        )


def _place_in_extra(subject: LintedFeedstock, name: str) -> Place:
    return subject.recipe.place_in_section("extra", name)


def no_maintainers(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a missing list of maintainers."""
    if not subject.recipe.section("extra").get("recipe-maintainers"):
        yield Problem(text="extra/recipe-maintainers names nobody", at=_place_in_extra(subject, "recipe-maintainers"))


def maintainers_not_a_list(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield maintainers that are not a list."""
    if not isinstance(subject.recipe.section("extra").get("recipe-maintainers", []), list):
        yield Problem(text="extra/recipe-maintainers is not a list", at=_place_in_extra(subject, "recipe-maintainers"))


def feedstock_name_with_suffix(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a name of a feedstock that ends in -feedstock."""
    name = subject.recipe.section("extra").get("feedstock-name")
    if isinstance(name, str) and name.endswith("-feedstock"):
        yield Problem(text=f"extra/feedstock-name {str(name)!r} ends in '-feedstock'", at=subject.recipe.place_of(name))


def invalid_package_name(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield an invalid or missing package name; names that depend on the variant are not checked."""
    name, node = subject.recipe.package_name
    if "${{" in name and subject.recipe.version:
        return
    if not _NAME.fullmatch(name):
        what = f"invalid package name {name!r}" if name else "the package's name is missing"
        yield Problem(
            text=what, at=subject.recipe.place_of(node) if node else subject.recipe.place_of_key(subject.recipe.root)
        )


def missing_version(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a missing version."""
    version, node = subject.recipe.package_version
    if version is None:
        yield Problem(text="the package's version is missing", at=subject.recipe.place_of(node))


def invalid_version(subject: LintedFeedstock) -> Iterator[Problem]:
    """Yield a version that conda does not order."""
    version, node = subject.recipe.package_version
    if version is not None and "${{" not in version and version_or_none(version) is None:
        yield Problem(text=f"invalid version {version!r}", at=subject.recipe.place_of(node))


def feedstock_name(subject: LintedFeedstock) -> str:
    """Return the name of the feedstock that the recipe gives or implies."""
    recipe = subject.recipe
    holder = recipe.section("recipe") if recipe.version and "recipe" in recipe.root else recipe.section("package")
    extra = mapping_or_empty(recipe.root.get("extra"))
    return str(extra.get("feedstock-name") or holder.get(key_with_place(holder, "name"), ""))


_SPDX_CURE = (
    "write an SPDX expression (spdx.org/licenses), such as MIT or Apache-2.0 OR BSD-3-Clause, or LicenseRef-NAME"
)

RULES = (
    lint_rule("R-002", missing_about_items, "add the item to the about section"),
    lint_rule("R-003", no_maintainers, "list GitHub user names under extra: recipe-maintainers:"),
    lint_rule("R-004", maintainers_not_a_list, "write one '- name' a line", fixable=True),
    lint_rule("R-039", feedstock_name_with_suffix, "remove the suffix, which is added by itself", fixable=True),
    lint_rule("R-007", license_called_unknown, _SPDX_CURE),
    lint_rule("R-010", license_word_in_license_name, _SPDX_CURE),
    lint_rule("R-013", missing_license_file, "add license_file: with the path of the license's text in the source"),
    lint_rule("schema", invalid_license_family, "remove license_family"),
    hint_rule("R-044", non_spdx_license, _SPDX_CURE, fixable=True),
    hint_rule("R-045", non_spdx_exception, "write an exception of spdx.org/licenses/exceptions-index.html"),
    lint_rule("R-014", invalid_package_name, "use lower case letters, digits, '_', '-' and '.' only"),
    lint_rule("R-015", missing_version, "add version: to the package section"),
    lint_rule(
        "R-016", invalid_version, "write a version of letters, digits, dots and underscores that conda can order"
    ),
)
