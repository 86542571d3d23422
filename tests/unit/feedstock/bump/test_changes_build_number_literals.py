"""Build numbers begin again at 0, or increase by 1; the offsets of variants stay."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RecipeFault
from kiln.feedstock.bump import bump
from tests.bumping import bumped, changed_lines, feedstock

if TYPE_CHECKING:
    from pathlib import Path

META = "{}package:\n  name: a\n  version: 1.0\nbuild:\n  number: {}\n"
GPU = {f"linux_64_cuda{cuda}": f"cuda:\n- '{cuda}'\ntarget_platform:\n- linux-64\n" for cuda in ("None", "12.9")}


@pytest.mark.parametrize(
    ("text", "reset", "next_build"),
    [
        (META.format("", "3"), {5: "number: 0"}, {5: "number: 4"}),
        (META.format("", "203"), {5: "number: 0"}, {5: "number: 204"}),
        (
            META.format('{% set build = 3 %}\n{% set build = build + 200 %}  # [cuda != "None"]\n', "{{ build }}"),
            {1: "{% set build = 0 %}"},
            {1: "{% set build = 4 %}"},
        ),
        (
            META.format("{% set offset = 100 %}\n{% set build = 3 %}\n", "{{ build + offset }}"),
            {2: "{% set build = 0 %}"},
            {2: "{% set build = 4 %}"},
        ),
        (
            META.format("", '5  # [cuda == "None"]\n  number: 105  # [cuda != "None"]'),
            {5: 'number: 0  # [cuda == "None"]', 6: 'number: 100  # [cuda != "None"]'},
            {5: 'number: 6  # [cuda == "None"]', 6: 'number: 106  # [cuda != "None"]'},
        ),
        (
            META.format(
                '{% set n = 7 %}  # [win]\n{% set n = 7 %}  # [not win]\n{% set n = "7" %}  # [win]\n', "{{ n }}"
            ),
            {2: "{% set n = 0 %}  # [not win]", 3: '{% set n = "0" %}  # [win]'},
            {2: "{% set n = 8 %}  # [not win]", 3: '{% set n = "8" %}  # [win]'},
        ),
    ],
    ids=["literal", "large", "set", "offset", "selectors", "overridden"],
)
def test_numbers_of_a_meta_yaml(text: str, reset: dict[int, str], next_build: dict[int, str], tmp_path: Path) -> None:
    case = feedstock(tmp_path, text, configs=GPU)
    changed = changed_lines(bumped(case, "2.0"))
    assert changed.pop(next(number for number, line in changed.items() if "version" in line)) == "version: 2.0"
    assert changed == reset
    assert changed_lines(bump.prepare_build_bump(case)) == next_build


def test_numbers_of_a_recipe_yaml(tmp_path: Path) -> None:
    text = (
        "context:\n  version: '1.0'\n  build: 3\nrecipe:\n  name: a\n  version: ${{ version }}\n"
        "build:\n  number: ${{ build + 100 }}\noutputs:\n"
        "  - package:\n      name: b\n  - package:\n      name: c\n    build:\n      number: 5\n"
        "  - package:\n      name: d\n      version: 9\n    build:\n      number: 8\n"
    )
    case = feedstock(tmp_path, text, v1=True)
    assert changed_lines(bumped(case, "2.0")) == {2: "version: '2.0'", 3: "build: 0", 15: "number: 0"}
    plan = bump.prepare_build_bump(case)
    assert changed_lines(plan) == {3: "build: 4", 15: "number: 6", 20: "number: 9"}
    assert plan.numbers == ((5, 8, 103), (6, 9, 104))


@pytest.mark.parametrize(
    ("text", "message"),
    [
        (
            META.format("{% set a = 3 %}\n{% set b = 4 %}\n", "{{ a + b }}"),
            "recipe/meta.yaml:1:12: the build number has several parts\n  why: lines 1, 2 are added up to 7",
        ),
        (META.format("{% set n = 1 + 2 %}\n", "{{ n }}"), "recipe/meta.yaml:6:3: the build number is computed"),
        (META.format("", "{{ environ.get('N', '4') }}"), "recipe/meta.yaml:5:3: the build number is computed"),
        (
            META.format("", '3  # [cuda == "None"]\n  number: 112  # [cuda != "None"]'),
            "unclear which are offsets\n  why: lines 5, 6 have 3, 112 for variants of one package",
        ),
    ],
    ids=["sum", "expression", "environment", "offsets"],
)
def test_a_number_without_one_answer_is_refused_by_its_lines(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(RecipeFault, match=re.escape(message)):
        bumped(feedstock(tmp_path, text, configs=GPU), "2.0")


def test_a_recipe_without_a_build_number_has_none_to_increment(tmp_path: Path) -> None:
    case = feedstock(tmp_path, "package:\n  name: a\n  version: 1.0\n")
    with pytest.raises(RecipeFault, match=r"(?s)no build number.*add 'number: 0'"):
        bump.prepare_build_bump(case)
    assert changed_lines(bumped(case, "2.0")) == {3: "version: 2.0"}
