"""Foreign text in a new recipe is text: it starts no template, no selector, no other key."""

from __future__ import annotations

import pytest
import yaml

from kiln.feedstock.init.scaffold import yaml_comment, yaml_list_lines, yaml_scalar, yaml_scalar_of_prose


@pytest.mark.parametrize("text", ["1.10", "yes", "a: b", "- a", "", "two\nlines", "it's", "@x", "null"])
def test_a_scalar_reads_back_as_the_text_on_one_line(text: str) -> None:
    assert "\n" not in yaml_scalar(text)
    assert yaml.safe_load(f"key: {yaml_scalar(text)}")["key"] == text


@pytest.mark.parametrize(
    ("text", "result"),
    [
        ("runs {{ os }} and {% if %}", "runs { { os }} and { % if %}"),
        ("${{ env.get('A') }}", "${ { env.get('A') }}"),
        ("for C# [win]", "for C# (win)"),
        ("two\n lines\u202e", "two lines"),
        ("not here [win]", "not here (win)"),
        ("{\u200b{ os }}", "{ { os }}"),
    ],
)
def test_foreign_text_is_harmless(text: str, result: str) -> None:
    assert yaml.safe_load(f"key: {yaml_scalar_of_prose(text)}")["key"] == result


def test_items_are_one_a_line() -> None:
    assert yaml_list_lines(["a >=1", "*"], 2) == "  - a >=1\n  - '*'\n"


def test_items_and_comments_are_harmless() -> None:
    assert yaml_list_lines(["foo{{ 1/0 }} = a:b", "a  b", "c [win]"], 0) == "- foo{ { 1/0 }} = a:b\n- a  b\n- c (win)\n"
    assert yaml_comment("a[b] ({{ os }})\n- x") == "# a(b) ({ { os }})- x"
