"""Correct a recipe where a message has one answer; all other bytes of the file stay as they are."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cache
from typing import TYPE_CHECKING, Any

from kiln.base.errors import KilnError
from kiln.base.yaml import PlacedText
from kiln.feedstock.lint.check import check
from kiln.feedstock.lint.metadata import LicenseExpression, spdx_identifiers
from kiln.feedstock.lint.model import LintedRecipe, recipe_files
from kiln.feedstock.lint.reading import typed_scalar
from kiln.feedstock.lint.requirements import spec_in_words
from kiln.feedstock.lint.sections import REQUIREMENTS_ORDER, expected_section_order
from kiln.feedstock.lint.texts import EXPRESSIONS, FORMER_INDEX, INDEX, SELECTOR
from kiln.recipe.template.selectors import lines_with_selectors

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kiln.feedstock.lint.model import LintMessage
    from kiln.recipe.feedstock import Feedstock


_SET = re.compile(r"(\s*)\{%\s*set\s+(\w+(?:,\w+)*)\s*=\s*(\S+?)\s*([-+]?)%\}(.*)")
_BRACKET = re.compile(r"(#\s*\[)([^\[\]]+)(\])")
_OLD_PYTHON = re.compile(r"\bpy(\d{2,3})\b")
_ITEM = re.compile(r"(?P<before>\s*(?:- )+\s*)(?P<quote>['\"]?)(?P<spec>[^'\"#]+?)(?P=quote)(?P<after>\s*(?:\s#.*)?)")
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
    """Write a selector in a comment as ``  # [selector]``; more than two spaces, which align selectors, stay.

    A comment before the selector moves behind it, unless conda-build would read another selector then.
    """
    match = SELECTOR.match(line)
    if not match or not match["sign"]:
        return line
    text = match["text"].rstrip()
    space = line[len(text) : match.start("sign")]
    comment = match["sign"].strip("# \t")
    behind = f" {comment}" if comment else ""
    rest = line[match.end("expression") + 1 :]
    tidied = f"{text}{space if len(space) > 2 else '  '}# [{match['expression'].strip()}]{behind}{rest}"
    return tidied if not comment or _selection(tidied) == _selection(line) else line


def _selection(text: str) -> list[tuple[str, str]]:
    """Return what conda-build reads of each line: its text, and its selector, if any."""
    return [(line.text, (line.selector or "").strip()) for line in lines_with_selectors(text)]


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
    spec = spec_in_words(item["spec"]) if item else ""
    if not item or not spec:
        return line
    return f"{item['before']}{item['quote']}{spec}{item['quote']}{item['after']}"


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


_LINE = re.compile(r"[^\r\n]*(?:\r\n|\r|\n)|[^\r\n]+$")
_BREAKS = "\r\n"
_KEY = re.compile(r"(\s*)(?:'([^']+)'|\"([^\"]+)\"|([\w$-]+))\s*:(?:\s|$)")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeCorrection:
    """A recipe's new text, and the messages that it answers."""

    text: str
    fixed: tuple[LintMessage, ...]


def correct_recipe(feedstock: Feedstock, text: str, *, of_conda_forge: bool = False) -> RecipeCorrection:
    """Return the correction of a feedstock's recipe, whose text is ``text``.

    Raises:
        KilnError: the recipe or the settings cannot be read.
    """
    file = recipe_files(feedstock)[0]
    recipe = LintedRecipe.from_text(text, file)
    before = messages = check(feedstock, recipe, of_conda_forge=of_conda_forge)
    for rule in dict.fromkeys(message.id for message in messages if message.fixable):
        of_rule = [message for message in messages if message.id == rule and message.at.file == file]
        new_text = _text_with_rule_corrected(recipe, rule, text, of_rule)
        new_recipe = _parsed_recipe_or_none(new_text, file) if new_text != text else None
        if new_recipe is None or (rule in SPELLING and _normalized_values(new_recipe) != _normalized_values(recipe)):
            continue
        text, recipe = new_text, new_recipe
        messages = check(feedstock, recipe, of_conda_forge=of_conda_forge)
    remaining = {(message.id, message.text) for message in messages}
    fixed = tuple(message for message in before if (message.id, message.text) not in remaining)
    return RecipeCorrection(text=text, fixed=fixed)


def _parsed_recipe_or_none(text: str, file: str) -> LintedRecipe | None:
    try:
        return LintedRecipe.from_text(text, file)
    except KilnError:
        return None


