"""The literals that build numbers come from, and their values after a bump."""

from __future__ import annotations

from collections import defaultdict
from typing import TYPE_CHECKING

from kiln.bump.literals import Literal, line_numbers_text, place_of_offset
from kiln.bump.recipe_views import RecipeText, Views, changed_value_positions, views_with_values
from kiln.errors import RecipeFault
from kiln.model.source_position import Place

if TYPE_CHECKING:
    from collections.abc import Mapping


_OFFSET = 100  # build numbers of variants differ by hundreds, so that one of them is preferred

Position = tuple[int, int]  # of a variant, and of a package in it


def new_build_numbers(recipe: RecipeText, views: Views, positions: frozenset[Position] | None) -> Mapping[Literal, str]:
    """Return the literals of build numbers with their new values.

    The packages at some positions begin again at 0, offsets of variants aside; without positions, all increase by 1.

    Raises:
        RecipeFault: a build number is not written out, or several literals make it up.
    """
    numbers = {
        (index, position): package.number
        for index, view in enumerate(views)
        if view is not None
        for position, package in enumerate(view.packages)
    }
    if positions is None:
        goals = {at for at, number in numbers.items() if number is not None} or set(numbers)
    else:
        goals = {at for at in positions if numbers.get(at)}
    literals = _build_number_literals(recipe, views)
    bases: dict[Literal, None] = {}
    of_package: dict[int, set[Literal]] = defaultdict(set)
    for at in sorted(goals):
        literal = _base_build_number_literal(
            recipe, [literal for literal, effects in literals.items() if at in effects], numbers[at]
        )
        if literal is not None:
            bases[literal] = None
            of_package[at[1]].add(literal)
    if positions is None:
        return {literal: str(int(literal.text) + 1) for literal in bases}
    for group in of_package.values():
        _require_offsets_of_hundreds(recipe, group)
    apart = {literal for group in of_package.values() if len(group) > 1 for literal in group}
    return {literal: str(int(literal.text) // _OFFSET * _OFFSET if literal in apart else 0) for literal in bases}


def _build_number_literals(recipe: RecipeText, views: Views) -> dict[Literal, frozenset[Position]]:
    """Return the literals of which a build number is the value or the sum, with the packages that each is for."""
    candidates = [literal for literal in recipe.literals if literal.alone and literal.text.isdecimal()]
    literals = {}
    for literal in candidates:
        after = views_with_values(recipe, {literal: str(int(literal.text) + 1)})
        effects, invalid = changed_value_positions(
            views, after, lambda view: [package.number for package in view.packages]
        )
        others, _ = changed_value_positions(
            views, after, lambda view: (view.version, *(source.identity for source in view.sources))
        )
        if effects and not invalid and not others and all(_is_raised_by_one(views, after, at) for at in effects):
            literals[literal] = effects
    return literals


def _is_raised_by_one(before: Views, after: Views, at: Position) -> bool:
    old, new = (views[at[0]] for views in (before, after))
    numbers = [view.packages[at[1]].number for view in (old, new) if view is not None]
    return len(numbers) == 2 and None not in numbers and numbers[1] == (numbers[0] or 0) + 1


def _base_build_number_literal(recipe: RecipeText, literals: list[Literal], number: int | None) -> Literal | None:
    """Return the literal that is the base of a build number: not one of the offsets that are added to it."""
    if len(literals) > 1:
        literals = [item for item in literals if int(item.text) % _OFFSET or item.text == "0"] or literals
    if len(literals) == 1:
        return literals[0]
    if literals:
        why = f"{line_numbers_text(recipe.text, literals)} are added up to {number}"
        at = place_of_offset(recipe.file, recipe.text, literals[0].start)
        raise RecipeFault("the build number has several parts", at=at, why=why, hint="change it by hand")
    index = recipe.text.find("number:")
    at = place_of_offset(recipe.file, recipe.text, index) if index >= 0 else Place(file=recipe.file)
    if number is None:
        raise RecipeFault("the recipe has no build number", at=at, hint="add 'number: 0' to its build section")
    why = f"it is {number}, computed from no number that stands alone in a line"
    raise RecipeFault(
        "the build number is computed", at=at, why=why, hint="write it as one number, or change it by hand"
    )


def _require_offsets_of_hundreds(recipe: RecipeText, literals: set[Literal]) -> None:
    """Refuse numbers of one package that differ by other offsets than hundreds.

    Raises:
        RecipeFault: they do.
    """
    if len({int(literal.text) % _OFFSET for literal in literals}) > 1:
        first = min(literals, key=lambda literal: literal.start)
        numbers = ", ".join(sorted({literal.text for literal in literals}, key=int))
        why = f"{line_numbers_text(recipe.text, literals)} have {numbers} for variants of one package"
        hint = "write one number, and add an offset of hundreds to it for some variants"
        at = place_of_offset(recipe.file, recipe.text, first.start)
        raise RecipeFault("the build numbers differ, and it is unclear which are offsets", at=at, why=why, hint=hint)
