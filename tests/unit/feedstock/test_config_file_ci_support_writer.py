from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.base.yaml import ScalarInterpretation, parse_document
from kiln.feedstock.config_file import ci_support_text

# As PyYAML's block style writes them: quotes only where the text would be read as something else.
STYLES = [
    ({"b": ("1",), "a": ("x",)}, "a:\n- x\nb:\n- '1'\n"),
    ({"a": ("true", "None", "null", "1.1.*", "3.10.* *_cpython")},
     "a:\n- true\n- None\n- 'null'\n- 1.1.*\n- 3.10.* *_cpython\n"),
    ({"zip_keys": (("a", "b"), ("c", "d"))}, "zip_keys:\n- - a\n  - b\n- - c\n  - d\n"),
    ({"p": {"x": {"min_pin": "x.x", "max_pin": "x"}}}, "p:\n  x:\n    min_pin: x.x\n    max_pin: x\n"),
    ({"a": ("*x", "yes", "", "a: b", "2021-01-01")}, "a:\n- '*x'\n- 'yes'\n- ''\n- 'a: b'\n- '2021-01-01'\n"),
]  # fmt: skip


@pytest.mark.parametrize(("data", "text"), STYLES)
def test_values_are_quoted_as_pyyaml_does(data: dict[str, Any], text: str) -> None:
    assert ci_support_text(data) == text


NAMES = st.text("abcdefgh_", min_size=1, max_size=6)
VALUES = st.text(st.characters(codec="utf-8", exclude_categories=("Cs", "Cc", "Zl", "Zp")), max_size=100)


@given(st.dictionaries(NAMES, st.lists(VALUES, min_size=1, max_size=4).map(tuple), min_size=1, max_size=5))
def test_what_is_written_is_read_back(data: dict[str, tuple[str, ...]]) -> None:
    result = parse_document(ci_support_text(data), "f", ScalarInterpretation.TEXT).value
    assert {key: tuple(values) for key, values in result.items()} == data
