"""A meta.yaml without statements as a tree: texts, lists and mappings, each part with its line and its conditions."""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

import yaml

from kiln.base.yaml import NULLS
from kiln.feedstock.convert.composition import (
    CONCAT,
    ExpressionText,
    guards_without,
    literal_expression,
    unparenthesized,
)
from kiln.feedstock.convert.statements import CLOSE, OPEN

if TYPE_CHECKING:
    from collections.abc import Iterator, KeysView

    from kiln.feedstock.convert.composition import ExpandedRecipe, Guards, Path, RecipeLine

_PLACEHOLDER = re.compile(f"{OPEN}(\\d+){CLOSE}")
_COMMENT = re.compile(r"\s*(?:\[|:)?\s*(#.*)")
_MOST_NODES = 50_000


class UnconvertiblePart(Exception):
    """A part of the recipe that cannot be carried over, with its line."""

    def __init__(self, number: int, why: str, hint: str = "") -> None:
        super().__init__(why)
        self.number = number
        self.hint = hint


@dataclass(kw_only=True)
class RecipePart:
    """A part of a recipe: its line, the conditions under which it counts, and the comments above and behind it."""

    number: int = 0
    guards: Guards = ()
    above: list[str] = field(default_factory=list)
    behind: str = ""
    below: list[str] = field(default_factory=list)


@dataclass(kw_only=True)
class ScalarPart(RecipePart):
    """A scalar: its text in recipe.yaml's notation, in pieces that alternate with expressions."""

    pieces: tuple[str | ExpressionText, ...] = ()
    plain: bool = True

    @property
    def template_text(self) -> str:
        """The text, with its expressions in ``${{ }}``."""
        return "".join(
            piece if isinstance(piece, str) else f"${{{{ {unparenthesized(piece.text)} }}}}" for piece in self.pieces
        )

    @property
    def sole_expression(self) -> ExpressionText | None:
        """The expression that is all of the text, if one is."""
        pieces = [piece for piece in self.pieces if not isinstance(piece, str) or piece.strip()]
        return pieces[0] if len(pieces) == 1 and isinstance(pieces[0], ExpressionText) else None

    @property
    def as_expression(self) -> ExpressionText:
        """The text as an expression."""
        if len(self.pieces) == 1:
            piece = self.pieces[0]
            return piece if isinstance(piece, ExpressionText) else literal_expression(piece)
        if not self.pieces:
            return literal_expression("")
        parts = [literal_expression(item) if isinstance(item, str) else item for item in self.pieces]
        return ExpressionText(" ~ ".join(part.text_at_precedence(CONCAT + 1) for part in parts), CONCAT)


@dataclass(kw_only=True)
class ListPart(RecipePart):
    """A list."""

    items: list[RecipePart] = field(default_factory=list)


@dataclass(kw_only=True)
class DictPart(RecipePart):
    """A mapping, in which a key may stand several times under different conditions."""

    pairs: list[tuple[str, RecipePart]] = field(default_factory=list)

    @property
    def names(self) -> KeysView[str]:
        """Every key once, in order."""
        return dict(self.pairs).keys()

    def values_of_key(self, key: str) -> list[RecipePart]:
        """Return every value of a key."""
        return [value for name, value in self.pairs if name == key]

    def add(self, path: Path, part: RecipePart | None) -> None:
        """Put a part at its place in this mapping and those in it; nothing is not put anywhere."""
        if part is None:
            return
        at = self
        for key in path[:-1]:
            inner = next((value for name, value in at.pairs if name == key), None)
            if not isinstance(inner, DictPart):
                inner = DictPart()
                at.pairs.append((key, inner))
            at = inner
        part.guards = ()
        at.pairs.append((path[-1], part))


def recipe_tree(expanded: ExpandedRecipe) -> DictPart:
    """Return the tree of a recipe."""
    lines = expanded.lines
    text = "\n".join(line.text for line in lines) + "\n"
    try:
        node = yaml.compose(text, Loader=yaml.SafeLoader)
    except yaml.MarkedYAMLError as error:
        index = error.problem_mark.line if error.problem_mark else 0
        number = lines[min(index, len(lines) - 1)].number if lines else 0
        raise UnconvertiblePart(number, f"not YAML once its Jinja is taken out: {error.problem}") from error
    except yaml.YAMLError as error:
        raise UnconvertiblePart(0, f"not YAML: {error}") from error
    if not isinstance(node, yaml.MappingNode):
        raise UnconvertiblePart(0, "a recipe is a mapping of sections")
    builder = _TreeBuilder(expanded)
    result = builder.build_mapping(node, ())
    result.below = builder.remaining_comments
    return result


