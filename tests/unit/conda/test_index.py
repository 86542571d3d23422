"""A JSON file of an index is changed record by record: the rest stays as it was written."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BrokenIndex
from kiln.conda.index import IndexDocument, file_name_of_key, require_writable, section_of_file

if TYPE_CHECKING:
    from collections.abc import Callable

OLD, NEW, WHEEL = "a-1-0.tar.bz2", "a-1-0.conda", "app-1-py3"
VALUE: dict[str, Any] = {
    "info": {"subdir": "linux-64", "repodata_revisions": {"v3": {"n_packages": 1, "newest": 7, "oldest": 7}}},
    "packages": {OLD: {"name": "a"}},
    "packages.conda": {NEW: {"name": "a"}, "b-1-0.conda": {"name": "b"}},
    "v3": {"whl": {WHEEL: {"name": "app", "indexed_timestamp": 7}}},
    "of another tool": [1],
}


def document(**changed: Any) -> IndexDocument:
    return IndexDocument.parse(json.dumps({**VALUE, **changed}).encode())


@pytest.mark.parametrize(
    "write",
    [
        lambda value: json.dumps(value, indent=2) + "\n",
        lambda value: json.dumps(value, separators=(",", ":")),
        lambda value: json.dumps({**value, "é": "ü"}, indent=2, ensure_ascii=False),
    ],
    ids=["indented", "compact", "not ASCII"],
)
def test_the_format_of_a_file_is_kept(write: Callable[[Any], str]) -> None:
    data = write(VALUE).encode()
    assert IndexDocument.parse(data).to_json() == data


@pytest.mark.parametrize(
    "data",
    [
        b"[]",
        b"1",
        b'{"packages": [1]}',
        b'{"packages": {"a": 1}}',
        b'{"v3": [1]}',
        b'{"removed": [1]}',
        b'{"remove": 1}',
        b"{",
    ],
)
def test_other_json_is_not_an_index(data: bytes) -> None:
    with pytest.raises((ValueError, TypeError, AttributeError)):
        IndexDocument.parse(data)


def test_records_are_found_in_every_section_by_their_files() -> None:
    assert set(document().records()) == {OLD, NEW, "b-1-0.conda", f"{WHEEL}.whl"}
    assert (file_name_of_key(("v3", "whl"), WHEEL), file_name_of_key(("packages",), OLD)) == (f"{WHEEL}.whl", OLD)
    assert (section_of_file(OLD), section_of_file(NEW)) == ("packages", "packages.conda")


def test_removing_a_record_leaves_all_else() -> None:
    changed = document().without_files([NEW, OLD]).value
    assert changed == {**VALUE, "packages": {}, "packages.conda": {"b-1-0.conda": {"name": "b"}}}
    assert list(changed) == list(VALUE), "keys stay in their order"


def test_a_new_record_replaces_that_of_its_file_and_is_sorted_in() -> None:
    changed = document().with_records(
        {"aa-1-0.conda": {"name": "aa"}, NEW: {"name": "new"}, "c.tar.bz2": {"name": "c"}}
    )
    assert list(changed.value["packages.conda"]) == [NEW, "aa-1-0.conda", "b-1-0.conda"]
    assert changed.records()[NEW] == {"name": "new"}
    assert list(changed.value["packages"]) == [OLD, "c.tar.bz2"]


def test_records_of_another_document_go_into_its_sections() -> None:
    other = document(**{"packages.conda": {}, "packages": {}, "v3": {"whl": {WHEEL: {"name": "other"}}}})
    changed = document().with_records_from_document(other, [f"{WHEEL}.whl", "missing.conda"])
    assert changed.value["v3"]["whl"] == {WHEEL: {"name": "other"}}
    assert changed.value["packages.conda"] == VALUE["packages.conda"]


def test_the_number_of_a_revisions_records_follows_them() -> None:
    more = document().with_records_in_sections(
        [(("v3", "whl"), "other-1-py3", {"name": "other", "indexed_timestamp": 9})]
    )
    assert more.value["info"]["repodata_revisions"]["v3"] == {"n_packages": 2, "newest": 9, "oldest": 7}
    plain = document(info={"subdir": "linux-64"}).with_records_in_sections(
        [(("v3", "whl"), "other-1-py3", {"name": "other"})]
    )
    assert plain.value["info"] == {"subdir": "linux-64"}, "where it had no number before, it has none"


def test_a_later_version_of_the_format_is_refused() -> None:
    require_writable("linux-64", document(repodata_version=2))
    for version in (3, "1", None):
        with pytest.raises(BrokenIndex, match="has repodata_version"):
            require_writable("linux-64", document(repodata_version=version))


@pytest.mark.parametrize("section", [{"name": "x", "version": "1"}, {"x.conda": {"name": "x", "version": "1"}}])
def test_an_unknown_section_of_packages_is_refused(section: dict[str, Any]) -> None:
    """A client that reads it would not find the packages that kiln adds."""
    with pytest.raises(BrokenIndex, match=r"lists packages below 'packages\.new'"):
        require_writable("linux-64", document(**{"packages.new": section}))
