"""Input that once took gigabytes or minutes, or never ended, is refused or read, and the refusal names the place."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kiln.base import limits
from kiln.conda.provenance.bazel_repositories import LARGEST_FILE, external_repositories
from tests.bench.hostile import fails, read
from tests.builders import LINUX_ONLY
from tests.hostile import CONFIG, NAMED, Hostile, template

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled


@pytest.mark.parametrize("hostile", NAMED.values(), ids=NAMED)
def test_a_hostile_feedstock_is_refused_or_done(hostile: Hostile, tmp_path: Path) -> None:
    reading = read(hostile.write(tmp_path).root, "rerender")
    assert not fails(reading), reading
    if reading.code == 8:
        assert re.match(r"error: recipe/(meta|conda_build_config)\.yaml:", reading.said), reading.said


@pytest.mark.parametrize(
    "command", [("matrix",), ("render", CONFIG), ("build", CONFIG, "--container", "none", "--dry-run")]
)
def test_every_command_that_renders_is_bounded_and_names_the_line(command: tuple[str, ...], tmp_path: Path) -> None:
    reading = read(template("growth", "{{ ','.join(['a'*1000000]*5000) }}").write(tmp_path).root, *command)
    assert not fails(reading), reading
    assert reading.code == 8
    assert "error: recipe/meta.yaml:5: rendering takes more work than a recipe needs" in reading.said


def test_the_line_of_a_step_without_end_is_named(tmp_path: Path) -> None:
    reading = read(template("number", "{{ 7 ** 1000000000 }}").write(tmp_path).root, "render", CONFIG)
    assert not fails(reading), reading
    assert reading.said.startswith("error: recipe/meta.yaml:5: "), reading.said
    assert "8 s of processor time" in reading.said


def test_the_largest_files_for_bazel_are_read_within_the_limits() -> None:
    data = (b"a(b=c)\n" * (LARGEST_FILE // 7))[:LARGEST_FILE]
    last = b'http_archive(name = "a", url = "https://a.example/a.zip")'
    files = {**{f"{number}/WORKSPACE": data for number in range(10)}, "WORKSPACE": last}
    assert [item.name for item in limits.run_bounded(lambda: external_repositories(files))] == ["a"]


HEAD = "package:\n  name: p\n  version: '1'\n"
DEEP = "".join("  " * depth + "- if: linux\n" + "  " * depth + "  then:\n" for depth in range(2, 80))
OUTPUTS = "".join(
    f"  - package:\n      name: p{number}\n    requirements:\n      host: [k]\n" for number in range(3000)
)


def recipe(text: str, variants: str = "") -> Hostile:
    files = [("recipe/recipe.yaml", text)]
    files += [("recipe/variants.yaml", variants)] if variants else []
    return Hostile(family="v1", forge=LINUX_ONLY + "conda_build_tool: rattler-build\n", files=tuple(files))


def summary(expression: str) -> Hostile:
    return recipe(f"{HEAD}about:\n  summary: {expression}\n")


GROWING = "context:\n  a: ${{ 'a' * 1000000 }}\n" + "".join(
    f"  {name}: ${{{{ {before} ~ {before} ~ {before} ~ {before} }}}}\n"
    for before, name in zip("abcdefghij", "bcdefghijk", strict=True)
)
NAMED_V1 = {
    "repeated": summary("${{ 'a' * 10000000000 }}"),
    "list": summary("${{ [0] * 1000000000 }}"),
    "replaced": summary("${{ ('a' * 1000000) | replace('a', 'b' * 10000) }}"),
    "joined": summary("${{ ('a' * 1000000) | join('b' * 10000) }}"),
    "power": summary("${{ 9 ** 9 ** 9 ** 9 }}"),
    "shifted": summary("${{ (10 ** 30) * (10 ** 30) * 10 ** 30 }}"),
    "parentheses": summary("${{ " + "(" * 1500 + "1" + ")" * 1500 + " }}"),
    "signs": summary("${{ " + "-" * 3000 + "1 }}"),
    "version": recipe(HEAD + "build:\n  skip: match('" + "1." * 1500 + "1', '>=1')\n"),
    "spec": summary("${{ match('1', '" + "(" * 900 + "1') }}"),
    "context": recipe(GROWING + HEAD),
    "conditions": recipe(f"{HEAD}requirements:\n  host:\n{DEEP}" + "  " * 80 + "- a\n"),
    "matrix": recipe(
        HEAD + "requirements:\n  host: [" + ", ".join(f"k{number}" for number in range(30)) + "]\n",
        "".join(f"k{number}: ['1', '2', '3']\n" for number in range(30)),
    ),
    "outputs": recipe(f"recipe:\n  name: r\n  version: '1'\noutputs:\n{OUTPUTS}", "k: [1, 2, 3, 4, 5, 6, 7, 8, 9]\n"),
    "aliases": recipe(
        "context:\n  a: &a [x, x, x, x, x, x, x, x, x, x]\n"
        + "".join(
            f"  {name}: &{name} [{', '.join([f'*{before}'] * 10)}]\n"
            for before, name in zip("abcdef", "bcdefg", strict=True)
        )
        + HEAD
    ),
    "condition of variants": recipe(HEAD, f"a:\n  - if: {'not ' * 900}linux\n    then: 1\n"),
}


@pytest.mark.parametrize("hostile", NAMED_V1.values(), ids=NAMED_V1)
def test_a_hostile_recipe_is_refused_or_done(hostile: Hostile, tmp_path: Path) -> None:
    reading = read(hostile.write(tmp_path).root, "matrix")
    assert not fails(reading), reading
    if reading.code:
        assert reading.said.startswith(("error: recipe/recipe.yaml", "error: recipe/variants.yaml")), reading.said


def test_the_line_of_a_recipe_yaml_that_takes_too_much_is_named(tmp_path: Path) -> None:
    reading = read(NAMED_V1["replaced"].write(tmp_path).root, "matrix")
    assert reading.code == 8
    assert reading.said.startswith("error: recipe/recipe.yaml:5: rendering takes more work than a recipe needs")
