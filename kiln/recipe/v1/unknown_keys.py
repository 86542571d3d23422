"""The keys of a recipe.yaml that no section has, in all branches of conditions, without evaluating anything."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any, NamedTuple

from kiln.recipe.v1 import sections as v1_sections
from kiln.recipe.v1.sections import ScriptSchema

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

_SECTIONS: dict[str, v1_sections.Kind] = {
    "package": v1_sections.PACKAGE,
    "recipe": v1_sections.PACKAGE,
    "source": v1_sections.SOURCE,
    "build": v1_sections.BUILD,
    "requirements": v1_sections.REQUIREMENTS,
    "tests": v1_sections.TESTS,
    "about": v1_sections.ABOUT,
}
_STAGING: dict[str, v1_sections.Kind] = {
    "source": v1_sections.SOURCE,
    "build": v1_sections.STAGING_BUILD,
    "requirements": v1_sections.STAGING_REQUIREMENTS,
}


class UnknownKey(NamedTuple):
    """A key that its section does not have, and those that it has."""

    key: Any
    section: str
    known: tuple[str, ...]


def unknown_keys(root: Mapping[Any, Any]) -> Iterator[UnknownKey]:
    """Yield the unknown keys below the sections of a recipe, and of its outputs; those of the root are not checked."""
    yield from _unknown_keys_of_sections(root, _SECTIONS)
    for output in items_of_all_branches(root.get("outputs")):
        if not isinstance(output, dict):
            continue
        known = v1_sections.STAGING if "staging" in output else v1_sections.OUTPUT
        yield from _unknown_keys_among(output, known, "an output")
        yield from _unknown_keys_of_sections(output, _STAGING if "staging" in output else _SECTIONS)


def _unknown_keys_of_sections(
    holder: Mapping[Any, Any], sections: Mapping[str, v1_sections.Kind]
) -> Iterator[UnknownKey]:
    for name, kind in sections.items():
        yield from _unknown_keys_of_schema(kind, holder.get(name))


def _unknown_keys_of_schema(kind: v1_sections.Kind, node: Any) -> Iterator[UnknownKey]:
    if isinstance(kind, v1_sections.ListSchema):
        for item in items_of_all_branches(node):
            yield from _unknown_keys_of_schema(kind.kind, item)
    elif isinstance(kind, (v1_sections.MappingOrOtherSchema, ScriptSchema)):
        yield from _unknown_keys_of_schema(kind.of_mapping, node)
    elif isinstance(kind, v1_sections.SectionSchema) and isinstance(node, dict) and "if" not in node:
        known = [key for key in node if not kind.is_experimental_key(key)]
        yield from _unknown_keys_among(known, kind.kinds, kind.name)
        for key, value in node.items():
            if key in kind.kinds:
                yield from _unknown_keys_of_schema(kind.kinds[key], value)


def _unknown_keys_among(keys: Any, known: Any, section: str) -> Iterator[UnknownKey]:
    yield from (UnknownKey(key, section, tuple(known)) for key in keys if key not in known)


def items_of_all_branches(node: Any) -> Iterator[Any]:
    """Yield the items of a conditional list, of all branches; a single item stands for a list of it."""
    for item in node if isinstance(node, list) else [node]:
        if isinstance(item, dict) and "if" in item:
            yield from items_of_all_branches(item.get("then"))
            yield from items_of_all_branches(item.get("else"))
        elif item is not None:
            yield item
