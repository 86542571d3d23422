"""A channel's channeldata.json: packages are added, and facts on others do not change."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiln.base.errors import BrokenIndex
from kiln.conda.index import IndexEntry
from kiln.conda.index_files import channeldata_with_entries

OTHER = {"version": "1", "subdirs": ["osx-64"], "home": "https://example.org"}


def entry(version: str, subdir: str = "linux-64", **record: Any) -> IndexEntry:
    values = {"name": "lib", "version": version, "license": f"license of {version}", **record}
    exports = {"weak": [f"lib >={version}"]}
    return IndexEntry(file=f"lib-{version}-0.conda", subdir=subdir, record=values, run_exports=exports)


def channeldata(**packages: Any) -> bytes:
    return json.dumps({"channeldata_version": 1, "packages": packages, "subdirs": ["osx-64"]}, indent=2).encode()


def test_a_new_package_is_added_and_others_stay() -> None:
    value = json.loads(channeldata_with_entries(channeldata(other=OTHER, zlib=OTHER), [entry("2", timestamp=5_999)]))
    assert value["channeldata_version"] == 1
    assert value["subdirs"] == ["linux-64", "osx-64"]
    assert list(value["packages"]) == ["lib", "other", "zlib"]
    assert value["packages"]["other"] == OTHER
    assert value["packages"]["lib"] == {
        "version": "2",
        "license": "license of 2",
        "run_exports": {"2": {"weak": ["lib >=2"]}},
        "subdirs": ["linux-64"],
        "timestamp": 5,
    }


@pytest.mark.parametrize(("version", "newest"), [("1.9", "1.10"), ("1.11", "1.11"), ("1.10", "1.10")])
def test_the_facts_are_those_of_the_newest_version(version: str, newest: str) -> None:
    existing = {"version": "1.10", "license": "license of 1.10", "run_exports": {"1.10": {}}, "timestamp": 9}
    lib = json.loads(channeldata_with_entries(channeldata(lib=existing), [entry(version, subdir="noarch")]))[
        "packages"
    ]["lib"]
    assert (lib["version"], lib["license"], lib["timestamp"]) == (newest, f"license of {newest}", 9)
    assert lib["run_exports"][version] == {"weak": [f"lib >={version}"]}
    assert lib["subdirs"] == ["noarch"]
    assert "1.10" in lib["run_exports"]


@pytest.mark.parametrize("data", [b"[]", b"{", b'{"packages": [1]}', b'{"packages": {"lib": 1}}'])
def test_an_invalid_file_is_reported(data: bytes) -> None:
    with pytest.raises(BrokenIndex, match=r"channeldata\.json cannot be read"):
        channeldata_with_entries(data, [entry("1")])
