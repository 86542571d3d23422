"""Corrections of one line of a recipe: each takes the line without its line break, and returns the new line or lines.

A line that has no certain correction is returned unchanged.
"""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.lint.located_yaml import typed_scalar
from kiln.lint.spec_fields import is_separated
from kiln.lint.text_rules import EXPRESSIONS, SELECTOR
from kiln.yamltext import PlacedText

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SET = re.compile(r"(\s*)\{%\s*set\s+(\w+(?:,\w+)*)\s*=\s*(\S+?)\s*([-+]?)%\}(.*)")
_BRACKET = re.compile(r"(#\s*\[)([^\[\]]+)(\])")
_OLD_PYTHON = re.compile(r"\bpy(\d{2,3})\b")
_ITEM = re.compile(r"(?P<before>\s*(?:- )+\s*)(?P<quote>['\"]?)(?P<spec>[^'\"#]+?)(?P=quote)(?P<after>\s*(?:\s#.*)?)")
_BOUND = r"(?:[<>=!~]=|[<>=])\s*[\w.*+!]+"
_BOUNDED = re.compile(rf"([\w.-]+)\s*({_BOUND}(?:\s*[,|]\s*{_BOUND})*)")
_ABI3 = re.compile(r"is_abi3\s*(==|!=)\s*(['\"])(true|false)\2")
_VALUE = re.compile(
    r"(?P<before>\s*(?:- )*[\w-]+:\s+)(?P<value>[^\s'\"#\[{&*!|>%@`][^#]*?|\{\{[^{}]*\}\})(?P<after>\s*(?:\s#.*)?)"
)
_NAME = re.compile(r"(?P<before>\s*recipe-maintainers:)\s+(?P<name>[\w-]+)(?P<after>\s*(?:\s#.*)?)")


def spaced_expressions(line: str, version: int) -> str:
    """Put one space inside the braces of Jinja expressions; signs that trim white space stay as they are."""

    def spaced(match: re.Match[str]) -> str:
        name = match[1].strip()
        if not name or name[0] in "-+" or name[-1] in "-+":
            return match[0]
        return f"{match[0][: match.start(1) - match.start()]} {name} }}}}"

    return EXPRESSIONS[version].sub(spaced, line)


def tidy_selector(line: str, _: int) -> str:
    """Write a selector in a comment as ``  # [selector]``; more than two spaces, which align selectors, stay."""
    match = SELECTOR.match(line)
    if not match or not match["sign"]:
        return line
    text = match["text"].rstrip()
    space = line[len(text) : match.start("sign")]
    end = match.end("expression") + 1
    return f"{text}{space if len(space) > 2 else '  '}# [{match['expression'].strip()}]{line[end:]}"


def python_comparison(line: str, _: int) -> str:
    """Write the selector ``py36`` as ``py==36``."""
    return _BRACKET.sub(lambda match: match[1] + _OLD_PYTHON.sub(r"py==\1", match[2]) + match[3], line)


def tidy_set(line: str, _: int) -> str:
    """Write a Jinja definition with single spaces."""
    match = _SET.fullmatch(line)
    return f"{match[1]}{{% set {match[2]} = {match[3]} {match[4]}%}}{match[5]}" if match else line


def separated_spec(line: str, _: int) -> str:
    """Write a requirement as name, space, bounds without spaces."""
    item = _ITEM.fullmatch(line)
    bounded = _BOUNDED.fullmatch(item["spec"]) if item else None
    if not item or not bounded:
        return line
    spec = f"{bounded[1]} {''.join(bounded[2].split())}"
    return f"{item['before']}{item['quote']}{spec}{item['quote']}{item['after']}" if is_separated(spec) else line


def abi3_truth(line: str, _: int) -> str:
    """Write ``is_abi3 == 'true'`` as ``is_abi3``, and its opposite as ``not is_abi3``."""
    return _ABI3.sub(lambda match: "is_abi3" if (match[1] == "==") == (match[3] == "true") else "not is_abi3", line)


def without_suffix(line: str, _: int) -> str:
    """Remove -feedstock from the name of a feedstock."""
    return re.sub(r"^(\s*feedstock-name:.*?)-feedstock(['\"]?\s*(?:\s#.*)?)$", r"\1\2", line)


def quoted_value(line: str, _: int) -> str:
    """Quote a number with a decimal point, or the Jinja expression that gives one."""
    match = _VALUE.fullmatch(line)
    if not match:
        return line
    value = match["value"]
    is_number = isinstance(typed_scalar(PlacedText(value, 0, 0, plain=True)), float)
    if not is_number and (not value.startswith("{{") or '"' in value):
        return line
    return f'{match["before"]}"{value}"{match["after"]}'


def listed_maintainer(line: str, _: int) -> str:
    """Write one maintainer as a list of one, on a line of its own."""
    match = _NAME.fullmatch(line)
    if not match:
        return line
    indentation = " " * (len(line) - len(line.lstrip()) + 2)
    return f"{match['before']}{match['after']}\n{indentation}- {match['name']}"


LINE_FIXES: Mapping[str, Callable[[str, int], str]] = {
    "R-025": spaced_expressions,
    "R0-001": tidy_selector,
    "R0-002": python_comparison,
    "R0-003": python_comparison,
    "R0-005": tidy_set,
    "R-021": separated_spec,
    "R-022": separated_spec,
    "R-048": separated_spec,
    "R-038": abi3_truth,
    "R-039": without_suffix,
    "R-040": quoted_value,
    "R-004": listed_maintainer,
}
# Fixes of spelling alone: the values of the recipe are the same before and after.
SPELLING = frozenset({"R-025", "R0-001", "R0-002", "R0-003", "R0-005", "R-001", "R-009", "R-011", "R-012"})