class _TreeBuilder:
    """Builds the parts of nodes, and hands out the comments in the order of lines."""

    def __init__(self, expanded: ExpandedRecipe) -> None:
        self._expanded = expanded
        self._lines = expanded.lines
        self._comments = dict(sorted(expanded.comments.items()))
        self._count = 0

    # -- nodes ----------------------------------------------------------------------------------------------

    def build_mapping(self, node: yaml.MappingNode, outer: Guards) -> DictPart:
        """Return the part of a mapping."""
        result = DictPart(number=self._line_number(node), guards=self._list_item_guards(node, outer))
        inner = (*outer, *result.guards)
        for key, value in node.value:
            if not isinstance(key, yaml.ScalarNode):
                raise UnconvertiblePart(self._line_number(key), "a key that is not text")
            if OPEN in key.value:
                raise UnconvertiblePart(self._line_number(key), "a key that a template writes")
            result.pairs.append((str(key.value), self._build_pair_value(key, value, inner)))
        return result

    def _build_pair_value(self, key: yaml.ScalarNode, value: yaml.Node, outer: Guards) -> RecipePart:
        above = self._pop_comments_above(key)
        guards = guards_without(self._line_of_node(key).guards, outer)
        part = self._build_part(value, (*outer, *guards))
        part.number, part.guards = self._line_number(key), guards + tuple(g for g in part.guards if g not in guards)
        part.above = [*above, *part.above]
        if not isinstance(value, yaml.ScalarNode) or value.style in {"|", ">"}:
            part.behind = self._trailing_comment(key, key.end_mark)
        return part

    def _build_part(self, node: yaml.Node, outer: Guards) -> RecipePart:
        self._count += 1
        if self._count > _MOST_NODES:
            raise UnconvertiblePart(self._line_number(node), f"more than {_MOST_NODES:,} values")
        if isinstance(node, yaml.MappingNode):
            return self.build_mapping(node, outer)
        if isinstance(node, yaml.SequenceNode):
            return self._build_list(node, outer)
        assert isinstance(node, yaml.ScalarNode)
        return self._build_scalar(node, outer)

    def _build_list(self, node: yaml.SequenceNode, outer: Guards) -> ListPart:
        result = ListPart(number=self._line_number(node))
        for item in node.value:
            above = self._pop_comments_above(item)
            part = self._build_part(item, outer)
            part.above = [*above, *part.above]
            result.items.append(part)
        if result.items:
            result.items[-1].below = self._pop_comments_below(node)
        return result

    def _build_scalar(self, node: yaml.ScalarNode, outer: Guards) -> ScalarPart:
        first, last = node.start_mark.line, node.end_mark.line
        block = node.style in {"|", ">"}
        if block or last > first:
            self._refuse_inner_conditions(
                range(first + block, min(last + (not block), len(self._lines))), outer, block=block
            )
        guards = guards_without(self._line_of_node(node).guards, outer)
        null = node.style is None and node.value in NULLS
        return ScalarPart(
            number=self._line_number(node),
            guards=guards,
            pieces=() if null else tuple(self._text_and_expression_pieces(node.value)),
            plain=node.style is None,
            behind="" if block else self._trailing_comment(node, node.end_mark),
        )

    def _refuse_inner_conditions(self, indexes: range, outer: Guards, *, block: bool) -> None:
        """Refuse conditions inside a text; those of its first line are its own."""
        for index in indexes:
            line = self._lines[index]
            extra = guards_without(line.guards, outer)
            if extra and (block or index > indexes.start):
                raise UnconvertiblePart(
                    line.number, f"the condition {extra[0].text!r} is on one line of a text of several lines"
                )

    def _text_and_expression_pieces(self, text: str) -> Iterator[str | ExpressionText]:
        last = 0
        for match in _PLACEHOLDER.finditer(text):
            if match.start() > last:
                yield text[last : match.start()]
            yield self._expanded.expressions[int(match[1])]
            last = match.end()
        if last < len(text):
            yield text[last:]

    # -- conditions -----------------------------------------------------------------------------------------

    def _line_of_node(self, node: yaml.Node) -> RecipeLine:
        return self._lines[node.start_mark.line]

    def _line_number(self, node: yaml.Node) -> int:
        return self._line_of_node(node).number

    def _list_item_guards(self, node: yaml.MappingNode, outer: Guards) -> Guards:
        """Return the conditions of an item of a list that is a mapping: those that all of its lines have.

        A selector on its first line alone would leave the other lines behind.
        """
        first = guards_without(self._line_of_node(node).guards, outer)
        keys = [key for key, _ in node.value]
        every = [{guard.text for guard in self._line_of_node(key).guards} for key in keys]
        common = tuple(guard for guard in first if all(guard.text in texts for texts in every))
        in_list = self._line_of_node(node).text.lstrip().startswith("- ")
        if in_list and len(common) < len(first):
            why = "a condition on the first line of an item, which its other lines do not have"
            raise UnconvertiblePart(self._line_number(node), why)
        return common if in_list else ()

    # -- comments -------------------------------------------------------------------------------------------

    def _pop_comments_above(self, node: yaml.Node) -> list[str]:
        """Return the comments between the line before and a node, with those that stood at statements."""
        number = self._line_number(node)
        return [self._comments.pop(n) for n in list(self._comments) if n < number]

    def _pop_comments_below(self, node: yaml.SequenceNode) -> list[str]:
        """Return the comments that follow a list's last item and are indented as the list is."""
        end = min(node.end_mark.line, len(self._lines) - 1)
        following = next((line.number for line in self._lines[end:] if line.number), 1 << 30)
        indent = max(node.start_mark.column, 1)
        numbers = [number for number in self._comments if number < following and self._line_indent(number) >= indent]
        return [self._comments.pop(number) for number in numbers]

    def _line_indent(self, number: int) -> int:
        raw = self._expanded.raw[number - 1]
        return len(raw) - len(raw.lstrip())

    def _trailing_comment(self, node: yaml.Node, mark: yaml.Mark) -> str:
        line = self._lines[mark.line] if mark.line < len(self._lines) else self._line_of_node(node)
        own = _COMMENT.fullmatch(line.text[mark.column :])
        result = [own[1]] if own else []
        remark = self._expanded.remarks.get(line.number, "")
        return "  ".join([*result, *([remark] if remark and remark not in result else [])])

    @property
    def remaining_comments(self) -> list[str]:
        """The comments that stand below everything."""
        return list(self._comments.values())
