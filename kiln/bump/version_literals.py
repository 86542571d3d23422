"""The literals that a recipe's version comes from, and their values for another version: found by trying them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln import name_rules
from kiln.bump.literals import Literal, line_numbers_text, place_of_offset
from kiln.bump.recipe_views import RecipeText, Views, changed_value_positions, views_with_values
from kiln.errors import RecipeFault, UsageError
from kiln.lazy_pattern import lazy_pattern
from kiln.model.source_position import Place
from kiln.versions import Version

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


_ARGUMENT = lazy_pattern(r"[0-9A-Za-z][0-9A-Za-z._+!-]*")
_MARK = "kilnmark{}x"
_TRIED = 60  # literals


def require_valid_version(text: str) -> None:
    """Refuse a text that cannot be a version.

    Raises:
        UsageError: the version is invalid; a hyphen is allowed, which recipes replace.
    """
    if not _ARGUMENT.fullmatch(text) or not text[0].isdigit() or len(text) > name_rules.MAX_LENGTH:
        why = "a version begins with a digit, and has letters, digits, '.', '_', '+', '!' and '-'"
        raise UsageError(f"invalid version {text!r}", why=why, hint="kiln bump 2.22.0")


def recipe_version(recipe: RecipeText, views: Views) -> str:
    """Return the version of a recipe.

    Raises:
        RecipeFault: it has none, or several.
    """
    versions = sorted({view.version for view in views if view is not None})
    if not versions:
        raise recipe.fault or RecipeFault(
            "the recipe is valid at no config and on no platform", at=_place_of_literals(recipe)
        )
    if len(versions) > 1:
        why = f"at its configs and platforms they are {', '.join(versions)}"
        lines = [literal for literal in recipe.literals if literal.text in versions]
        elsewhere = "change it where it is written, such as in conda_build_config.yaml"
        hint = f"change {line_numbers_text(recipe.text, lines)} by hand" if lines else elsewhere
        raise RecipeFault("the recipe has several versions", at=_place_of_literals(recipe, lines), why=why, hint=hint)
    if not versions[0]:
        raise RecipeFault("the recipe has no version", at=_place_of_literals(recipe))
    return versions[0]


def new_version_values(recipe: RecipeText, views: Views, version: str) -> Mapping[Literal, str]:
    """Return the literals that make up the version, with their values for another one.

    Raises:
        RecipeFault: the version is computed from something that is not written out, or in no way that can be inverted.
    """
    old = recipe_version(recipe, views)
    same = [literal for literal in recipe.literals if literal.text == old]
    values = {literal: version for literal in same if _changes_version(recipe, views, {literal: version})}
    if not (values and _rendered_version(recipe, values) == version):
        values = _value_of_single_literal(recipe, views, version) or _values_of_version_parts(recipe, version)
    if not values:
        require_valid_recipe(recipe, views, dict.fromkeys(same, version), version)
        raise _computed_version_error(recipe, old)
    return values


def require_valid_recipe(recipe: RecipeText, before: Views, values: Mapping[Literal, str], version: str) -> None:
    """Refuse values with which the recipe is invalid at a variant where it was valid.

    Raises:
        KilnError: the recipe's fault there.
    """
    after = views_with_values(recipe, values)
    fault = recipe.fault
    if fault is not None and any(old is not None and new is None for old, new in zip(before, after, strict=True)):
        raise type(fault)(f"with version {version}, {fault.what}", at=fault.at, why=fault.why, hint=fault.hint)


def _value_of_single_literal(recipe: RecipeText, views: Views, version: str) -> dict[Literal, str]:
    """Return the one literal that the version comes from in another spelling, such as ``2.30.4-1`` for ``2.30.4.1``."""
    parts = [
        literal for literal in _version_part_candidates(recipe) if _changes_version(recipe, views, {literal: version})
    ]
    if len(parts) != 1:
        return {}
    values = {parts[0]: version}
    rendered = _rendered_version(recipe, values)
    return values if rendered is not None and _is_same_version(rendered, version) else {}


def _values_of_version_parts(recipe: RecipeText, version: str) -> dict[Literal, str]:
    """Return literals such as a major and a minor version that the version is put together from."""
    marks = {literal: _MARK.format(index) for index, literal in enumerate(_version_part_candidates(recipe))}
    parts = {
        literal: mark for literal, mark in marks.items() if mark in (_rendered_version(recipe, {literal: mark}) or "")
    }
    rendered = _rendered_version(recipe, parts) if parts else None
    if rendered is None:
        return {}
    pattern, order = "", []
    for index, piece in enumerate(re.split(r"(kilnmark\d+x)", rendered)):
        literal = next((literal for literal, mark in parts.items() if mark == piece), None)
        if index % 2 and literal is not None:
            pattern += "([0-9A-Za-z]+)"
            order.append(literal)
        else:
            pattern += re.escape(piece)
    match = re.fullmatch(pattern, version)
    if match is None or len(set(order)) != len(order):
        return {}
    values = dict(zip(order, match.groups(), strict=True))
    values = {literal: value for literal, value in values.items() if value != literal.text}
    return values if _rendered_version(recipe, values) == version else {}


def _version_part_candidates(recipe: RecipeText) -> Sequence[Literal]:
    """Return the literals that may be a part of a version: those with a digit, except hashes."""
    return [
        literal
        for literal in recipe.literals
        if any(char.isdigit() for char in literal.text) and len(literal.text) < 32 and literal.key != "number"
    ][:_TRIED]


def _changes_version(recipe: RecipeText, views: Views, values: Mapping[Literal, str]) -> bool:
    after = views_with_values(recipe, values)
    positions, _ = changed_value_positions(views, after, lambda view: (view.version,))
    return bool(positions)


def _rendered_version(recipe: RecipeText, values: Mapping[Literal, str]) -> str | None:
    """Return the version of a changed text; None where it is not the same at all variants."""
    versions = {view.version for view in views_with_values(recipe, values) if view is not None}
    return versions.pop() if len(versions) == 1 else None


def _is_same_version(one: str, other: str) -> bool:
    """Return whether two versions differ in separators alone, which recipes replace."""
    return re.split(r"[._-]", one) == re.split(r"[._-]", other)


def downgrade_note(old: str, new: str) -> str:
    """Return a note if a version is not newer than the recipe's.

    Raises:
        UsageError: they are the same, or the new one is invalid in conda's order.
    """
    if fault := name_rules.invalid_name_reason(new, "version"):
        raise UsageError(f"invalid version {new!r}", why=fault)
    try:
        older = Version(new) < Version(old)
    except ValueError as error:
        raise UsageError(f"invalid version {new!r}", why=str(error)) from error
    if new == old:
        raise UsageError(f"the recipe has version {new}", hint="kiln bump --build increments the build number")
    return f"{new} is older than {old}" if older else ""


def _computed_version_error(recipe: RecipeText, old: str) -> RecipeFault:
    match = re.search(r"(?<![\w.-])version['\"]?[ \t]*[:=]", recipe.text)
    at = place_of_offset(recipe.file, recipe.text, match.start()) if match else _place_of_literals(recipe)
    why = f"it is {old}, but no value of a line, and no values put together by separators, give another version alone"
    return RecipeFault("the version is computed", at=at, why=why, hint="write it as one value, or change it by hand")


def _place_of_literals(recipe: RecipeText, literals: Sequence[Literal] = ()) -> Place:
    return place_of_offset(recipe.file, recipe.text, literals[0].start) if literals else Place(file=recipe.file)
