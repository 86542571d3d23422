"""A JSON file of an index is changed record by record: the rest stays as it was written."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BrokenIndex, BrokenPackage
from kiln.conda.index import IndexDocument, read_index_entry, require_writable
from kiln.conda.index_files import render_index_files
from tests.packages import conda_package, release_package
from tests.unit.conda.index import index, offered

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

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


def test_a_later_index_keeps_the_patches_of_a_record_which_add_up(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1").with_patched_record("small-1-0.conda", {"depends": ["a"], "b": 1})
    subdir = subdir.with_patched_record("small-1-0.conda", {"b": 2})
    for later in (subdir, subdir.with_packages([])):
        record = offered(later)["small-1-0.conda"]
        assert (record["depends"], record["b"]) == (["a"], 2)
    assert subdir.records["small-1-0.conda"]["depends"] == []
    assert subdir.instructions.records() == {"small-1-0.conda": {"depends": ["a"], "b": 2}}


def test_a_withdrawn_package_stays_withdrawn_when_it_is_added_again(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1", "large-1").with_packages_withdrawn(["small-1-0.conda"])
    again = subdir.with_packages([read_index_entry(tmp_path / "small-1-0.conda")])
    assert set(again.visible_records) == {"large-1-0.conda"}
    assert set(again.records) == {"large-1-0.conda", "small-1-0.conda"}
    assert again.removed_files == {"small-1-0.conda"}


def test_a_removed_package_leaves_no_trace(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1", "large-1").with_patched_record("small-1-0.conda", {"license": "MIT"})
    without = subdir.with_packages_withdrawn(["small-1-0.conda"]).without_packages(["small-1-0.conda"])
    expected = render_index_files(index(tmp_path, "large-1"))
    assert render_index_files(without) == expected
    assert without.changed == {"small", "large"}


def test_only_the_names_of_removed_packages_count_as_changed(tmp_path: Path) -> None:
    """current_repodata.json is made again for names that changed, and keeps the others."""
    subdir = dataclasses.replace(index(tmp_path, "small-1", "large-1"), changed=frozenset())
    assert subdir.without_packages(["small-1-0.conda"]).changed == {"small"}
    assert subdir.with_packages_withdrawn(["small-1-0.conda"]).changed == {"small"}
    assert render_index_files(subdir.without_packages(["missing-1-0.conda"])) == render_index_files(subdir)


def test_package_files_are_next_to_the_index_unless_it_has_another_url(tmp_path: Path) -> None:
    subdir = index(tmp_path, "small-1")
    records = {"app-1.whl": {"name": "app", "version": "1"}}
    mixed = dataclasses.replace(subdir, base=subdir.base.with_records(records))
    assert mixed.base_url == ""
    assert mixed.files_next_to_index == {"small-1-0.conda"}
    info = {**subdir.repodata.value, "info": {"base_url": "https://files.example/"}}
    elsewhere = dataclasses.replace(mixed, repodata=dataclasses.replace(subdir.repodata, value=info))
    assert (elsewhere.base_url, elsewhere.files_next_to_index) == ("https://files.example/", frozenset())


def test_a_record_has_the_metadata_and_the_hashes_of_the_file(tmp_path: Path) -> None:
    package = release_package(tmp_path, "small", depends=["python >=3.11"])
    entry = read_index_entry(package)
    assert entry.path == "linux-64/small-1-0.conda"
    assert entry.record["depends"] == ["python >=3.11"]
    assert entry.record["sha256"] == hashlib.sha256(package.read_bytes()).hexdigest()
    assert entry.record["md5"] == hashlib.md5(package.read_bytes()).hexdigest()
    assert entry.record["size"] == package.stat().st_size
    assert entry.run_exports == {"weak": ["small >=1"]}


def test_a_renamed_package_is_refused(tmp_path: Path) -> None:
    package = release_package(tmp_path, "small")
    with pytest.raises(BrokenPackage, match=r"small-1-0\.conda"):
        read_index_entry(package.rename(tmp_path / "small-2-0.conda"))


def test_metadata_that_no_client_could_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(BrokenPackage, match="no client can read"):
        read_index_entry(release_package(tmp_path, "small", depends="python"))


@pytest.mark.parametrize("exports", [[], {"weak": "a >=1"}, {"weak": [1]}, None])
def test_run_exports_of_another_form_are_refused(tmp_path: Path, exports: object) -> None:
    index = {"name": "small", "version": "1", "build": "0", "build_number": 0, "subdir": "linux-64", "depends": []}
    package = conda_package(tmp_path / "small-1-0.conda", {"index.json": index, "run_exports.json": exports})
    with pytest.raises(BrokenPackage, match="not an object of lists of specs"):
        read_index_entry(package)


def test_a_missing_file_or_a_folder_is_refused_and_a_link_is_read(tmp_path: Path) -> None:
    (tmp_path / "folder-1-0.conda").mkdir()
    (tmp_path / "loop-1-0.conda").symlink_to("loop-1-0.conda")
    for name in ("folder", "missing", "loop"):
        with pytest.raises(BrokenPackage, match=f"{name}-1-0"):
            read_index_entry(tmp_path / f"{name}-1-0.conda")
    package = release_package(tmp_path / "store", "small")
    link = tmp_path / package.name
    link.symlink_to(package)
    assert read_index_entry(link) == read_index_entry(package)
