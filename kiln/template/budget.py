"""Bounds on what a template may do: loop steps, calls, characters made and written, and time."""

from __future__ import annotations

import functools
import re
import signal
import threading
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

from jinja2 import nodes, pass_context

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator
    from typing import Any

    from jinja2.runtime import Context

_STEPS = 200_000
_CHARACTERS = 8_000_000  # of all output together
_LONGEST = 1_000_000  # of one value
_SECONDS = 0.8
_NUMBER = 20_000  # the largest number that widths, counts and exponents may have

_SIZED = (str, bytes, list, tuple)
EACH, OUT, JOIN = "_kiln_each", "_kiln_out", "_kiln_join"


class Exhausted(Exception):
    """The template asks for more work than a recipe needs."""


def can_be_limited() -> bool:
    """Whether ``limited`` can hold here: Python looks for signals in its main thread alone."""
    return threading.current_thread() is threading.main_thread()


@contextmanager
def limited(seconds: float = _SECONDS) -> Iterator[None]:
    """Bound the processor's time that a search for a pattern takes; Python looks for signals in the midst of one.

    Raises:
        Exhausted: it takes longer.
    """

    def late(*_: object) -> None:
        raise Exhausted("it takes too long")

    before = signal.signal(signal.SIGVTALRM, late)
    try:
        signal.setitimer(signal.ITIMER_VIRTUAL, seconds)
        yield
    finally:
        signal.setitimer(signal.ITIMER_VIRTUAL, 0)
        signal.signal(signal.SIGVTALRM, before)


class Budget:
    """What is left of the allowance of one rendering."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Give the whole allowance."""
        self._steps = _STEPS
        self._characters = _CHARACTERS
        self._deadline = time.monotonic() + _SECONDS

    def step(self) -> None:
        """Spend one loop step or call.

        Raises:
            Exhausted: there is nothing left to spend.
        """
        self._steps -= 1
        if self._steps < 0:
            raise Exhausted(f"more than {_STEPS:,} loop steps and calls")
        if self._steps % 64 == 0 and time.monotonic() > self._deadline:
            raise Exhausted("it takes too long")

    def write(self, count: int) -> None:
        """Spend characters of output.

        Raises:
            Exhausted: there is nothing left to spend.
        """
        self._characters -= count
        if self._characters < 0:
            raise Exhausted(f"more than {_CHARACTERS:,} characters of output")

    # Both take the context, which they do not need, because Jinja would work them out once while it compiles otherwise.

    @pass_context
    def each(self, _: Context, items: Iterable[Any]) -> Iterator[Any]:
        """The items, a step spent on each."""
        for item in items:
            self.step()
            yield item

    @pass_context
    def out(self, _: Context, value: Any, count: int = 0) -> Any:
        """The value, its text's length spent, or ``count`` where that is given."""
        if count:
            self.write(count)
            return value
        text = value if isinstance(value, str) else str(value)
        self.write(len(text))
        return text

    def join(self, *parts: Any) -> str:
        """The parts' texts, one after the other."""
        texts = [str(part) for part in parts]
        if sum(map(len, texts)) > _LONGEST:
            raise Exhausted(f"a text of more than {_LONGEST:,} characters")
        return "".join(texts)


def bound(value: Any) -> Any:
    """The value, if it is not too large.

    Raises:
        Exhausted: it is.
    """
    if isinstance(value, (str, bytes, list, tuple, dict, set)) and len(value) > _LONGEST:
        raise Exhausted(f"a value of more than {_LONGEST:,} characters or items")
    return value


def check_arguments(arguments: Iterable[Any]) -> None:
    """Refuse numbers that would make a built-in allocate or count without end.

    Raises:
        Exhausted: a number is too large.
    """
    for argument in arguments:
        if isinstance(argument, int) and abs(argument) > _NUMBER:
            raise Exhausted(f"the number {str(argument)[:20]} is too large for a width, count or size")


def check_format(text: str) -> None:
    """Refuse a format with enormous widths.

    Raises:
        Exhausted: a width has more than four digits or is given by an argument.
    """
    if re.search(r"\d{5}", text) or re.search(r"%[^a-zA-Z%]*\*", text):
        raise Exhausted("a format with an enormous width")


def check_operation(operator: str, left: Any, right: Any) -> None:
    """Refuse an operation whose result would be enormous.

    Raises:
        Exhausted: it would be.
    """
    check = {"*": _check_product, "**": _check_power, "+": _check_sum, "%": _check_remainder}.get(operator)
    if check is not None:
        check(left, right)


def _check_product(left: Any, right: Any) -> None:
    for value, times in ((left, right), (right, left)):
        if isinstance(value, _SIZED) and isinstance(times, int):
            _check_size(len(value) * max(times, 0))
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() + right.bit_length() > _NUMBER:
        raise Exhausted("an enormous number")


def _check_power(left: Any, right: Any) -> None:
    if isinstance(left, int) and isinstance(right, int) and left.bit_length() * abs(right) > _NUMBER:
        raise Exhausted("an enormous number")


def _check_sum(left: Any, right: Any) -> None:
    if isinstance(left, _SIZED) and isinstance(right, _SIZED):
        _check_size(len(left) + len(right))


def _check_remainder(left: Any, _: Any) -> None:
    if isinstance(left, str):
        check_format(left)


def _check_size(size: int) -> None:
    if size > _LONGEST:
        raise Exhausted(f"a value of more than {_LONGEST:,} characters or items")


def guarded(function: Callable[..., Any]) -> Callable[..., Any]:
    """A filter that refuses enormous arguments and results."""

    @functools.wraps(function)
    def run(*arguments: Any, **named: Any) -> Any:
        check_arguments((*arguments, *named.values()))
        if function.__name__ == "do_format":
            check_format(str(arguments[0]))
        return bound(function(*arguments, **named))

    return run


def spend(tree: nodes.Template) -> None:
    """Make a template's tree spend its budget: on every loop step, joined text and written value."""
    for loop in tree.find_all(nodes.For):
        loop.iter = _filter(loop.iter, EACH)
    for output in list(tree.find_all(nodes.Output)):
        output.nodes = [part for node in output.nodes for part in _spending(node)]
    for parent in [tree, *tree.find_all(nodes.Node)]:
        for field, value in list(parent.iter_fields()):
            if isinstance(value, nodes.Concat):
                setattr(parent, field, _joined(value))
            elif isinstance(value, list):
                value[:] = [_joined(item) if isinstance(item, nodes.Concat) else item for item in value]


def _spending(node: nodes.Expr) -> list[nodes.Expr]:
    if isinstance(node, nodes.TemplateData):
        empty = nodes.Const("", lineno=node.lineno)
        return [node, _filter(empty, OUT, len(node.data))] if node.data else [node]
    return [_filter(node, OUT)]


def _filter(node: nodes.Node, name: str, *arguments: Any) -> nodes.Filter:
    constants = [nodes.Const(argument, lineno=node.lineno) for argument in arguments]
    return nodes.Filter(node, name, constants, [], None, None, lineno=node.lineno)


def _joined(node: nodes.Concat) -> nodes.Filter:
    first, *rest = node.nodes
    return nodes.Filter(first, JOIN, rest, [], None, None, lineno=node.lineno)
