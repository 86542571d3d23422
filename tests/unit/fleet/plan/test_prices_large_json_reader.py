"""Large JSON documents are read member by member."""

from __future__ import annotations

import io
import json
import re
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.fleet.plan import prices

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)


@given(st.dictionaries(st.sampled_from("abcd"), VALUES, max_size=4), st.integers(1, 7), st.sampled_from([None, 1]))
def test_the_members_are_those_of_the_document_wherever_it_is_cut(data: Any, chunk: int, indent: int | None) -> None:
    text = json.dumps(data, indent=indent)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(prices, "CHUNK", chunk)
        flat = list(prices.iterate_json_members(io.StringIO(text), ()))
        deep = list(prices.iterate_json_members(io.StringIO(text), {("a",)}))
    assert flat == [((key,), value) for key, value in data.items()]
    inner = data.get("a")
    rest = [((key,), value) for key, value in data.items() if key != "a"]
    if isinstance(inner, dict):
        assert [item for item in deep if item[0][0] == "a"] == [(("a", key), value) for key, value in inner.items()]
    if isinstance(inner, list):
        assert [item for item in deep if item[0][0] == "a"] == [(("a",), value) for value in inner]
    assert [item for item in deep if item[0][0] != "a"] == rest


@pytest.mark.parametrize("text", ["", "[1", '{"a"', '{"a": }', '{"a": 1', '{"a": 1]', "7", '{"a": ' + "[" * 200_000])
def test_a_damaged_document_is_an_error(text: str) -> None:
    with pytest.raises(ValueError, match=r"."):
        list(prices.iterate_json_members(io.StringIO(text), {("a",)}))


def test_a_value_that_does_not_fit_into_memory_is_refused(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(prices, "LARGEST_VALUE", 1000)
    monkeypatch.setattr(prices, "CHUNK", 100)
    with pytest.raises(ValueError, match=re.escape("a value of more than 1,000 characters")):
        list(prices.iterate_json_members(io.StringIO(json.dumps({"a": "x" * 5000})), ()))
