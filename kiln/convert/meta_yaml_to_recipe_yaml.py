"""Convert the text of a meta.yaml to that of a recipe.yaml."""

from __future__ import annotations

import json
import re
from dataclasses import replace
from typing import TYPE_CHECKING

import yaml

from kiln.convert.conditional_parts import IfThenElsePart
from kiln.convert.meta_yaml_tree import DictPart, ListPart, RecipePart, ScalarPart, UnconvertiblePart, recipe_tree
from kiln.convert.recipe import RecipeConverter
from kiln.convert.sections import FeedstockFacts, SectionConverter
from kiln.convert.specs import SpecConverter
from kiln.convert.statements import expand_statements
from kiln.errors import ConversionRefused, KilnError, combined_error
from kiln.model.source_position import Place

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator


META = "recipe/meta.yaml"
_HINT = "change it in meta.yaml to something that both formats have, and convert again"
SCHEMA = "# yaml-language-server: $schema=https://raw.githubusercontent.com/prefix-dev/recipe-format/main/schema.json"
_TYPED = re.compile(r"[-+.]?\d[\d.eExX_+-]*|true|false|yes|no|on|off|null|~|y|n", re.IGNORECASE)
_WORDS = re.compile(r"\w[\w./-]*(?: [\w./-]+)*", re.ASCII)
_STEP = "  "


def recipe_yaml_text(meta: str, given: FeedstockFacts) -> str:
    """Return the text of the recipe.yaml.

    Raises:
        ConversionRefused: parts of the recipe have no equivalent; each is named with its line.
    """
    lines = expand_statements(meta, given.always, given.values)
    faults = [UnconvertiblePart(number, why) for number, why in lines.faults]
    try:
        tree = recipe_tree(lines)
        constants = {each.name: str(each.value.constant) for each in lines.settings if each.value.is_constant}
        sections = SectionConverter(SpecConverter(given.values, constants, given.run_pins), given)
        recipe = RecipeConverter(lines, tree, sections).converted_recipe()
        faults += sections.faults
    except UnconvertiblePart as refused:
        raise _combined_refusal_error([*faults, refused]) from refused
    if faults:
        raise _combined_refusal_error(faults)
    return _text_with_lost_comments(recipe, lines.comments.values())


def _text_with_lost_comments(recipe: DictPart, comments: Iterable[str]) -> str:
    """Return the text of a recipe; comments whose place has no equivalent are at its end."""
    text = serialize_recipe(recipe)
    lost = [comment for comment in comments if comment not in text]
    return serialize_recipe(replace(recipe, below=[*recipe.below, *lost])) if lost else text


def _combined_refusal_error(faults: Iterable[UnconvertiblePart]) -> KilnError:
    error = combined_error(
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


def serialize_recipe(recipe: DictPart) -> str:
    """Return the text of a recipe; a blank line separates its sections."""
    sections = ["\n".join(_key_value_lines(key, value, "")) for key, value in recipe.pairs]
    lines = [*sections, *(["\n".join(recipe.below)] if recipe.below else [])]
    return f"{SCHEMA}\nschema_version: 1\n\n" + "\n\n".join(lines) + "\n"


def _key_value_lines(key: str, value: RecipePart, indent: str) -> Iterator[str]:
    yield from _indented_comments(value.above, indent)
    name = yaml_scalar_text(key, plain=True)
    if isinstance(value, ScalarPart):
        yield from _scalar_lines(f"{indent}{name}:", value, indent)
        return
    behind = f"  {value.behind}" if value.behind else ""
    inner = list(_yaml_lines_of_part(value, indent + _STEP))
    empty = "" if inner else " []" if isinstance(value, ListPart) else " {}"
    yield f"{indent}{name}:{empty}{behind}"
    yield from inner


def _yaml_lines_of_part(value: RecipePart, indent: str) -> Iterator[str]:
    if isinstance(value, DictPart):
        for key, item in value.pairs:
            yield from _key_value_lines(key, item, indent)
    elif isinstance(value, ListPart):
        for item in value.items:
            yield from _list_item_lines(item, indent)


def _list_item_lines(value: RecipePart, indent: str) -> Iterator[str]:
    yield from _indented_comments(value.above, indent)
    if isinstance(value, ScalarPart):
        yield from _scalar_lines(f"{indent}-", value, indent)
    else:
        as_keys = _condition_as_mapping(value) if isinstance(value, IfThenElsePart) else value
        first, *rest = list(_yaml_lines_of_part(as_keys, indent + _STEP)) or [f"{indent}{_STEP}{{}}"]
        while first.lstrip().startswith("#") and rest:  # an item begins with its first key, not with a comment
            yield f"{indent}{first.strip()}"
            first, *rest = rest
        yield f"{indent}- {first.strip()}"
        yield from rest
    yield from _indented_comments(value.below, indent)


def _condition_as_mapping(value: IfThenElsePart) -> DictPart:
    branches: list[tuple[str, RecipePart]] = [
        ("if", ScalarPart(pieces=(value.condition,), behind=value.behind)),
        ("then", ListPart(items=value.then)),
    ]
    return DictPart(pairs=[*branches, *([("else", ListPart(items=value.otherwise))] if value.otherwise else [])])


def _indented_comments(lines: Iterable[str], indent: str) -> Iterator[str]:
    yield from (f"{indent}{line}" for line in lines)


def _scalar_lines(head: str, value: ScalarPart, indent: str) -> Iterator[str]:
    behind = f"  {value.behind}" if value.behind else ""
    setting = value.template_text
    if setting.endswith("\n\n"):  # in a block it would depend on the lines that follow
        yield f"{head} {json.dumps(setting, ensure_ascii=False)}{behind}"
    elif "\n" in setting:
        keep = "" if setting.endswith("\n") else "-"
        first = setting.split("\n", 1)[0]
        hint = str(len(_STEP)) if first.startswith(" ") or not first else ""
        yield f"{head} |{hint}{keep}{behind}"
        yield from (f"{indent}{_STEP}{line}".rstrip() for line in setting.removesuffix("\n").split("\n"))
    elif not value.pieces:
        yield f"{head}{behind}"
    else:
        yield f"{head} {yaml_scalar_text(setting, plain=value.plain)}{behind}"


def yaml_scalar_text(text: str, *, plain: bool) -> str:
    """Return a text as a scalar of YAML; one that was quoted stays text where it could be a number or a truth value."""
    if (plain or not _TYPED.fullmatch(text)) and _is_valid_plain_scalar(text):
        return text
    if "'" not in text and ('"' in text or "\\" in text):
        return f"'{text}'"
    return json.dumps(text, ensure_ascii=False)


def _is_valid_plain_scalar(text: str) -> bool:
    if not text or text != text.strip():
        return False
    if len(text) < 100 and _WORDS.fullmatch(text):  # most texts: YAML's parser takes a millisecond for each
        return True
    try:
        for line in (f"- {text}", f"{text}: x"):
            yaml.compose(line, Loader=yaml.SafeLoader)
        node = yaml.compose(f"x: {text}", Loader=yaml.SafeLoader)
    except yaml.YAMLError:
        return False
    value = node.value[0][1] if isinstance(node, yaml.MappingNode) else None
    return isinstance(value, yaml.ScalarNode) and value.style is None and value.value == text
