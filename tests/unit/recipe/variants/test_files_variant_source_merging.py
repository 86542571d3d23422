from __future__ import annotations

from typing import Any

import pytest

from kiln.base.errors import VariantFault
from kiln.recipe.variants.files import VariantSource, check_variant_source, combine_sources


def sources(*values: dict[str, Any]) -> list[VariantSource]:
    return [VariantSource(name=f"source {index}", values=value) for index, value in enumerate(values)]


def test_later_values_replace_earlier_ones() -> None:
    assert combine_sources(sources({"a": ["1"], "b": ["2"]}, {"a": ["3", "4"]})) == {"a": ["3", "4"], "b": ["2"]}


def test_settings_are_united() -> None:
    pins = ({"a": {"max_pin": "x"}}, {"b": {"max_pin": "x.x"}})
    setting = sources(
        *({"pin_run_as_build": pin, "ignore_version": [name]} for pin, name in zip(pins, "ab", strict=True))
    )
    assert combine_sources(setting) == {"pin_run_as_build": {**pins[0], **pins[1]}, "ignore_version": ["a", "b"]}


def test_own_settings_are_declared_with_extend_keys() -> None:
    result = combine_sources(sources({"mine": ["a"]}, {"extend_keys": ["mine"], "mine": ["b"]}))
    assert result["mine"] == ["a", "b"]


GROUP: dict[str, Any] = {"zip_keys": [["a", "b"]], "a": ["1", "2"], "b": ["x", "y"]}


def test_a_group_is_replaced_as_a_whole() -> None:
    result = combine_sources(sources(GROUP, {"a": ["3"], "b": ["z"]}))
    assert (result["a"], result["b"]) == (["3"], ["z"])


def test_one_key_of_a_group_is_replaced_where_the_length_is_the_same() -> None:
    assert combine_sources(sources(GROUP, {"a": ["8", "9"]}))["a"] == ["8", "9"]


def test_one_key_of_a_group_may_restate_some_of_its_values() -> None:
    assert combine_sources(sources(GROUP, {"a": ["2"]}))["a"] == ["1", "2"]


def test_one_key_of_a_group_cannot_bring_new_values_alone() -> None:
    with pytest.raises(VariantFault) as caught:
        combine_sources(sources(GROUP, {"a": ["7"]}))
    assert "b" in caught.value.hint


def test_a_part_of_an_unknown_group_is_dropped() -> None:
    assert "a" not in combine_sources(sources({"a": ["1"]}, {"zip_keys": [["a", "b"]], "c": ["1"]}))


@pytest.mark.parametrize(
    ("values", "count"),
    [
        ({"zip_keys": [["a", "b"]], "a": ["1"], "b": ["1", "2"]}, 1),
        ({"zip_keys": [["a", "b"]], "a": ["1"]}, 1),
        ({"zip_keys": [["a", "b"], ["b", "c"]], "a": ["1"], "b": ["1"], "c": ["1"]}, 1),
        ({"zip_keys": "a"}, 1),
        ({"a-b": ["1"], "c-d": ["1"]}, 2),
        ({"a": [{"x": "y"}]}, 1),
    ],
)
def test_contradictions_are_reported_all_at_once(values: dict[str, Any], count: int) -> None:
    with pytest.raises(VariantFault) as caught:
        check_variant_source(sources(values)[0])
    assert 1 + len(caught.value.others) == count
