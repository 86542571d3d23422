"""A recipe is evaluated once for each combination that its packages tell apart, and not for all that vary."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RecipeFault
from kiln.recipe.v1 import variants
from kiln.recipe.v1.recipe import RecipeV1
from tests.unit.recipe.v1.support import HEAD, found

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.v1.recipe import PackageAtVariant
    from kiln.recipe.v1.scope import VariantScope

WIDE = {f"key{number}": [str(value) for value in range(10)] for number in range(30)}  # 10^30 combinations


@pytest.fixture
def evaluations(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """One item for each evaluation of a package."""
    counted: list[int] = []
    package = RecipeV1.package_at_variant

    def counting(self: RecipeV1, index: int, scope: VariantScope) -> PackageAtVariant:
        counted.append(index)
        return package(self, index, scope)

    monkeypatch.setattr(RecipeV1, "package_at_variant", counting)
    return counted


def test_keys_that_no_package_reads_cost_nothing(tmp_path: Path, evaluations: list[int]) -> None:
    ((part, _),) = found(tmp_path, HEAD, WIDE)
    assert len(evaluations) == 1
    assert part.varying_keys == WIDE.keys()


def test_a_key_divides_the_branch_that_reads_it_alone(tmp_path: Path, evaluations: list[int]) -> None:
    text = HEAD + "requirements:\n  host:\n    - if: key0 == '3'\n      then: key1\n"
    packages = found(tmp_path, text, WIDE)
    assert len(packages) == 19
    assert {len(package.used) for _, package in packages} == {2, 3}
    assert len(evaluations) == 19


def test_each_output_is_divided_by_its_own_keys(tmp_path: Path, evaluations: list[int]) -> None:
    outputs = "".join(
        f"  - package:\n      name: p{number}\n    requirements:\n      host: [key{number}]\n" for number in range(5)
    )
    packages = found(tmp_path, f"recipe:\n  name: r\n  version: '1'\noutputs:\n{outputs}", WIDE)
    assert len(packages) == 50
    assert len(evaluations) == 50


def test_zipped_keys_advance_together(tmp_path: Path) -> None:
    spec = {"python": ["3.9", "3.10"], "free": ["no", "yes"], "zip_keys": [["python", "free"]]}
    packages = found(tmp_path, HEAD + 'requirements:\n  host: [python]\n  run: ["${{ free }}"]\n', spec)
    chosen = [(package.scope.variant["python"], package.sections["requirements"]["run"]) for _, package in packages]
    assert chosen == [("3.9", ["no"]), ("3.10", ["yes"])]


def test_an_ignored_key_does_not_narrow_the_part(tmp_path: Path) -> None:
    text = HEAD + "build:\n  variant:\n    ignore_keys: [python]\nrequirements:\n  host: [python]\n"
    parts = [part for part, _ in found(tmp_path, text, {"python": ["3.9", "3.10"]})]
    assert all(part.varying_keys == {"python"} for part in parts)


def test_a_matrix_that_explodes_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(variants, "_MOST", 500)
    hosts = ", ".join(WIDE)
    with pytest.raises(RecipeFault, match="the matrix explodes"):
        found(tmp_path, f"{HEAD}requirements:\n  host: [{hosts}]\n", WIDE)
