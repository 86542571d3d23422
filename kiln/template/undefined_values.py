"""Values of names without one: empty text, as in conda-build's rendering, but recorded when it is written out."""

from __future__ import annotations

from typing import TYPE_CHECKING, ClassVar

import jinja2
from jinja2.utils import missing

if TYPE_CHECKING:
    from typing import Any


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
