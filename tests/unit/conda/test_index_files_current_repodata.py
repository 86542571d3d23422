"""The part of an index that most solves need."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.conda.index_files import newest_records_and_dependencies

if TYPE_CHECKING:
    from collections.abc import Mapping


def records(**depends: tuple[str, ...]) -> dict[str, Mapping[str, Any]]:
    """Return records by files ``NAME_VERSION``, in which ``_`` stands for a dash."""
    return {
        file: {
            **dict(zip(("name", "version"), file.rsplit("_", 1), strict=True)),
            "build": "0",
            "build_number": 0,
            "subdir": "linux-64",
            "depends": list(specs),
        }
        for file, specs in depends.items()
    }


@pytest.mark.parametrize(
    ("app", "expected"),
    [
        ((), {"lib_3"}),
        (("lib",), {"lib_3"}),
        (("lib >=2",), {"lib_3"}),
        (("lib <3",), {"lib_3", "lib_2"}),
        (("lib <2",), {"lib_3", "lib_1"}),
        (("lib >3",), {"lib_3"}),
        (("lib ==?",), {"lib_3"}),
        (("unknown 1",), {"lib_3"}),
    ],
)
def test_older_versions_that_a_newest_one_needs_are_in_it(app: tuple[str, ...], expected: set[str]) -> None:
    selection = newest_records_and_dependencies(records(lib_1=(), lib_2=(), lib_3=(), app_1=(), app_2=app))
    assert set(selection) == {"app_2", *expected}


def test_the_needs_of_older_versions_count_too() -> None:
    selection = newest_records_and_dependencies(
        records(app_1=("lib <2",), lib_1=("base <2",), lib_2=(), base_1=(), base_2=(), base_3=())
    )
    assert set(selection) == {"app_1", "lib_1", "lib_2", "base_1", "base_3"}


def test_versions_are_in_condas_order_and_files_sorted() -> None:
    assert list(newest_records_and_dependencies(records(b_9=(), b_10=(), a_1=()))) == ["a_1", "b_10"]


def test_packages_that_need_each_other_end() -> None:
    assert set(newest_records_and_dependencies(records(a_1=("b 1",), a_2=("b 1",), b_1=("a 1",), b_2=()))) == {
        "a_1",
        "a_2",
        "b_1",
        "b_2",
    }
