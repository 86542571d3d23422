"""Values of YAML 1.2 with their places, as conda-smithy's linter reads them."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.lazy_pattern import lazy_pattern
from kiln.serialization import mapping_or_empty
from kiln.yamltext import PlacedText, ScalarInterpretation, parse_document, read_text
from kiln.yamltext.text_with_typed_value import NULLS, SPELLINGS_OF_TRUTH

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

_INTEGER = lazy_pattern(r"[-+]?[0-9][0-9_]*|0o[0-7]+|0x[0-9a-fA-F]+")
_FLOAT = lazy_pattern(
    r"[-+]?[0-9][0-9_]*\.[0-9_]*(?:[eE][-+]?[0-9]+)?|[-+]?[0-9][0-9_]*[eE][-+]?[0-9]+|[-+]?\.[0-9_]+(?:[eE][-+][0-9]+)?"
)
_MERGE = "<<"


def read_values(text: str, file: str, line_of: Callable[[int], int] | None = None) -> Any:
    """Return the values of a YAML document: keys and texts are PlacedText, other scalars have their YAML 1.2 types.

    Of a repeated key the first value counts.

    Raises:
        MalformedYaml, UnsafeTemplate: as for `kiln.yamltext.parse_document`.
    """
    return _typed_values(parse_document(text, file, ScalarInterpretation.PLACED, line_of, first_counts=True).value)


def outermost_keys_of_file(path: Path, file: str) -> set[str]:
    """Return the outermost keys of a YAML file; ``file`` is its name in errors.

    Raises:
        MalformedYaml, UnsafeTemplate: as for `kiln.yamltext.parse_document`.
    """
    return {str(key) for key in mapping_or_empty(read_values(read_text(path, file), file))}


def repeated_keys(text: str, file: str, line_of: Callable[[int], int] | None = None) -> tuple[PlacedText, ...]:
    """Return the keys of a YAML document that stand in their mapping for a second time.

    Raises:
        MalformedYaml, UnsafeTemplate: as for `kiln.yamltext.parse_document`.
    """
    return parse_document(text, file, ScalarInterpretation.PLACED, line_of, first_counts=True).repeated


def _typed_values(node: Any) -> Any:
    if isinstance(node, PlacedText):
        return typed_scalar(node)
    if isinstance(node, list):
        return [_typed_values(item) for item in node]
    if not isinstance(node, dict):
        return node
    values = {key: _typed_values(value) for key, value in node.items() if key != _MERGE}
    merged = node.get(_MERGE)
    for part in merged if isinstance(merged, list) else [merged]:
        for key, value in part.items() if isinstance(part, dict) else ():
            values.setdefault(key, _typed_values(value))
    return values


def typed_scalar(node: PlacedText) -> Any:
    """Return a scalar's value; text stays placed."""
    if not node.plain:
        return node
    if node in NULLS:
        return None
    if node in SPELLINGS_OF_TRUTH:
        return SPELLINGS_OF_TRUTH[node]
    if _FLOAT.fullmatch(node):
        return float(node.replace("_", ""))
    if _INTEGER.fullmatch(node):
        base = {"0o": 8, "0x": 16}.get(node[:2], 10)
        # Python refuses to read very long numbers; no rule needs their value.
        return int(node.replace("_", ""), base) if len(node) < 100 else str(node)
    return node


def list_or_empty(value: Any) -> list[Any]:
    """Return a value if it is a list, else an empty list."""
    return value if isinstance(value, list) else []


def texts_in_list(value: Any) -> list[str]:
    """Return the texts in a list; empty for other values."""
    return [item for item in list_or_empty(value) if isinstance(item, str)]


def key_with_place(values: dict[Any, Any], name: str) -> str:
    """Return the key of this name, with its place if it is in the document."""
    return next((key for key in values if key == name), name)


def first_placed_text(node: Any) -> PlacedText | None:
    """Return the first text of a value, which shows where the value begins."""
    if isinstance(node, PlacedText):
        return node
    children = [*node.keys(), *node.values()] if isinstance(node, dict) else list_or_empty(node)
    return next((text for child in children if (text := first_placed_text(child)) is not None), None)


def branch_items(value: Any) -> Iterator[Any]:
    """Yield the items of a recipe.yaml list with those of all branches of its conditions; a single item as well."""
    for item in value if isinstance(value, list) else [value]:
        if isinstance(item, dict) and item.get("if") is not None:
            yield from branch_items(item.get("then"))
            if item.get("else"):
                yield from branch_items(item["else"])
        else:
            yield item


def branch_texts(value: Any) -> list[str]:
    """Return the texts of a recipe.yaml list, of all branches of its conditions."""
    return [] if value is None else [item for item in branch_items(value) if isinstance(item, str)]
