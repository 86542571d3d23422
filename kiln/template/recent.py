"""A cache of bounded size."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class BoundedDict(dict[Key, Value], Generic[Key, Value]):
    """A dictionary that drops its oldest entry when it would hold more than ``max_entries``."""

    def __init__(self, max_entries: int) -> None:
        super().__init__()
        self._max_entries = max_entries

    def __setitem__(self, key: Key, value: Value) -> None:
        if key not in self and len(self) >= self._max_entries:
            del self[next(iter(self))]
        super().__setitem__(key, value)
