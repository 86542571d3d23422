"""A cache of bounded size."""

from __future__ import annotations

from kiln.template.recent import BoundedDict


def test_the_oldest_entry_goes_when_the_cache_is_full() -> None:
    cache: BoundedDict[str, int] = BoundedDict(2)
    cache["a"] = 1
    cache["b"] = 2
    cache["a"] = 3  # a new value makes no entry newer
    assert cache == {"a": 3, "b": 2}
    cache["c"] = 4
    assert cache == {"b": 2, "c": 4}
