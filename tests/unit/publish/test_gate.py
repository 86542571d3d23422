"""What is no release is refused with every reason at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.errors import BrokenPackage, ReleaseRefused
from kiln.model.artifact import Artifact, Verdict
from kiln.model.release import Candidate, Contents, Release
from kiln.model.rendered import Output, Requirements
from kiln.model.run import CellState
from kiln.publish import contents, require_release
from kiln.publish.gate import Kind, reasons
from tests.packages import conda_package, release_package

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[3]


def candidate(name: str = "small", cell: str = "cell", **contents_of: Any) -> Candidate:
    index = {"name": name, "version": "1", "build": "0", "subdir": "linux-64", "depends": ["python >=3.11", "six"]}
    path = Path(f"/built/linux-64/{name}-1-0.conda")
    artifact = Artifact(
        path=path, sha256="aa", size=1, cell=cell, name=name, version="1", build_string="0", subdir="linux-64"
    )
    fields: dict[str, Any] = {"sha256": "aa", "size": 1, "index": index, "about": {"license": "MIT"}}
    fields |= {"licences": ("LICENCE",), "paths": (f"share/{name}",), **contents_of}
    return Candidate(
        path=path,
        cells=(cell,),
        artifact=artifact,
        verdict=Verdict.PASSED,
        contents=Contents(**fields),
        output=Output(
            name=name,
            version="1",
            build_number=0,
            build_string="0",
            subdir="linux-64",
            requirements=Requirements(run=("python >=3.11", "six")),
            run_exports={},
            about={},
            used={},
        ),
        needs_nothing_else=True,
    )


def release(*candidates: Candidate, **changed: Any) -> Release:
    fields: dict[str, Any] = {
        "cells": {"cell": CellState.DONE},
        "expected": {"cell": tuple(each.path.name for each in candidates)},
        "candidates": candidates,
        "allowed": ("*",),
    }
    return Release(**{**fields, **changed})


def kinds(given: Release) -> list[Kind]:
    return [reason.kind for reason in reasons(given)]


def test_a_whole_tested_matrix_is_a_release() -> None:
    require_release(release(candidate()))


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"cells": {"cell": CellState.DONE, "other": None}}, [Kind.MISSING_CELL]),
        ({"cells": {"cell": CellState.DONE, "other": CellState.OUT_OF_MEMORY}}, [Kind.FAILED_CELL]),
        ({"cells": {"cell": CellState.DONE, "other": CellState.FAILED}, "partial": frozenset({"other"})}, []),
        ({"partial": frozenset({"othr"})}, [Kind.MISSING_CELL]),
        ({"expected": {"cell": ("small-1-0.conda", "large-1-0.conda")}}, [Kind.MISSING_PACKAGE]),
        ({"allowed": ("large", "other*")}, [Kind.NOT_ALLOWED]),
        ({"held": {"linux-64/small-1-0.conda": "bb"}}, [Kind.HELD]),
        ({"held": {"linux-64/small-1-0.conda": ""}}, [Kind.HELD]),
        ({"held": {"linux-64/small-1-0.conda": "aa"}}, []),
        ({"candidates": (), "expected": {}}, [Kind.EMPTY]),
    ],
)
def test_the_matrix_and_the_channel_decide(changed: Mapping[str, Any], expected: list[Kind]) -> None:
    assert kinds(release(candidate(), **changed)) == expected


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"sha256": "cc"}, [Kind.CHANGED]),
        ({"about": {"license": "MIT", "extra": {"rehearsal": True}}}, [Kind.REHEARSAL]),
        ({"about": {}}, [Kind.NO_LICENCE]),
        ({"licences": ()}, [Kind.NO_LICENCE]),
        ({"leaks": (("bin/x", "a private key"),)}, [Kind.LEAK]),
        ({"escapes": ("../../etc/passwd",)}, [Kind.ESCAPE]),
    ],
)
def test_what_a_package_holds_decides(told: Mapping[str, Any], expected: list[Kind]) -> None:
    assert kinds(release(candidate(**told))) == expected


@pytest.mark.parametrize(
    "index",
    [
        {"name": "smaller"},
        {"version": "2"},
        {"build": "1"},
        {"subdir": "noarch"},
        {"depends": ["six"]},
        {"depends": ["python >=3.12", "six"]},
        {"depends": ["python >=3.11", "six", "evil"]},
        {"constrains": ["numpy <2"]},
    ],
)
def test_a_package_must_say_what_its_cell_renders(index: Mapping[str, Any]) -> None:
    right = candidate()
    assert right.contents is not None
    wrong = replace(right, contents=replace(right.contents, index={**right.contents.index, **index}))
    assert set(kinds(release(wrong))) == {Kind.MISMATCH}


def test_an_engine_may_add_what_requirements_for_building_export_and_bounds_to_bare_names() -> None:
    index = {**candidate().contents.index, "depends": ["python >=3.11", "six >=1.16", "libstdcxx >=13"]}  # type: ignore[union-attr] # a candidate made here has contents
    assert kinds(release(replace(candidate(index=index), needs_nothing_else=False))) == []


def test_untested_and_broken_packages_are_refused() -> None:
    assert kinds(release(replace(candidate(), verdict=Verdict.NONE))) == [Kind.UNTESTED]
    assert kinds(release(replace(candidate(), verdict=Verdict.FAILED))) == [Kind.UNTESTED]
    assert kinds(release(replace(candidate(), contents=None, broken="no zip file"))) == [Kind.BROKEN]
    assert kinds(release(replace(candidate(), output=None))) == [Kind.MISMATCH]


def test_two_packages_of_a_cell_must_not_install_the_same_file() -> None:
    one, two = candidate("one", paths=("bin/x", "share/one")), candidate("two", paths=("bin/x",))
    (reason,) = reasons(release(one, two))
    assert str(reason) == "same path: cell: bin/x is in one and two"
    elsewhere = candidate("two", cell="other", paths=("bin/x",))
    cells = {"cell": CellState.DONE, "other": CellState.DONE}
    assert kinds(release(one, elsewhere, cells=cells)) == []


def test_all_reasons_are_told_at_once() -> None:
    bad = replace(candidate(licences=(), sha256="cc"), verdict=Verdict.NONE)
    with pytest.raises(ReleaseRefused) as refused:
        require_release(release(bad, allowed=()))
    assert "for 4 reasons" in str(refused.value)
    assert [line.split(":")[0].strip() for line in refused.value.why.splitlines()] == [
        *("not allowed", "untested", "changed", "no licence"),
    ]


def test_every_kind_of_reason_has_its_row_in_the_documentation() -> None:
    page = (ROOT / "docs" / "how-to" / "publish.md").read_text()
    assert [kind.value for kind in Kind if f"| {kind.value} |" not in page] == []


# Real packages

AWS = b"AKIA" + b"ABCDEFGH23456789"


def test_a_package_is_read_to_its_last_byte(tmp_path: Path) -> None:
    package = release_package(tmp_path, "small")
    read = contents.read(package, contents.sought(["/build/feedstock"]))
    assert read.licences == ("LICENCE",)
    assert read.paths == ("share/small",)
    assert read.leaks == ()
    assert read.escapes == ()
    assert read.size == package.stat().st_size


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"made in /build/feedstock/work", contents.BUILD_PATH),
        (b"x" * (contents.CHUNK - 10) + b" " + AWS + b" ", "an AWS access key"),
        (b"-----BEGIN RSA PRIVATE KEY-----\n" + b"MIIE" * 30, "a private key"),
        (b"token = s3cr3t-token", "a token of this machine"),
    ],
)
def test_what_no_package_may_hold_is_found(tmp_path: Path, data: bytes, what: str) -> None:
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": {}}, payload={"etc/settings": data})
    read = contents.read(package, contents.sought(["/build/feedstock"], ["s3cr3t-token"]))
    assert read.leaks == (("etc/settings", what),)


def test_a_parser_of_private_keys_is_none(tmp_path: Path) -> None:
    data = b'if text.startswith("-----BEGIN PRIVATE KEY-----"): return "a key"' + b" " * 100
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": {}}, payload={"lib/parser.py": data})
    assert contents.read(package, contents.sought([])).leaks == ()


def test_the_placeholder_that_installing_replaces_is_no_leak(tmp_path: Path) -> None:
    placeholder = "/build/feedstock/host_env_placehold_placehold"
    paths = {"paths": [{"_path": "etc/where", "prefix_placeholder": placeholder}]}
    payload = {"etc/where": placeholder.encode(), "etc/other": placeholder.encode()}
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": paths}, payload=payload)
    read = contents.read(package, contents.sought(["/build/feedstock"]))
    assert read.leaks == (("etc/other", contents.BUILD_PATH),)


def test_what_leads_out_of_the_prefix_is_told(tmp_path: Path) -> None:
    payload = {"../../etc/cron.d/evil": b"x", "/etc/passwd": b"x", "lib/../fine": b"x"}
    links = {"lib/up": "in/../../x", "lib/out": "../../secret", "lib/abs": "/etc/shadow", "lib/in": "../share/x"}
    paths = {"paths": [{"_path": "share/../../../home"}, {"_path": "lib/in"}]}
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": paths}, payload=payload, links=links)
    assert contents.read(package, ()).escapes == (
        *("share/../../../home", "../../etc/cron.d/evil", "/etc/passwd", "lib/../fine"),
        *("lib/up -> in/../../x", "lib/out -> ../../secret", "lib/abs -> /etc/shadow"),
    )


def test_a_file_behind_a_link_is_told(tmp_path: Path) -> None:
    payload = {"lib/in/file": b"x", "lib/inside": b"x"}
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": {}}, payload=payload, links={"lib/in": ".."})
    assert contents.read(package, ()).escapes == ("lib/in/file",)


def test_a_corrupted_package_is_told(tmp_path: Path) -> None:
    package = release_package(tmp_path, "small")
    data = bytearray(package.read_bytes())
    data[len(data) // 2] ^= 0xFF
    package.write_bytes(data)
    with pytest.raises(BrokenPackage):
        contents.read(package, ())


@pytest.mark.parametrize(
    "info",
    [
        {"index.json": ["name"]},
        {"about.json": 3},
        {"about.json": {"extra": "rehearsal"}},
        {"paths.json": {"paths": [3]}},
        {"paths.json": ["x"]},
    ],
)
def test_metadata_of_another_shape_is_no_crash(tmp_path: Path, info: dict[str, object]) -> None:
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": {}, **info}, payload={"x": b"x"})
    with pytest.raises(BrokenPackage):
        contents.read(package, ())
