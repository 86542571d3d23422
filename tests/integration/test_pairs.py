"""Two commands that start at the same moment on one feedstock: neither destroys what the other makes."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from tests import pairs

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled


@pytest.fixture(scope="module")
def place(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Return the folder of every feedstock in turn: a package may name its folder."""
    return tmp_path_factory.mktemp("pairs") / "feedstock"


@pytest.fixture(scope="module")
def expected(place: Path) -> dict[str, str]:
    """Return the packages of a build that nothing disturbs."""
    return pairs.undisturbed(place)


@pytest.mark.parametrize("pair", pairs.PAIRS, ids=lambda pair: pair.name)
def test_of_two_at_once_each_succeeds_or_says_that_the_other_builds(
    pair: pairs.Pair, place: Path, expected: dict[str, str]
) -> None:
    assert list(pairs.trial(pair, place, 2, expected)) == [[]] * 2


def test_what_was_built_while_the_feedstock_changed_is_not_taken_for_what_it_says_now(tmp_path: Path) -> None:
    root = pairs.feedstock(tmp_path / "feedstock")
    recipe, settings = root / "recipe" / "meta.yaml", root / "conda-forge.yml"
    changing = f"    - grep -q changed '{settings}' || echo '# changed' >> '{settings}'\n"
    recipe.write_text(recipe.read_text().replace("about:", f"{changing}about:"))
    first, second, third = (pairs.run(root, pairs.build(pairs.A))[0] for _ in range(3))
    assert [first.code, second.code, third.code] == [0, 0, 0], first.text
    assert "changed while it was built" in first.text
    assert ("1 done" in second.text, "1 cached" in third.text) == (True, True), second.text
