from __future__ import annotations

import os
from typing import TYPE_CHECKING, Any

import pytest

from kiln.recipe.variants.migrations import apply_migration, migration_files_of_feedstock_and_pinning

if TYPE_CHECKING:
    from pathlib import Path

NUMBERED = "migrator_ts: 1\n__migrator:\n  migration_number: {}\n"
PYTHONS: dict[str, Any] = {"zip_keys": [["python", "free"]], "python": ["3.9", "3.10"], "free": ["no", "no"]}


def key_add(**values: Any) -> dict[str, Any]:
    about: dict[str, Any] = {"operation": "key_add", "primary_key": "python"}
    return {"__migrator": about | values.pop("about", {}), **values}


def test_values_are_raised_to_the_newer_ones() -> None:
    result = apply_migration({"a": ["1.9", "2"], "b": ["1"]}, {"a": ["1.10", "1", "3"], "c": ["7"]})
    assert result == {"a": ["1.10", "2", "3"], "b": ["1"], "c": ["7"]}


def test_an_ordering_decides_what_is_newer() -> None:
    about = {"ordering": {"a": ["old", "new", "newest"]}}
    assert apply_migration({"a": ["new"]}, {"__migrator": about, "a": ["newest"]})["a"] == ["newest"]
    assert apply_migration({"a": ["newest"]}, {"__migrator": about, "a": ["old"]})["a"] == ["newest"]


def test_rows_are_added_in_order_with_their_zipped_keys() -> None:
    result = apply_migration(PYTHONS, key_add(python=["3.11"], free=["yes"]))
    assert (result["python"], result["free"]) == (["3.9", "3.10", "3.11"], ["no", "no", "yes"])


def test_a_row_that_is_there_is_not_added_again() -> None:
    assert apply_migration(PYTHONS, key_add(python=["3.10"], free=["no"]))["python"] == ["3.9", "3.10"]


def test_keys_can_join_a_group() -> None:
    change = key_add(about={"additional_zip_keys": ["impl"]}, python=["3.11"], free=["yes"], impl=["new"])
    result = apply_migration({**PYTHONS, "impl": ["old"]}, change)
    assert result["zip_keys"] == [["python", "free", "impl"]]
    assert result["impl"] == ["old", "old", "new"]
    assert PYTHONS["zip_keys"] == [["python", "free"]]


def test_rows_are_removed_with_their_zipped_keys() -> None:
    change = {"__migrator": {"operation": "key_remove", "primary_key": "python"}, "python": ["3.9"]}
    result = apply_migration({**PYTHONS, "free": ["a", "b"]}, change)
    assert (result["python"], result["free"]) == (["3.10"], ["b"])


def test_a_group_takes_the_rows_that_its_primary_key_comes_from() -> None:
    spec = {"zip_keys": [["cuda", "image"]], "cuda": ["11"], "image": ["old"]}
    change = {"__migrator": {"primary_key": "cuda"}, "zip_keys": [["cuda", "image"]], "cuda": ["12"], "image": ["new"]}
    assert apply_migration(spec, change)["image"] == ["new"]


@pytest.mark.parametrize(
    ("mine", "theirs", "chosen"),
    [
        (NUMBERED.format(1), NUMBERED.format(1), "theirs"),
        (NUMBERED.format(2), NUMBERED.format(1), "mine"),
        ("migrator_ts: 1\n", "migrator_ts: 2\n", None),
        ("migrator_ts: 1\n", None, None),
        ("migrator_ts: 1\n__migrator:\n  use_local: true\n", None, "mine"),
        ("a:\n  - 1\n", None, "mine"),
    ],
)  # fmt: skip
def test_which_copy_of_a_migration_counts(tmp_path: Path, mine: str, theirs: str | None, chosen: str | None) -> None:
    for name, text in (("mine", mine), ("theirs", theirs)):
        (tmp_path / name).mkdir()
        if text is not None:
            (tmp_path / name / "x.yaml").write_text(text)
    result = migration_files_of_feedstock_and_pinning(tmp_path / "mine", tmp_path / "theirs")
    assert [path.parent.name for path in result] == ([chosen] if chosen else [])


def test_without_a_pinning_a_feedstocks_own_migrations_count(tmp_path: Path) -> None:
    (tmp_path / "x.yaml").write_text("migrator_ts: 1\n")
    os.utime(tmp_path / "x.yaml")
    assert migration_files_of_feedstock_and_pinning(tmp_path, None) == (tmp_path / "x.yaml",)
