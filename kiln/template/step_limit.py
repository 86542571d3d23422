"""A bound on the steps of a template: an endless loop fails at once, always with the same error.

The operating system bounds the time and memory of a single step: see `kiln.limits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from jinja2 import nodes, pass_context

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from jinja2.runtime import Context

_MAX_STEPS = 200_000
COUNTED = "_kiln_counted"


class Exhausted(Exception):
    """The template needs more steps than any recipe does."""


class StepBudget:
    """The remaining steps of one rendering."""

    def __init__(self) -> None:
        self.restart()

    def restart(self) -> None:
        """Reset the budget to its maximum."""
        self._steps = _MAX_STEPS

    def step(self) -> None:
        """Spend one step on a loop iteration or a call.

        Raises:
            Exhausted: the budget is spent.
        """
        self._steps -= 1
        if self._steps < 0:
            raise Exhausted(f"more than {_MAX_STEPS:,} loop steps and calls")

    # It takes the context, which it does not need, because Jinja would otherwise evaluate it once at compile time.
    @pass_context
    def counted(self, _: Context, items: Iterable[Any]) -> Iterator[Any]:
        """Yield the items and spend one step on each."""
        for item in items:
            self.step()
            yield item


def insert_spending(tree: nodes.Template) -> None:
    """Change a template's tree so that it spends its budget on every loop iteration."""
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, COUNTED, [], [], None, None, lineno=loop.iter.lineno)
