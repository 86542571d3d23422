"""Corrections of one line of a recipe: each takes the line without its line break, and returns the new line or lines.

A line that has no certain correction is returned unchanged.
"""

from __future__ import annotations

import re
from functools import cache
from typing import TYPE_CHECKING

from kiln.lint.located_yaml import typed_scalar
from kiln.lint.match_spec_parts import has_separated_fields
from kiln.lint.spdx_expressions import LicenseExpression, spdx_identifiers
from kiln.lint.text_rules import EXPRESSIONS, FORMER_INDEX, INDEX, SELECTOR
from kiln.yamltext import PlacedText

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

_SET = re.compile(r"(\s*)\{%\s*set\s+(\w+(?:,\w+)*)\s*=\s*(\S+?)\s*([-+]?)%\}(.*)")
_BRACKET = re.compile(r"(#\s*\[)([^\[\]]+)(\])")
_OLD_PYTHON = re.compile(r"\bpy(\d{2,3})\b")
_ITEM = re.compile(r"(?P<before>\s*(?:- )+\s*)(?P<quote>['\"]?)(?P<spec>[^'\"#]+?)(?P=quote)(?P<after>\s*(?:\s#.*)?)")
_BOUND = r"(?:[<>=!~]=|[<>=])\s*[\w.*+!]+"
_BOUNDED = re.compile(rf"([\w.-]+)\s*({_BOUND}(?:\s*[,|]\s*{_BOUND})*)")
# A name, a version and a build; that of name=1.2=0 is 1.2 for conda, and 1.2.* in conda-smithy's advice.
_WITH_BUILD = re.compile(r"([\w.-]+)(?:\s+|\s*==\s*)([\w.*+!]+)=([\w.*]+)")
_KEYWORDS = re.compile(
    r"([\w.-]+)\s*\[version=(['\"]?)([^'\"\],]+(?:,[^'\"\]=]+)*)\2(?:,\s*build=(['\"]?)([^'\"\],]+)\4)?\]"
)
_KEYWORD_ITEM = re.compile(
    r"(?P<before>\s*(?:- )+\s*)(?P<quote>['\"]?)(?P<spec>[\w.-]+\[.*\])(?P=quote)(?P<after>\s*(?:\s#.*)?)"
)
_COMPILER = re.compile(
    r"(?P<before>\s*- )(?P<braces>\$?\{\{) compiler\((?P<quote>['\"])(?P<m2w64>m2w64_)?[\w-]+(?P=quote)\) \}\}"
    r"(?P<after>.*)"
)
_LICENSE = re.compile(
    r"(?P<before>\s*license:\s+(?P<quote>['\"]?))(?P<name>[^'\"#]+?)(?P<after>(?P=quote)\s*(?:\s#.*)?)"
)
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


def modern_python_selector(line: str, _: int) -> str:
    """Write the selector ``py36`` as ``py==36``."""
    return _BRACKET.sub(lambda match: match[1] + _OLD_PYTHON.sub(r"py==\1", match[2]) + match[3], line)


def tidy_jinja_set(line: str, _: int) -> str:
    """Write a Jinja definition with single spaces."""
    match = _SET.fullmatch(line)
    return f"{match[1]}{{% set {match[2]} = {match[3]} {match[4]}%}}{match[5]}" if match else line


def spec_with_separated_fields(line: str, _: int) -> str:
    """Write a requirement as name, space, bounds without spaces; or as name, version and build."""
    item = _ITEM.fullmatch(line) or _KEYWORD_ITEM.fullmatch(line)
    spec = _separated_fields(item["spec"]) if item else ""
    if not item or not spec or not has_separated_fields(spec):
        return line
    return f"{item['before']}{item['quote']}{spec}{item['quote']}{item['after']}"


def _separated_fields(spec: str) -> str:
    """Return a spec in words; empty when it has none of the forms that mean one thing."""
    if bounded := _BOUNDED.fullmatch(spec):
        return f"{bounded[1]} {''.join(bounded[2].split())}"
    if exact := _WITH_BUILD.fullmatch(spec):
        return " ".join(exact.groups())
    if keywords := _KEYWORDS.fullmatch(spec):
        return " ".join(filter(None, (keywords[1], "".join(keywords[3].split()), keywords[5])))
    return ""


