"""Convert the text of a meta.yaml to that of a recipe.yaml."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.convert.emit import text_of
from kiln.convert.package_tests import PackageTestConverter
from kiln.convert.recipe import Converter
from kiln.convert.sections import FeedstockFacts, SectionConverter
from kiln.convert.specs import SpecConverter
from kiln.convert.statements import expanded
from kiln.convert.tree import Refused, tree_of
from kiln.errors import ConversionRefused, combined
from kiln.model.source_position import Place

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.convert.tree import DictPart
    from kiln.errors import KilnError

META = "recipe/meta.yaml"
_HINT = "change it in meta.yaml to something that both formats have, and convert again"


def recipe_text(meta: str, given: FeedstockFacts) -> str:
    """Return the text of the recipe.yaml.

    Raises:
        ConversionRefused: parts of the recipe have no equivalent; each is named with its line.
    """
    lines = expanded(meta, given.always, given.values)
    faults = [Refused(number, why) for number, why in lines.faults]
    try:
        tree = tree_of(lines)
        constants = {each.name: str(each.value.constant) for each in lines.settings if each.value.is_constant}
        sections = SectionConverter(SpecConverter(given.values, constants, given.run_pins), given)
        converter = Converter(lines, tree, sections, PackageTestConverter(sections))
        recipe = converter.recipe()
        faults += sections.faults
    except Refused as refused:
        raise _refusal([*faults, refused]) from refused
    if faults:
        raise _refusal(faults)
    return _with_comments(recipe, lines.comments.values())


def _with_comments(recipe: DictPart, comments: Iterable[str]) -> str:
    """Return the text of a recipe; comments whose place has no equivalent are at its end."""
    text = text_of(recipe)
    lost = [comment for comment in comments if comment not in text]
    return text_of(replace(recipe, below=[*recipe.below, *lost])) if lost else text


def _refusal(faults: Iterable[Refused]) -> KilnError:
    error = combined(
        ConversionRefused(
            "this cannot be carried over to recipe.yaml",
            at=Place(file=META, line=fault.number, column=1 if fault.number else 0),
            why=str(fault),
            hint=fault.hint,
        )
        for fault in sorted(faults, key=lambda each: each.number)
    )
    error.hint = error.hint or _HINT
    return error
