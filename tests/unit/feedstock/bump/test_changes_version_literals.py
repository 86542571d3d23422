"""The version of a recipe comes from literals, which are found by trying them."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import KilnError, RecipeFault, TemplateFault, UsageError
from tests.bumping import bumped, changed_lines, feedstock

if TYPE_CHECKING:
    from pathlib import Path

META = "package:\n  name: a\n  version: {}\nbuild:\n  number: 0\n"


@pytest.mark.parametrize(
    ("text", "version", "changes"),
    [
        (META.format("1.2.3"), "2.0", {3: "version: 2.0"}),
        (META.format("'1.2.3'"), "2.0", {3: "version: '2.0'"}),
        ('{% set version = "1.2.3" %}\n' + META.format("{{ version }}"), "2.0", {1: '{% set version = "2.0" %}'}),
        ("{% set version = 1.2 %}\n" + META.format("{{ version }}"), "2.0.1", {1: '{% set version = "2.0.1" %}'}),
        ("{%- set version='1.2.3' -%}\n" + META.format("{{ version }}"), "2.0", {1: "{%- set version='2.0' -%}"}),
        (
            '# {% set version = "1.2.3" %}\n{% set version = "1.2.3" %}  # 1.2.3\n' + META.format("{{ version }}"),
            "2.0",
            {2: '{% set version = "2.0" %}  # 1.2.3'},
        ),
        (
            '{% set version = "2.30.4-1" %}\n' + META.format('{{ version|replace("-", ".") }}'),
            "2.31.0-1",
            {1: '{% set version = "2.31.0-1" %}'},
        ),
        (
            '{% set version = "1.3-4" %}\n' + META.format("{{ version|replace('-', '_') }}"),
            "1.4-0",
            {1: '{% set version = "1.4-0" %}'},
        ),
        (
            '{% set version = environ.get("VERSION", "1.2.3") %}\n' + META.format("{{ version }}"),
            "2.0",
            {1: '{% set version = environ.get("VERSION", "2.0") %}'},
        ),
        (
            '{% set major = 1 %}\n{% set minor = "2" %}\n' + META.format('{{ major }}.{{ minor ~ ".3" }}'),
            "4.5.3",
            {1: "{% set major = 4 %}", 2: '{% set minor = "5" %}'},
        ),
        (
            '{% set other = "1.2.3" %}\n{% set v = {"version": "1.2.3"} %}\n' + META.format('{{ v["version"] }}'),
            "2.0",
            {2: '{% set v = {"version": "2.0"} %}'},
        ),
        (
            '{% set version = "1.0" %}  # [unix]\n{% set version = "1.0" %}  # [win]\n' + META.format("{{ version }}"),
            "2.0",
            {1: '{% set version = "2.0" %}  # [unix]', 2: '{% set version = "2.0" %}  # [win]'},
        ),
    ],
    ids=[
        "literal",
        "quoted",
        "set",
        "number",
        "trimmed",
        "comments",
        "replaced",
        "underscored",
        "default",
        "parts",
        "table",
        "selectors",
    ],
)
def test_a_meta_yaml_gets_another_version_and_nothing_else(
    text: str, version: str, changes: dict[int, str], tmp_path: Path
) -> None:
    assert changed_lines(bumped(feedstock(tmp_path, text), version)) == changes


V1 = "context:\n{}\npackage:\n  name: a\n  version: {}\nbuild:\n  number: 0\n"


@pytest.mark.parametrize(
    ("text", "version", "changes"),
    [
        (V1.format('  version: "1.2.3"', "${{ version }}"), "2.0", {2: 'version: "2.0"'}),
        (V1.format("  version: 1.2.3  # 1.2.3", "${{ version }}"), "2", {2: 'version: "2"  # 1.2.3'}),
        (V1.format("  unused: 1", "'1.2.3'"), "2.0", {5: "version: '2.0'"}),
        (
            V1.format("  major: 1\n  minor: '2'", '"${{ major }}.${{ minor }}"'),
            "4.5",
            {2: "major: 4", 3: "minor: '5'"},
        ),
        (V1.format("  name: '1.2.3'\n  v: 1.2.3", "${{ v }}"), "2.0", {3: "v: 2.0"}),
    ],
    ids=["context", "plain", "literal", "parts", "other"],
)
def test_a_recipe_yaml_gets_another_version_and_nothing_else(
    text: str, version: str, changes: dict[int, str], tmp_path: Path
) -> None:
    assert changed_lines(bumped(feedstock(tmp_path, text, v1=True), version)) == changes


def test_a_version_that_is_computed_is_refused_by_its_line(tmp_path: Path) -> None:
    text = '{% set version = ["1", "2"] | join(".") | upper %}\n' + META.format('{{ version ~ "." ~ (2 + 1) }}')
    with pytest.raises(RecipeFault, match=re.escape("recipe/meta.yaml:1:8: the version is computed")):
        bumped(feedstock(tmp_path, text), "2.0")


@pytest.mark.parametrize("selector", ["", "  # [win]"])
def test_a_recipe_that_the_new_version_makes_invalid_is_refused_by_its_line(selector: str, tmp_path: Path) -> None:
    text = f'{{% set version = "1.2.3" %}}\n{{% set x, y, z = version.split(".") %}}{selector}\n'
    case = feedstock(tmp_path, text + META.format("{{ version }}"))
    with pytest.raises(TemplateFault, match=r"meta.yaml:2: with version 2.0, the template fails\n  why: ValueError"):
        bumped(case, "2.0")
    assert changed_lines(bumped(case, "2.0.0")) == {1: '{% set version = "2.0.0" %}'}


def test_versions_that_differ_by_selectors_are_refused_by_their_lines(tmp_path: Path) -> None:
    text = '{% set version = "1.0" %}  # [unix]\n{% set version = "1.1" %}  # [win]\n' + META.format("{{ version }}")
    with pytest.raises(RecipeFault, match=r"(?s)several versions.*are 1.0, 1.1.*lines 1, 2 by hand"):
        bumped(feedstock(tmp_path, text), "2.0")


def test_a_version_of_a_variant_file_is_refused(tmp_path: Path) -> None:
    text = "{% set version = a_version %}\n" + META.format("{{ version }}")
    configs = {f"linux_64_{item}": f"a_version:\n- '{item}'\ntarget_platform:\n- linux-64\n" for item in ("1.0", "1.1")}
    with pytest.raises(RecipeFault, match=r"(?s)several versions.*are 1.0, 1.1.*such as in conda_build_config.yaml"):
        bumped(feedstock(tmp_path, text, configs=configs), "2.0")


def test_a_key_without_a_value_is_reported_with_the_command_that_gives_it_one(tmp_path: Path) -> None:
    text = V1.format("  version: 1.0\n  other: ${{ a_key }}", "${{ version }}")
    with pytest.raises(KilnError, match=r"(?s)recipe.yaml:3:10: .*a_key is not defined\n  try: kiln rerender first"):
        bumped(feedstock(tmp_path, text, v1=True), "2.0")


@pytest.mark.parametrize("version", ["", "v2.0", "2.0 ", "2.0;x", "2/0", "-2", "2.0}}", "9" * 65])
def test_an_invalid_version_is_refused(version: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="invalid version"):
        bumped(feedstock(tmp_path, META.format("1.0")), version)


def test_the_same_version_is_refused_and_an_older_one_noted(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=r"the recipe has version 1\.10"):
        bumped(feedstock(tmp_path, META.format("1.10")), "1.10")
    assert bumped(feedstock(tmp_path, META.format("1.10")), "1.9").notes == ("1.9 is older than 1.10",)


def test_an_output_with_a_version_of_its_own_keeps_it_and_its_build_number(tmp_path: Path) -> None:
    text = META.format("1.2").replace("number: 0", "number: 4") + (
        "outputs:\n  - name: b\n    version: 7\n    build:\n      number: 3\n"
        "  - name: c\n    version: 1.2\n  - name: d\n"
    )
    plan = bumped(feedstock(tmp_path, text), "2.0")
    assert changed_lines(plan) == {3: "version: 2.0", 5: "number: 0"}
    assert plan.notes == ("the output c keeps the version 1.2, which it writes out",)


@pytest.mark.parametrize("ending", ["\r\n", "\n"])
def test_line_endings_and_tabs_stay(ending: str, tmp_path: Path) -> None:
    text = '{% set version = "1.2.3" %}\t \n\n' + META.format("{{ version }}").rstrip("\n")
    text = text.replace("\n", ending)
    assert bumped(feedstock(tmp_path, text), "2.0").changed_text == text.replace("1.2.3", "2.0")
