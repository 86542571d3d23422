from __future__ import annotations

import pytest

from kiln.base.errors import MalformedYaml
from kiln.base.yaml import PlacedText
from kiln.feedstock.lint.reading import branch_items, branch_texts, read_values, repeated_keys

VALUES = [
    ("1", 1), ("-3", -3), ("0x10", 16), ("0o17", 15), ("010", 10), ("1_000", 1000), ("1.10", 1.1), ("1e3", 1000.0),
    (".5", 0.5), ("1.2.3", "1.2.3"), ("true", True), ("yes", "yes"), ("on", "on"), ("~", None), ("", None),
    ("null", None), ("'1.10'", "1.10"), ("2024-01-01", "2024-01-01"), ("1" * 200, "1" * 200),
]  # fmt: skip


@pytest.mark.parametrize(("text", "value"), VALUES)
def test_scalars_have_the_types_of_yaml_1_2(text: str, value: object) -> None:
    answer = read_values(f"a: {text}", "f")["a"]
    assert answer == value
    assert type(answer) is type(value) or (isinstance(answer, PlacedText) and isinstance(value, str))


def test_the_first_of_repeated_keys_counts_and_repetitions_are_reported() -> None:
    text = "a: 1\nb:\n  c: 2\n  c: 3\na: 4\n"
    assert read_values(text, "f") == {"a": 1, "b": {"c": 2}}
    assert [(key, key.line) for key in repeated_keys(text, "f")] == [("c", 4), ("a", 5)]


def test_merged_keys_do_not_replace_own_ones() -> None:
    assert read_values("x: &x {a: 1, b: 2}\ny:\n  <<: *x\n  b: 3\n", "f")["y"] == {"a": 1, "b": 3}


def test_malformed_yaml_has_its_place() -> None:
    with pytest.raises(MalformedYaml) as caught:
        read_values("a: [1\nb: 2", "f.yaml")
    assert str(caught.value).startswith("f.yaml:")


def test_branches_of_conditions_are_flat() -> None:
    value = read_values("a:\n- x\n- if: b\n  then: y\n  else:\n  - if: c\n    then: [z, w]\n", "f")["a"]
    assert list(branch_items(value)) == ["x", "y", "z", "w"]
    assert branch_texts("x") == ["x"]
    assert branch_texts(None) == []
