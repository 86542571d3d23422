"""Expressions and lines of recipe.yaml with their conditions, and where it has meta.yaml's keys."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from jinja2 import nodes


@dataclass(frozen=True, kw_only=True)
class HashKeysToUseOrIgnore:
    """Keys that a package has to count in its hash, or not to, so that its builds differ exactly where they did.

    ``strings`` are the build strings of packages of which rattler-build's default shows a key that was not shown.
    """

    use: Mapping[str, frozenset[str]] = field(default_factory=dict)
    ignore: Mapping[str, frozenset[str]] = field(default_factory=dict)
    strings: Mapping[str, frozenset[str]] = field(default_factory=dict)

    def __bool__(self) -> bool:
        return any(values for keys in (self.use, self.ignore, self.strings) for values in keys.values())

    def __or__(self, other: HashKeysToUseOrIgnore) -> HashKeysToUseOrIgnore:
        return HashKeysToUseOrIgnore(
            use=_united_key_sets(self.use, other.use),
            ignore=_united_key_sets(self.ignore, other.ignore),
            strings=_united_key_sets(self.strings, other.strings),
        )


def _united_key_sets(
    one: Mapping[str, frozenset[str]], other: Mapping[str, frozenset[str]]
) -> dict[str, frozenset[str]]:
    joined = {key: one.get(key, frozenset()) | other.get(key, frozenset()) for key in (*one, *other)}
    return {key: values for key, values in joined.items() if values}


@dataclass(frozen=True, slots=True)
class RecipeLine:
    """A line of YAML: its number in meta.yaml (0 for an empty line), its text, and the conditions that it needs."""

    number: int
    text: str
    guards: Guards = ()


@dataclass(frozen=True, slots=True)
class ContextEntry:
    """An entry of ``context``: its name, its value, and the lines that set it, the last of them last."""

    name: str
    value: ExpressionText
    numbers: tuple[int, ...]

    @property
    def last_line_number(self) -> int:
        """The last line that sets it."""
        return self.numbers[-1]


@dataclass(frozen=True, slots=True, kw_only=True)
class ExpandedRecipe:
    """A recipe without statements; ``faults`` are what has no equivalent, by line; ``comments`` are whole lines."""

    lines: tuple[RecipeLine, ...]
    expressions: tuple[ExpressionText, ...]
    settings: tuple[ContextEntry, ...]
    raw: tuple[str, ...]
    comments: Mapping[int, str]
    above: Mapping[int, tuple[str, ...]]  # the comments directly above a setting
    remarks: Mapping[int, str]  # comments that follow text
    faults: tuple[tuple[int, str], ...]


Path = tuple[str, ...]

TEXTS: dict[str, Path] = {
    "number": ("build", "number"),
    "string": ("build", "string"),
    "noarch": ("build", "noarch"),
    "python_version_independent": ("build", "python", "version_independent"),
    "merge_build_host": ("build", "merge_build_and_host_envs"),
    "python_site_packages_path": ("build", "python", "site_packages_path"),
}
LISTS: dict[str, Path] = {
    "entry_points": ("build", "python", "entry_points"),
    "skip_compile_pyc": ("build", "python", "skip_pyc_compilation"),
    "always_include_files": ("build", "always_include_files"),
    "no_link": ("build", "always_copy_files"),
    "rpaths": ("build", "dynamic_linking", "rpaths"),
    "missing_dso_whitelist": ("build", "dynamic_linking", "missing_dso_allowlist"),
    "runpath_whitelist": ("build", "dynamic_linking", "rpath_allowlist"),
    "has_prefix_files": ("build", "prefix_detection", "force_file_type", "text"),
    "binary_has_prefix_files": ("build", "prefix_detection", "force_file_type", "binary"),
    "force_use_keys": ("build", "variant", "use_keys"),
    "force_ignore_keys": ("build", "variant", "ignore_keys"),
    "ignore_run_exports": ("requirements", "ignore_run_exports", "by_name"),
    "ignore_run_exports_from": ("requirements", "ignore_run_exports", "from_package"),
}
FLAGS_OR_LISTS: dict[str, Path] = {
    "binary_relocation": ("build", "dynamic_linking", "binary_relocation"),
    "ignore_prefix_files": ("build", "prefix_detection", "ignore"),
}
DETECTION: Path = ("build", "prefix_detection", "ignore_binary_files")
ABOUT = {
    "home": "homepage",
    "summary": "summary",
    "description": "description",
    "license": "license",
    "license_family": "license_family",
    "license_file": "license_file",
    "doc_url": "documentation",
    "dev_url": "repository",
}
REQUIREMENTS = {"build": "build", "host": "host", "run": "run", "run_constrained": "run_constraints"}
SOURCE = {
    "url": "url",
    "sha256": "sha256",
    "md5": "md5",
    "fn": "file_name",
    "folder": "target_directory",
    "git_url": "git",
    "git_rev": "rev",
    "git_tag": "tag",
    "git_branch": "branch",
    "git_depth": "depth",
    "path": "path",
    "patches": "patches",
}
SOURCE_LISTS = frozenset({"url", "patches"})
# Keys of an output next to its sections, and that conda-build reads as keys of its build section.
OUTPUT_BUILD = frozenset(
    {"number", "string", "noarch", "noarch_python", "entry_points", "run_exports", "track_features"}
)


# How tightly an expression binds, from the loosest.
CHOICE, OR, AND, NOT, COMPARE, SUM, CONCAT, PRODUCT, UNARY, FILTER, ATOM = range(11)
_OPPOSITE = {" == ": " != ", " != ": " == "}

_PIN_ARGUMENTS = {
    "pin_subpackage": ("name", "min_pin", "max_pin", "exact"),
    "pin_compatible": ("name", "lower_bound", "upper_bound", "min_pin", "max_pin", "exact"),
}
_EMPTY = '""'  # an empty bound, which means none
_BOUNDS = (("lower_bound", "min_pin"), ("upper_bound", "max_pin"))


class UnsupportedExpression(Exception):
    """An expression that recipe.yaml has no notation for."""


@dataclass(frozen=True, slots=True)
class ExpressionText:
    """An expression of recipe.yaml: its text, how tightly it binds, and its value if that is known."""

    text: str
    level: int = ATOM
    constant: Any = field(default=None)

    @property
    def is_constant(self) -> bool:
        """True if the value is known."""
        return self.constant is not None

    def text_at_precedence(self, level: int) -> str:
        """Return the text for a place that binds at least so tightly, in parentheses where it needs them."""
        return self.text if self.level >= level else f"({self.text})"


def literal_expression(value: Any) -> ExpressionText:
    """Return the expression of a value."""
    if isinstance(value, (list, tuple)):
        return ExpressionText(f"[{', '.join(literal_expression(item).text for item in value)}]", constant=list(value))
    if value is None:
        return ExpressionText("none")
    if isinstance(value, str) and "\\" in value and '"' not in value and "'" not in value:
        return ExpressionText('"' + value.replace("\\", "\\\\") + '"', constant=value)
    return ExpressionText(json.dumps(value, ensure_ascii=False), constant=value)


def conditional_expression(test: ExpressionText, yes: ExpressionText, other: ExpressionText | None) -> ExpressionText:
    """Return the expression that is one value where a test holds, and else another or nothing."""
    text = f"{yes.text_at_precedence(OR)} if {test.text_at_precedence(OR)}"
    return ExpressionText(text if other is None else f"{text} else {other.text_at_precedence(CHOICE)}", CHOICE)


def and_expression(one: ExpressionText, other: ExpressionText) -> ExpressionText:
    """Return the expression that holds where two do."""
    return ExpressionText(f"{one.text_at_precedence(AND)} and {other.text_at_precedence(AND)}", AND)


def negation(test: ExpressionText) -> ExpressionText:
    """Return the expression that holds where another one does not."""
    if test.text.startswith("not ") and test.level == NOT:
        return ExpressionText(test.text[4:], COMPARE)
    if test.level == COMPARE:
        for sign, other in _OPPOSITE.items():
            if test.text.count(sign) == 1 and not any(word in test.text for word in (" < ", " > ", " in ")):
                return ExpressionText(test.text.replace(sign, other), COMPARE)
    return ExpressionText(f"not {test.text_at_precedence(COMPARE)}", NOT)


def unparenthesized(text: str) -> str:
    """Return an expression's text without the parentheses around all of it."""
    while re.fullmatch(r"\(.*\)", text, re.DOTALL) and _has_balanced_parentheses(text[1:-1]):
        text = text[1:-1]
    return text


