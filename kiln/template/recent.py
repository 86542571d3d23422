"""A memory of bounded size."""

from __future__ import annotations

from typing import Generic, TypeVar

Key = TypeVar("Key")
Value = TypeVar("Value")


class Recent(dict[Key, Value], Generic[Key, Value]):
    """A dictionary that forgets its oldest entries when it holds more than ``most``."""

    def __init__(self, most: int) -> None:
        super().__init__()
        self._most = most

    def __setitem__(self, key: Key, value: Value) -> None:
        if key not in self and len(self) >= self._most:
            del self[next(iter(self))]
        super().__setitem__(key, value)
