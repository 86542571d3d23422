"""variants.yaml: a variant file whose lists hold conditions in the place of selectors.

Unquoted numbers and truth values keep their kind, as they do in conda-smithy; a number with a dot is text.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.errors import MalformedYaml, SelectorFault, VariantFault
from kiln.model.source_position import Place
from kiln.recipe_v1 import node_evaluation
from kiln.template.namespace import Namespace
from kiln.template.python_expression import ExpressionError, MissingName, evaluate_expression
from kiln.variants.files import VariantSource, check_variant_source, without_empty_values, zip_groups
from kiln.yamltext import Document, PlacedText, ScalarInterpretation, parse_document, read_text
from kiln.yamltext.text_with_typed_value import TypedText, scalar_value

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kiln.variants.platform_properties import Platform


class VariantFileV1:
    """A variants.yaml on disk; each platform sees its own part of it."""

    def __init__(self, path: Path, name: str) -> None:
        self.name = name
        self._document = parse_document(read_text(path, name), name, ScalarInterpretation.PLACED)
        if node_evaluation.is_empty_node(self._document.value):
            self._document = Document(file=name, value={})
        if not isinstance(self._document.value, dict):
            raise MalformedYaml("a variant file is a mapping of keys to values", at=self._document.place_of_key())

    @property
    def keys(self) -> frozenset[str]:
        """Every key that the file defines on any platform."""
        return frozenset(map(str, self._document.value))

    def source_for_platform(self, platform: Platform, known: frozenset[str]) -> VariantSource:
        """The file as a platform sees it.

        Raises:
            KilnError: the file is malformed or contradicts itself.
        """
        names = Namespace(platform.fixed_names({}, platform.subdir), {}, known)
        values = {str(key): self._value_of_key(str(key), node, names) for key, node in self._document.value.items()}
        source = VariantSource(name=self.name, values=without_empty_values(values), document=self._document)
        check_variant_source(source)
        return source

    def _value_of_key(self, key: str, node: Any, names: Namespace) -> Any:
        if key == "zip_keys":
            return self._zip_key_groups(node, names)
        if key == "pin_run_as_build" or isinstance(node, dict):
            return _plain_value_of_node(node)
        return [self._typed_value(key, item) for item in self._resolved_items(node, names)]

    def _zip_key_groups(self, node: Any, names: Namespace) -> list[list[str]]:
        groups = [_plain_value_of_node(item) for item in self._resolved_items(node, names)]
        try:
            return [list(group) for group in zip_groups(groups)]
        except ValueError as error:
            raise VariantFault("malformed zip_keys", at=self._node_place(node), why=str(error)) from error

    def _typed_value(self, key: str, item: Any) -> str:
        if not isinstance(item, PlacedText):
            raise VariantFault(f"{key} has a value that is neither text nor number", at=self._node_place(item))
        value = scalar_value(item)
        return TypedText(value) if isinstance(value, int) else str(item)

    def _resolved_items(self, node: Any, names: Namespace) -> Iterator[Any]:
        for item in node_evaluation.node_as_list(node):
            if isinstance(item, dict) and "if" in item:
                branch = "then" if self._condition_holds(item["if"], names) else "else"
                yield from self._resolved_items(item.get(branch), names)
            elif not node_evaluation.is_empty_node(item):
                yield item

    def _condition_holds(self, condition: Any, names: Namespace) -> bool:
        """Return whether a condition holds: an expression of Python over platforms' names, as conda-smithy reads it."""
        if not isinstance(condition, PlacedText):
            raise VariantFault("a condition is text", at=self._node_place(condition))
        try:
            return bool(evaluate_expression(str(condition), names.lookup))
        except ExpressionError as error:
            why = f"{error} has no value here" if isinstance(error, MissingName) else str(error)
            raise SelectorFault(
                f"the condition {str(condition)!r} cannot be evaluated", at=self._node_place(condition), why=why
            ) from error

    def _node_place(self, node: Any) -> Place:
        at = node_evaluation.node_place(node)
        return Place(file=self.name, line=at.line, column=at.column)


def _plain_value_of_node(node: Any) -> Any:
    if isinstance(node, dict):
        return {str(key): _plain_value_of_node(value) for key, value in node.items()}
    return [_plain_value_of_node(item) for item in node] if isinstance(node, list) else str(node)
