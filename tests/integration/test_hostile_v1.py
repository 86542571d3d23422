"""A recipe.yaml made to exhaust whoever reads it is refused or done within the bounds, and says which line did it."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests.bench.hostile import fails, read
from tests.builders import LINUX_ONLY
from tests.hostile import Hostile

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled

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
NAMED = {
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


@pytest.mark.parametrize("hostile", NAMED.values(), ids=NAMED)
def test_a_hostile_recipe_is_refused_or_done(hostile: Hostile, tmp_path: Path) -> None:
    reading = read(hostile.write(tmp_path).root, "matrix")
    assert not fails(reading), reading
    if reading.code:
        assert reading.said.startswith(("error: recipe/recipe.yaml", "error: recipe/variants.yaml")), reading.said


def test_the_line_of_what_takes_too_much_is_named(tmp_path: Path) -> None:
    reading = read(NAMED["replaced"].write(tmp_path).root, "matrix")
    assert reading.code == 8
    assert reading.said.startswith("error: recipe/recipe.yaml:5: rendering takes more work than a recipe needs")