def abi3_as_boolean(line: str, _: int) -> str:
    """Write ``is_abi3 == 'true'`` as ``is_abi3``, and its opposite as ``not is_abi3``."""
    return _ABI3.sub(lambda match: "is_abi3" if (match[1] == "==") == (match[3] == "true") else "not is_abi3", line)


def without_feedstock_suffix(line: str, _: int) -> str:
    """Remove -feedstock from the name of a feedstock."""
    return re.sub(r"^(\s*feedstock-name:.*?)-feedstock(['\"]?\s*(?:\s#.*)?)$", r"\1\2", line)


def quoted_number(line: str, _: int) -> str:
    """Quote a number with a decimal point, or the Jinja expression that gives one."""
    match = _VALUE.fullmatch(line)
    if not match:
        return line
    value = match["value"]
    is_number = isinstance(typed_scalar(PlacedText(value, 0, 0, plain=True)), float)
    if not is_number and (not value.startswith("{{") or '"' in value):
        return line
    return f'{match["before"]}"{value}"{match["after"]}'


def maintainer_as_list(line: str, _: int) -> str:
    """Write one maintainer as a list of one, on a line of its own."""
    match = _NAME.fullmatch(line)
    if not match:
        return line
    indentation = " " * (len(line) - len(line.lstrip()) + 2)
    return f"{match['before']}{match['after']}\n{indentation}- {match['name']}"


def with_stdlib_after_compiler(line: str, _: int) -> str:
    """Add the C standard library after a compiler, under the same selector."""
    match = _COMPILER.fullmatch(line)
    if not match:
        return line
    library = f"{match['quote']}{match['m2w64'] or ''}c{match['quote']}"
    return f"{line}\n{match['before']}{match['braces']} stdlib({library}) }}}}{match['after']}"


def spdx_spelling(line: str, _: int) -> str:
    """Write identifiers of licenses as SPDX does, where they differ from one in case, or have spaces for hyphens."""
    match = _LICENSE.fullmatch(line)
    if not match:
        return line
    text = match["name"]
    for name in LicenseExpression.parse(text).unknown_licenses:
        whole = rf"(?<![\w.+-]){re.escape(name)}(?![\w.+-])"
        text = re.sub(whole, _identifiers_by_normalized_name().get(_normalized_license_name(name), name), text)
    return line if LicenseExpression.parse(text).unknown_licenses else f"{match['before']}{text}{match['after']}"


@cache
def _identifiers_by_normalized_name() -> dict[str, str]:
    return {_normalized_license_name(name): name for name in spdx_identifiers("license")}


def _normalized_license_name(name: str) -> str:
    return "-".join(name.lower().split())


def with_current_pypi_url(line: str, _: int) -> str:
    """Write PyPI's address in the place of its former one, which leads there; the hash still decides."""
    return line.replace(FORMER_INDEX, INDEX)


def with_build_number(line: str, _: int) -> str:
    """Write the build number 0, which is what a missing one means: into its empty key, or before the first key."""
    if re.fullmatch(r"\s+number:\s*(?:\s#.*)?", line):
        return re.sub(r"number:", "number: 0", line, count=1)
    if re.fullmatch(r"build:\s*(?:\s#.*)?", line):
        return f"{line}\n  number: 0"
    key = re.match(r"(\s+)[\w-]+:(?:\s|$)", line)
    return f"{key[1]}number: 0\n{line}" if key else line


LINE_FIXES: Mapping[str, Callable[[str, int], str]] = {
    "R-008": with_build_number,
    "R-025": spaced_expressions,
    "R0-001": tidy_selector,
    "R0-002": modern_python_selector,
    "R0-003": modern_python_selector,
    "R0-005": tidy_jinja_set,
    "R-021": spec_with_separated_fields,
    "R-022": spec_with_separated_fields,
    "R-048": spec_with_separated_fields,
    "R-033": with_stdlib_after_compiler,
    "R-044": spdx_spelling,
    "R-050": with_current_pypi_url,
    "R-038": abi3_as_boolean,
    "R-039": without_feedstock_suffix,
    "R-040": quoted_number,
    "R-004": maintainer_as_list,
}
# Fixes of spelling alone: the values of the recipe are the same before and after.
SPELLING = frozenset({"R-025", "R0-001", "R0-002", "R0-003", "R0-005", "R-001", "R-009", "R-011", "R-012"})