def _has_balanced_parentheses(text: str) -> bool:
    depth = 0
    for character in text:
        depth += {"(": 1, ")": -1}.get(character, 0)
        if depth < 0:
            return False
    return depth == 0


Guards = tuple[ExpressionText, ...]  # conditions, all of which have to hold


@dataclass(frozen=True, slots=True)
class ConditionalValue:
    """A value that depends on conditions: the first case that holds counts, and otherwise another value or nothing."""

    cases: tuple[tuple[ExpressionText, ExpressionText], ...]
    otherwise: ExpressionText | None
    number: int = 0

    @property
    def as_expression(self) -> ExpressionText:
        """The value as one expression."""
        result = self.otherwise
        for test, value in reversed(self.cases):
            result = conditional_expression(test, value, result)
        return result or literal_expression("")


def value_after_assignment(
    old: ConditionalValue | None, guard: ExpressionText | None, value: ExpressionText, number: int = 0
) -> ConditionalValue:
    """Return a value after an assignment, which may have a condition."""
    if guard is None:
        return ConditionalValue((), value, number)
    if old is None:
        return ConditionalValue(((guard, value),), None, number)
    if len(old.cases) == 1 and old.otherwise is None and negation(guard).text == old.cases[0][0].text:
        return ConditionalValue(old.cases, value, number)
    if value.level == CHOICE:
        value = ExpressionText(f"({value.text})")
    return ConditionalValue(
        ((guard, value), *(case for case in old.cases if case[0].text != guard.text)), old.otherwise, number
    )


def conjunction(guards: Guards) -> ExpressionText | None:
    """Return the expression that holds where all conditions do; None for none."""
    result: ExpressionText | None = None
    for guard in guards:
        result = guard if result is None else and_expression(result, guard)
    return result


def guards_without(guards: Guards, known: Guards) -> Guards:
    """Return the conditions that are not among the known ones."""
    texts = {guard.text for guard in known}
    return tuple(guard for guard in guards if guard.text not in texts)


def pin_arguments(function: str, node: nodes.Call, text: Callable[[nodes.Expr], str]) -> str:
    """Return the arguments of a pin in recipe.yaml; an explicit bound has precedence over the number of places."""
    given = dict(zip(_PIN_ARGUMENTS[function], map(text, node.args), strict=False))
    given |= {str(keyword.key): text(keyword.value) for keyword in node.kwargs}
    arguments = [given.pop(next(iter(given)))] if given else []
    if given.get("exact") in {"true", "1"}:
        return ", ".join([*arguments, "exact=True"])
    for bound, places in _BOUNDS:
        value = given.get(bound)
        value = given.get(places) if value in {None, "none", _EMPTY} else value
        if value is not None:
            arguments.append(f"{bound}={'none' if value == _EMPTY else value}")
    return ", ".join(arguments)
