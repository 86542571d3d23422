"""The matrix is laid out as a table."""

from __future__ import annotations

import pytest

from kiln.run.report.text import lay_out_grid
from tests import runs

PYTHONS = ("3.9", "3.10")


def test_the_grid_has_pythons_across_in_the_order_of_versions() -> None:
    variants = runs.variants(("12.9", "None", "12.10"), ("3.10", "3.9"))
    result = lay_out_grid(list(variants), variants)
    assert result.columns == ("Python 3.9", "Python 3.10")
    assert [row.heads for row in result.rows] == [(("none", 1),), (("12.9", 1),), (("12.10", 1),)]
    assert result.rows[1].places[0] == ("linux_64_cuda_compiler_version12.9python3.9.____cpython",)


def test_a_head_spans_the_rows_that_it_is_for() -> None:
    variants = runs.variants(("None", "12.9"), PYTHONS, levels=("1", "3"))
    assert [row.heads for row in lay_out_grid(list(variants), variants).rows] == [
        (("none", 2), ("1", 1)),
        (("none", 0), ("3", 1)),
        (("12.9", 2), ("1", 1)),
        (("12.9", 0), ("3", 1)),
    ]


def test_a_place_without_a_config_is_empty() -> None:
    variants = runs.variants(("None", "12.9"), PYTHONS)
    missing = variants.pop("linux_64_cuda_compiler_version12.9python3.9.____cpython")
    assert missing
    assert lay_out_grid(list(variants), variants).rows[1].places[0] == ()


def test_where_it_is_not_known_what_varies_each_config_has_a_row() -> None:
    configs = [*runs.variants(("None",), PYTHONS), "linux_64_gone"]
    assert [row.places for row in lay_out_grid(configs, {}).rows] == [((config,),) for config in configs]


@pytest.mark.parametrize("count", [1, 4, 12, 192])
def test_every_config_has_one_place(count: int) -> None:
    cudas, levels = {1: (1, 1), 4: (1, 1), 12: (3, 1), 192: (8, 6)}[count]
    pythons = tuple(f"3.{minor}" for minor in range(10, 10 + min(count, 4)))
    variants = runs.variants([f"12.{n}" for n in range(cudas)], pythons, [str(n) for n in range(levels)])
    assert len(variants) == count
    result = lay_out_grid(list(variants), variants)
    assert sorted(config for row in result.rows for place in row.places for config in place) == sorted(variants)
