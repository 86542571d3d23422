"""Regular expressions that are compiled at their first use: a command imports many, and uses few of them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from re import Pattern


class _LazyPattern:
    """A regular expression's text and flags, until an attribute of the expression is used."""

    def __init__(self, text: str, flags: int) -> None:
        self._text, self._flags = text, flags

    def __getattr__(self, name: str) -> Any:
        """Return an attribute of the compiled expression, and keep it: the next use is as fast as the expression's."""
        if name.startswith("__"):  # copies and pickles look for these before there is a text
            raise AttributeError(name)
        value = self.__dict__[name] = getattr(re.compile(self._text, self._flags), name)
        return value


def lazy_pattern(text: str, flags: int = 0) -> Pattern[str]:
    """Return a regular expression that compiles at its first use; for constants of modules, whose methods are called.

    It is not an instance of `re.Pattern`, so the functions of `re` do not take it.
    """
    return _LazyPattern(text, flags)  # type: ignore[return-value]
