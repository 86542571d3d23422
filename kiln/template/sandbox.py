"""The parts of the sandbox of templates: names without a value, and a bound on the steps of a template.

A name without a value is empty text, as in conda-build's rendering, but recorded when it is written out. The bound
makes an endless loop fail at once, always with the same error; the operating system bounds the time and memory of a
single step: see `kiln.limits`.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jinja2
from jinja2 import nodes, pass_context
from jinja2.utils import missing

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from typing import Any

    from jinja2.runtime import Context

_MAX_STEPS = 200_000
COUNTED = "_kiln_counted"


class Uses:
    """The undefined names that a rendering used other than in a test."""

    def __init__(self) -> None:
        self.names: list[str] = []


class UndefinedValue(jinja2.Undefined):
    """An undefined value: false, empty, equal to other undefined values; arithmetic on it stays undefined."""

    uses: ClassVar[Uses]

    def _used(self) -> None:
        if self._undefined_obj is missing and self._undefined_name:
            self.uses.names.append(self._undefined_name)

    def _again(self, *_: Any, **__: Any) -> UndefinedValue:
        self._used()
        return type(self)(self._undefined_hint, self._undefined_obj, self._undefined_name)

    __add__ = __radd__ = __mul__ = __rmul__ = __truediv__ = __rtruediv__ = __floordiv__ = __rfloordiv__ = _again  # type: ignore[assignment]
    __mod__ = __rmod__ = __pos__ = __neg__ = __call__ = __getitem__ = __pow__ = __rpow__ = _again  # type: ignore[assignment]
    __sub__ = __rsub__ = _again  # type: ignore[assignment]

    def _compared(self, _: Any) -> UndefinedValue:
        return type(self)(self._undefined_hint, self._undefined_obj, self._undefined_name)

    __lt__ = __le__ = __gt__ = __ge__ = _compared  # type: ignore[assignment]

    def __str__(self) -> str:
        self._used()
        return ""

    __repr__ = __str__

    def __int__(self) -> int:  # type: ignore[override]
        self._used()
        return 0

    def __float__(self) -> float:  # type: ignore[override]
        self._used()
        return 0.0


class Exhausted(Exception):
    """The template needs more steps than any recipe does."""


class Budget:
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


def spend(tree: nodes.Template) -> None:
    """Change a template's tree so that it spends its budget on every loop iteration."""
    for loop in tree.find_all(nodes.For):
        loop.iter = nodes.Filter(loop.iter, COUNTED, [], [], None, None, lineno=loop.iter.lineno)
