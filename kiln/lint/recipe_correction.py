"""Correct a recipe where a message has one answer; all other bytes of the file stay as they are.

Each rule's corrections are made together, then the recipe is read again: if it cannot be read, or spelling alone was to
be corrected and values changed, these corrections are withdrawn. Sections that are reordered are moved with the
comments above them.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.errors import KilnError
from kiln.lint import check
from kiln.lint.line_fixes import LINE_FIXES, SPELLING, spaced_expressions
from kiln.lint.linted_feedstock import LintedRecipe, recipe_files
from kiln.lint.section_rules import REQUIREMENTS_ORDER, expected_section_order

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kiln.lint.rule_model import LintMessage
    from kiln.model.feedstock import Feedstock

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
    """Return the line break of the first line."""
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
