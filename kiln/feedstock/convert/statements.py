"""The Jinja statements of a meta.yaml, carried out without values: loops unrolled, conditions kept, names for context.

What remains are lines of YAML, each with the conditions under which it counts, in which a placeholder stands for each
expression. A name that is set several times has versions, each an entry of its own in ``context``.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

import jinja2
from jinja2 import nodes

from kiln.feedstock.convert.composition import (
    ConditionalValue,
    ContextEntry,
    ExpandedRecipe,
    ExpressionText,
    Guards,
    RecipeLine,
    UnsupportedExpression,
    conjunction,
    guards_without,
    negation,
    value_after_assignment,
)
from kiln.feedstock.convert.expressions import ExpressionTranslator, NameScope, parse_selector
from kiln.recipe.template.selectors import SelectorLine, lines_with_selectors

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping


OPEN, CLOSE = "\ue000", "\ue001"  # around the number of an expression
_MARK, _MARKS = "\ue002", re.compile("\ue002(\\d+)\ue002")
_VERSION = re.compile("\ue010(\\w+)\ue012(\\d+)\ue011")
_SET = re.compile(r"\{%-?\s*set\s+([\w\s,]+?)\s*=")
_ENVIRONMENT = jinja2.Environment(autoescape=False, keep_trailing_newline=True)  # noqa: S701 - nothing is rendered
_MOST_LINES = 20_000

Items = list[tuple[ExpressionText, Guards]]


class _TooManyLines(Exception):
    """The loops of a recipe make more lines than any recipe has."""


@dataclass
class _LineBuffer:
    """The lines that are written, from pieces of text with conditions."""

    lines: list[RecipeLine] = field(default_factory=list)
    parts: list[str] = field(default_factory=list)
    guards: Guards | None = None
    number: int = 0

    def write(self, text: str, guards: Guards) -> None:
        """Write a piece of text, which may hold line breaks and the marks of lines."""
        first, *others = text.split("\n")
        self._append_piece(first, guards)
        for piece in others:
            self.end_line()
            self._append_piece(piece, guards)

    def _append_piece(self, piece: str, guards: Guards) -> None:
        if mark := _MARKS.search(piece):
            self.number = int(mark[1])
            piece = _MARKS.sub("", piece)
        if piece.strip() and self.guards is None:
            self.guards = guards
        self.parts.append(piece)

    def end_line(self) -> None:
        """End a line."""
        if len(self.lines) > _MOST_LINES:
            raise _TooManyLines(f"its loops make more than {_MOST_LINES:,} lines")
        text = "".join(self.parts).rstrip()
        self.lines.append(RecipeLine(self.number if text else 0, text, (self.guards or ()) if text else ()))
        self.parts, self.guards, self.number = [], None, 0


class StatementExpander:
    """Carries out the statements of one meta.yaml; ``always`` and ``values`` are as in NameScope."""

    def __init__(
        self,
        text: str,
        always: frozenset[str],
        values: Mapping[str, frozenset[str]],
        shared: Mapping[str, frozenset[str]] | None = None,
    ) -> None:
        self._shared = shared or {}
        self._uses: dict[str, list[frozenset[str]]] = {}
        self._outer: Guards = ()
        self._raw = text.splitlines()
        self._lines = lines_with_selectors(text)
        self._values = values
        hidden = frozenset(w for entry in _SET.findall(text) for w in re.findall(r"\w+", entry)) - values.keys()
        self._scope = NameScope(own=lambda _: None, always=always, values=values, hidden=hidden)
        self._versions: dict[str, list[ConditionalValue]] = {}
        self._lists: dict[str, Items] = {}
        self._loops: dict[str, ExpressionText] = {}
        self._order: list[tuple[str, int]] = []
        self._expressions: list[ExpressionText] = []
        self._buffer = _LineBuffer()
        self._faults: list[tuple[int, str]] = []

    @property
    def common_conditions_by_name(self) -> dict[str, frozenset[str]]:
        """The conditions under which a name is set and used, each time: where they do not hold, it does not matter."""
        return {name: frozenset.intersection(*conditions) for name, conditions in self._uses.items()}

    def expand(self) -> ExpandedRecipe:
        """Return the recipe without statements."""
        try:
            tree = _ENVIRONMENT.parse(self._text_with_line_marks())
        except jinja2.TemplateSyntaxError as error:
            return self._expanded_recipe([(error.lineno, f"malformed Jinja: {error.message}")])
        try:
            self._expand_body(tree.body, ())
            self._buffer.end_line()
        except (_TooManyLines, RecursionError) as error:
            self._outer = ()
            self._faults.append((0, str(error)))
        return self._expanded_recipe(self._faults)

    def _text_with_line_marks(self) -> str:
        """Return the text without selectors and comments, each line outside statements with its number."""
        inside, lines = False, []
        for line in self._lines:
            opened = line.text.count("{%") + line.text.count("{{")
            closed = line.text.count("%}") + line.text.count("}}")
            whole = opened == closed and not inside
            inside = inside if opened == closed else opened > closed
            lines.append(f"{_MARK}{line.number}{_MARK}{line.text}" if whole and line.text.strip() else line.text)
        return "\n".join(lines)

    # -- statements -----------------------------------------------------------------------------------------

    def _expand_body(self, body: Iterable[nodes.Node], guards: Guards) -> None:
        outer, self._outer = self._outer, guards
        for node in body:
            try:
                self._expand_statement(node, guards)
            except UnsupportedExpression as error:
                self._faults.append((self._line_of_node(node), str(error)))
        self._outer = outer

    def _line_of_node(self, node: nodes.Node) -> int:
        first = node.nodes[0] if isinstance(node, nodes.Output) and node.nodes else node
        return first.lineno

    def _expand_statement(self, node: nodes.Node, guards: Guards) -> None:
        if isinstance(node, nodes.Output):
            self._write_output(node, guards)
        elif isinstance(node, nodes.Assign):
            self._expand_assignment(node, (*guards, *self._selector_guards(node.lineno)))
        elif isinstance(node, nodes.If):
            self._expand_if(node, guards)
        elif isinstance(node, nodes.For):
            self._unroll_for_loop(node, guards)
        else:
            raise UnsupportedExpression(f"the statement {type(node).__name__.lower()} has no equivalent in recipe.yaml")

    def _write_output(self, node: nodes.Output, guards: Guards) -> None:
        for part in node.nodes:
            if isinstance(part, nodes.TemplateData):
                self._buffer.write(part.data, guards)
                continue
            try:
                self._write_placeholder(self._translator().translate(part), guards)
            except UnsupportedExpression as error:
                self._faults.append((self._buffer.number or part.lineno, str(error)))

    def _write_placeholder(self, expr: ExpressionText, guards: Guards) -> None:
        if isinstance(expr.constant, (str, int)) and self._loops:
            self._buffer.write(str(expr.constant), guards)
            return
        self._expressions.append(expr)
        self._buffer.write(f"{OPEN}{len(self._expressions) - 1}{CLOSE}", guards)

    def _expand_if(self, node: nodes.If, guards: Guards) -> None:
        before: Guards = ()
        for branch in (node, *node.elif_):
            test = self._translator().translate(branch.test)
            self._expand_body(branch.body, _extended_guards(guards, (*before, test)))
            before = (*before, negation(test))
        self._expand_body(node.else_, _extended_guards(guards, before))

    def _unroll_for_loop(self, node: nodes.For, guards: Guards) -> None:
        items = self._literal_list_items(node.iter)
        if items is None or not isinstance(node.target, nodes.Name) or node.test is not None:
            raise UnsupportedExpression(
                "a loop over anything but a list of the recipe has no equivalent in recipe.yaml"
            )
        name = node.target.name
        for item, conditions in items:
            outer = self._loops
            self._loops = {**outer, name: item}
            self._expand_body(node.body, _extended_guards(guards, conditions))
            self._loops = outer

    # -- names ----------------------------------------------------------------------------------------------

    def _expand_assignment(self, node: nodes.Assign, guards: Guards) -> None:
        if isinstance(node.target, nodes.Name):
            items = self._literal_list_items(node.node)
            if items is not None:
                self._assign_list(node.target.name, items, guards)
            else:
                self._assign_name(
                    node.target.name, self._translator(node.target.name).translate(node.node), guards, node.lineno
                )
            return
        if not isinstance(node.target, nodes.Tuple):
            raise UnsupportedExpression("this assignment has no equivalent in recipe.yaml")
        value = self._translator().translate(node.node)
        for index, target in enumerate(node.target.items):
            if isinstance(target, nodes.Name):
                self._assign_name(target.name, ExpressionText(f"({value.text})[{index}]"), guards, node.lineno)

    def _assign_name(self, name: str, value: ExpressionText, guards: Guards, number: int) -> None:
        self._record_use_of_name(name)
        guards = tuple(guard for guard in guards if guard.text not in self._shared.get(name, ()))
        self._lists.pop(name, None)
        versions = self._versions.setdefault(name, [])
        old = versions[-1] if versions else None
        guard = conjunction(guards)
        if guard is not None and old is None and name in self._values:
            old = ConditionalValue((), ExpressionText(name))
        elif guard is not None and f"\ue010{name}\ue012" in value.text:
            old = ConditionalValue((), self._assignment_reference(name))
        versions.append(value_after_assignment(old, guard, value, number))
        self._order.append((name, len(versions) - 1))

    def _assignment_reference(self, name: str) -> ExpressionText:
        version = len(self._versions[name]) - 1
        return ExpressionText(f"\ue010{name}\ue012{version}\ue011")

    def _assign_list(self, name: str, items: Items, guards: Guards) -> None:
        old = self._lists.get(name, [])
        guard = conjunction(guards)
        if guard is None:
            self._lists[name] = items
        elif old and items[: len(old)] == old:
            self._lists[name] = [*old, *((item, _extended_guards(own, guards)) for item, own in items[len(old) :])]
        else:
            others = [(item, _extended_guards(own, (negation(guard),))) for item, own in old]
            self._lists[name] = [*((item, _extended_guards(own, guards)) for item, own in items), *others]

    def _literal_list_items(self, node: nodes.Node) -> Items | None:
        """Return the items of a list with their conditions; None if it is not a list that the recipe writes down."""
        if isinstance(node, (nodes.List, nodes.Tuple)):
            return [(self._translator().translate(item), ()) for item in node.items]
        if isinstance(node, nodes.Name):
            return self._lists.get(node.name)
        if isinstance(node, nodes.Add):
            left, right = self._literal_list_items(node.left), self._literal_list_items(node.right)
            return None if left is None or right is None else [*left, *right]
        if isinstance(node, nodes.Mul) and isinstance(node.left, nodes.Compare):
            items, test = self._literal_list_items(node.right), self._translator().translate(node.left)
            return None if items is None else [(item, (test, *own)) for item, own in items]
        return None

    def _translator(self, assigned: str = "") -> ExpressionTranslator:
        def value_of_set_name(name: str) -> ExpressionText | None:
            if name in self._loops:
                return self._loops[name]
            if name in self._lists:
                return self._list_expression(name)
            if name not in self._versions:
                return None
            self._record_use_of_name(name)
            last = self._versions[name][-1]
            return (
                last.as_expression
                if name == assigned and not last.cases and last.as_expression.is_constant
                else self._assignment_reference(name)
            )

        return ExpressionTranslator(replace(self._scope, own=value_of_set_name))

    def _record_use_of_name(self, name: str) -> None:
        self._uses.setdefault(name, []).append(frozenset(guard.text for guard in self._outer))

    def _list_expression(self, name: str) -> ExpressionText:
        items = self._lists[name]
        if any(guards for _, guards in items):
            raise UnsupportedExpression(f"the list {name!r} depends on conditions, and is used other than in a loop")
        return ExpressionText(f"[{', '.join(item.text for item, _ in items)}]")

    def _selector_guards(self, number: int) -> Guards:
        line = self._lines[number - 1] if number else None
        if line is None or line.selector is None:
            return ()
        translator = ExpressionTranslator(replace(self._scope, selector=True))
        return (translator.translate(parse_selector(line.selector)),)

    # -- the result -----------------------------------------------------------------------------------------

    def _expanded_recipe(self, faults: list[tuple[int, str]]) -> ExpandedRecipe:
        lines = tuple(self._lines_with_selector_guards(faults))
        references = _assignment_references(entry.text for entry in self._expressions) | _assignment_references(
            guard.text for line in lines for guard in line.guards
        )
        settings = list(self._context_entries(references))
        comments = {n: raw.strip() for n, raw in enumerate(self._raw, 1) if raw.lstrip().startswith("#")}
        above = {entry.last_line_number: _comments_directly_above(comments, entry.numbers) for entry in settings}
        for texts in above.values():
            for number in texts:
                comments.pop(number, None)
        return ExpandedRecipe(
            lines=tuple(
                replace(line, guards=tuple(map(self._with_references_resolved, line.guards))) for line in lines
            ),
            expressions=tuple(map(self._with_references_resolved, self._expressions)),
            settings=tuple(replace(entry, value=self._with_references_resolved(entry.value)) for entry in settings),
            raw=tuple(self._raw),
            comments=comments,
            above={number: tuple(texts.values()) for number, texts in above.items()},
            remarks=dict(self._comments_besides_selectors()),
            faults=tuple(faults),
        )

    def _lines_with_selector_guards(self, faults: list[tuple[int, str]]) -> Iterator[RecipeLine]:
        for line in self._buffer.lines:
            try:
                yield replace(line, guards=_extended_guards(line.guards, self._selector_guards(line.number)))
            except UnsupportedExpression as error:
                faults.append((line.number, str(error)))

    def _context_entries(self, references: set[tuple[str, int]]) -> Iterator[ContextEntry]:
        for name, version in reversed(self._order):
            if (name, version) in references:
                references |= _assignment_references([self._versions[name][version].as_expression.text])
        numbers: dict[str, tuple[int, ...]] = {}
        for name, version in self._order:
            value = self._versions[name][version]
            last = version == len(self._versions[name]) - 1
            numbers[name] = (*numbers.get(name, ()), value.number)
            if (name, version) not in references and not (last and value.as_expression.is_constant):
                continue
            if last or not value.as_expression.is_constant:
                yield ContextEntry(name if last else f"{name}_{version}", value.as_expression, numbers.pop(name))

    def _with_references_resolved(self, expr: ExpressionText) -> ExpressionText:
        def resolved_name(match: re.Match[str]) -> str:
            versions, version = self._versions[match[1]], int(match[2])
            if version == len(versions) - 1:
                return match[1]
            value = versions[version].as_expression
            return value.text if value.is_constant else f"{match[1]}_{version}"

        return replace(expr, text=_VERSION.sub(resolved_name, expr.text))

    def _comments_besides_selectors(self) -> Iterator[tuple[int, str]]:
        """Yield what the comments of lines with selectors say besides the selectors."""
        for line in self._lines:
            if line.commented and (remark := _comment_without_selector(self._raw[line.number - 1], line)):
                yield line.number, remark


def expand_statements(text: str, always: frozenset[str], values: Mapping[str, frozenset[str]]) -> ExpandedRecipe:
    """Return a recipe without its statements; ``always`` and ``values`` are as in NameScope."""
    first = StatementExpander(text, always, values)
    first.expand()
    return StatementExpander(text, always, values, first.common_conditions_by_name).expand()


def _comment_without_selector(raw: str, line: SelectorLine) -> str:
    before = raw[len(line.text) : line.column - 2]
    after = raw[line.column - 1 + len(line.selector or "") + 1 :]
    words = " ".join([*before.replace("#", " ").split(), *after.lstrip().removeprefix("#").split()])
    return f"# {words}" if words else ""


def _assignment_references(texts: Iterable[str]) -> set[tuple[str, int]]:
    return {(name, int(version)) for text in texts for name, version in _VERSION.findall(text)}


def _extended_guards(guards: Guards, more: Guards) -> Guards:
    return (*guards, *guards_without(more, guards))


def _comments_directly_above(comments: Mapping[int, str], numbers: Iterable[int]) -> dict[int, str]:
    """Return the comments that stand without a gap above one of some lines."""
    result = {}
    for line in numbers:
        number = line
        while (number := number - 1) in comments:
            result[number] = comments[number]
    return dict(sorted(result.items()))