def _normalized_values(recipe: LintedRecipe) -> Any:
    """Return the values of a recipe, with single spaces in its expressions."""

    def spaced(value: Any) -> Any:
        if isinstance(value, dict):
            return {key: spaced(item) for key, item in value.items()}
        if isinstance(value, list):
            return [spaced(item) for item in value]
        return spaced_expressions(value, recipe.version) if isinstance(value, str) else value

    return spaced(recipe.root)


def _text_with_rule_corrected(recipe: LintedRecipe, rule: str, text: str, messages: Sequence[LintMessage]) -> str:
    lines = _LINE.findall(text)
    if rule in LINE_FIXES:
        for number in {message.at.line for message in messages}:
            if 0 < number <= len(lines):
                line = lines[number - 1]
                bare = line.rstrip(_BREAKS)
                new_line = LINE_FIXES[rule](bare, recipe.version).replace("\n", _line_break_style(lines))
                lines[number - 1] = new_line + line[len(bare) :]
    elif rule == "R-001":
        lines = reordered_blocks(_with_final_line_break(lines), expected_section_order(recipe)) or lines
    elif rule == "R-009":
        lines = _ordered_requirements(_with_final_line_break(lines))
    elif rule in {"R-011", "R-012"}:
        lines = [text.rstrip(_BREAKS), _line_break_style(lines)]
    return "".join(lines)


def _ordered_requirements(lines: list[str]) -> list[str]:
    block = line_range_of_block(lines, "requirements")
    if block is None:
        return lines
    start, end = block
    block_lines = reordered_blocks(lines[start:end], REQUIREMENTS_ORDER, first_indentation(lines[start:end]))
    return [*lines[:start], *(block_lines or lines[start:end]), *lines[end:]]


def _with_final_line_break(lines: list[str]) -> list[str]:
    """Return lines of which the last one ends too, so that it can be moved."""
    if lines and not lines[-1].endswith(("\r", "\n")):
        return [*lines[:-1], lines[-1] + _line_break_style(lines)]
    return lines


def _line_break_style(lines: Sequence[str]) -> str:
    first = lines[0] if lines else ""
    return first[len(first.rstrip(_BREAKS)) :] or "\n"


def reordered_blocks(lines: Sequence[str], order: Sequence[str], indentation: str = "") -> list[str] | None:
    """Return lines with the blocks that begin at keys of this indentation in order; keys not in ``order`` come last.

    Lines before the first key stay. Blank lines between the blocks stay where they are, whatever block moves there.
    None means that a key stands there twice, so that moving it could change which one counts.
    """
    starts = [index for index, line in enumerate(lines) if _key_of_line(line, indentation)]
    names = [_key_of_line(lines[index], indentation) for index in starts]
    if len(set(names)) != len(names):
        return None
    starts = [_first_line_with_comments(lines, index, indentation) for index in starts]
    blocks, gaps = [], []
    for start, end in zip(starts, [*starts[1:], len(lines)], strict=True):
        block = list(lines[start:end])
        blank = 0
        while block and not block[-1].strip():
            blank += 1
            block.pop()
        blocks.append(block)
        gaps.append(list(lines[end - blank : end]))
    ranks = [order.index(name) if name in order else len(order) for name in names]
    sequence = [blocks[index] for index in sorted(range(len(blocks)), key=ranks.__getitem__)]
    body = [line for block, gap in zip(sequence, gaps, strict=True) for line in (*block, *gap)]
    return [*lines[: starts[0] if starts else 0], *body]


def _key_of_line(line: str, indentation: str) -> str:
    match = _KEY.match(line)
    return next(filter(None, match.groups()[1:]), "") if match and match[1] == indentation else ""


def _first_line_with_comments(lines: Sequence[str], index: int, indentation: str) -> int:
    """Return the first line of the comments and definitions right above a line."""
    while index and lines[index - 1].startswith((f"{indentation}#", f"{indentation}{{%")):
        index -= 1
    return index


def line_range_of_block(lines: Sequence[str], key: str) -> tuple[int, int] | None:
    """Return the range of lines below an outermost key; None if the key is missing or stands there twice."""
    starts = [index for index, line in enumerate(lines) if _key_of_line(line, "") == key]
    if len(starts) != 1:
        return None
    end = starts[0] + 1
    while end < len(lines) and (not lines[end].strip() or lines[end][0] in " \t#{"):
        end += 1
    while end > starts[0] + 1 and (not lines[end - 1].strip() or lines[end - 1][0] in "#{"):
        end -= 1
    return starts[0] + 1, end


def first_indentation(lines: Sequence[str]) -> str:
    """Return the indentation of the first key."""
    return next((match[1] for line in lines if (match := _KEY.match(line))), "")
