"""An incomplete release is refused with every reason at once."""

from __future__ import annotations

from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BrokenPackage, ReleaseRefused
from kiln.publish import gate
from kiln.publish.gate import (
    RefusalKind,
    nonblocking_notes,
    refusal_reasons,
    require_releasable,
    without_held_packages,
)
from kiln.publish.model import ContentLeak
from kiln.recipe.rendered import Pin
from kiln.state.results import ConfigState, TestVerdict
from tests.packages import conda_package, release_package
from tests.releases import candidate, release

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.publish.model import Release

ROOT = Path(__file__).parents[3]


def kinds(given: Release) -> list[RefusalKind]:
    return [reason.kind for reason in refusal_reasons(given)]


DIRTY = f"{'a' * 40}-dirty-{'b' * 64}"


@pytest.mark.parametrize(
    ("commit", "expected", "noted"),
    [
        ("a" * 40, [], False),
        (DIRTY, [RefusalKind.DIRTY], False),
        (None, [], True),
        ("", [], True),
        ("main", [], True),
        (7, [], True),
    ],
)
def test_the_commit_of_a_package_is_known_and_has_its_recipe(
    commit: object, expected: list[RefusalKind], noted: bool
) -> None:
    given = candidate(about={"license": "MIT", "extra": {"sha": commit}})
    assert kinds(release(given)) == expected
    assert kinds(release(given, allow_dirty=True)) == []
    assert any("the commit is unknown" in note for note in nonblocking_notes(release(given))) is noted


def test_a_package_of_an_older_recipe_is_refused() -> None:
    assert kinds(release(replace(candidate(), is_current=False))) == [RefusalKind.OUTDATED]


@pytest.mark.parametrize(
    ("changed", "expected"),
    [
        ({"configs": {"config": ConfigState.DONE, "other": None}}, [RefusalKind.MISSING_CONFIG]),
        ({"configs": {"config": ConfigState.DONE, "other": ConfigState.OUT_OF_MEMORY}}, [RefusalKind.FAILED_CONFIG]),
        ({"configs": {"config": ConfigState.DONE, "other": ConfigState.FAILED}, "partial": frozenset({"other"})}, []),
        ({"partial": frozenset({"othr"})}, [RefusalKind.MISSING_CONFIG]),
        (
            {"expected": {"config": ("linux-64/small-1-0.conda", "linux-64/large-1-0.conda")}},
            [RefusalKind.MISSING_PACKAGE],
        ),
        ({"expected": {"config": ("linux-aarch64/small-1-0.conda",)}}, [RefusalKind.MISSING_PACKAGE]),
        ({"allowed": ("large", "other*")}, [RefusalKind.NOT_ALLOWED]),
        ({"held": {"linux-64/small-1-0.conda": "bb"}}, [RefusalKind.HELD]),
        ({"held": {"linux-64/small-1-0.conda": ""}}, [RefusalKind.HELD]),
        ({"held": {"linux-64/small-1-0.conda": "aa"}}, []),
        ({"candidates": (), "expected": {}}, [RefusalKind.EMPTY]),
    ],
)
def test_the_matrix_and_the_channel_decide(changed: Mapping[str, Any], expected: list[RefusalKind]) -> None:
    assert kinds(release(candidate(), **changed)) == expected


@pytest.mark.parametrize(("sha256", "left"), [("aa", 2), ("bb", 1), ("", 1)])
def test_packages_of_which_the_channel_has_another_file_are_left_out(sha256: str, left: int) -> None:
    whole = release(candidate(), candidate("other"), held={"linux-64/small-1-0.conda": sha256})
    rest = without_held_packages(whole)
    assert (len(rest.candidates), len(rest.skipped), kinds(rest)) == (left, 2 - left, [])
    broken = replace(whole, damaged=frozenset({"linux-64/small-1-0.conda"}))
    assert kinds(without_held_packages(broken)) == [] if sha256 == "aa" else [RefusalKind.HELD]
    alone = without_held_packages(release(candidate(), held=whole.held))
    assert kinds(alone) == [], "that nothing is left to publish is no reason against it"


@pytest.mark.parametrize(
    ("told", "expected"),
    [
        ({"sha256": "cc"}, [RefusalKind.CHANGED]),
        ({"about": {"license": "MIT", "extra": {"rehearsal": True}}}, [RefusalKind.REHEARSAL]),
        ({"about": {}}, [RefusalKind.NO_LICENSE]),
        ({"licenses": ()}, [RefusalKind.NO_LICENSE]),
        ({"leaks": (ContentLeak(file="bin/x", what="a private key", offset=3),)}, [RefusalKind.LEAK]),
        ({"escapes": ("../../etc/passwd",)}, [RefusalKind.ESCAPE]),
    ],
)
def test_each_content_of_a_package_has_its_reason(told: Mapping[str, Any], expected: list[RefusalKind]) -> None:
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
def test_the_metadata_of_a_package_must_match_its_config(index: Mapping[str, Any]) -> None:
    right = candidate()
    assert right.contents is not None
    wrong = replace(right, contents=replace(right.contents, index={**right.contents.index, **index}))
    assert set(kinds(release(wrong))) == {RefusalKind.MISMATCH}


def test_an_engine_may_add_run_exports_and_bounds_to_bare_names() -> None:
    index = {**candidate().contents.index, "depends": ["python >=3.11", "six >=1.16", "libstdcxx >=13"]}  # type: ignore[union-attr] # a candidate made here has contents
    assert kinds(release(replace(candidate(index=index), needs_nothing_else=False))) == []


def test_the_bounds_of_a_pin_are_those_that_the_build_has_solved() -> None:
    right = candidate(index={**candidate().contents.index, "depends": ["python >=3.11.9,<4.0a0", "six"]})  # type: ignore[union-attr] # a candidate made here has contents
    assert right.output is not None
    pinned = replace(right.output, pins=(("run", 0, Pin(name="python", subpackage=False)),))
    assert kinds(release(replace(right, output=pinned, needs_nothing_else=False))) == []
    assert kinds(release(replace(right, needs_nothing_else=False))) == [RefusalKind.MISMATCH]


def test_untested_and_broken_packages_are_refused() -> None:
    assert kinds(release(replace(candidate(), verdict=TestVerdict.NONE))) == [RefusalKind.UNTESTED]
    assert kinds(release(replace(candidate(), verdict=TestVerdict.FAILED))) == [RefusalKind.UNTESTED]
    assert kinds(release(replace(candidate(), contents=None, broken="no zip file"))) == [RefusalKind.BROKEN]
    missing = replace(candidate(), contents=None, broken="no such file", is_current=False)
    assert kinds(release(missing)) == [RefusalKind.BROKEN], "nothing else is known of it"
    assert kinds(release(replace(candidate(), output=None))) == [RefusalKind.MISMATCH]


def test_skipped_tests_of_a_cross_compiled_package_are_accepted_on_request_alone() -> None:
    skipped = replace(candidate(), verdict=TestVerdict.SKIPPED, built_on="linux-64")
    aarch64 = replace(skipped, artifact=replace(skipped.artifact, subdir="linux-aarch64"))
    expected = {"config": ("linux-aarch64/small-1-0.conda",)}
    (reason,) = refusal_reasons(release(aarch64, expected=expected))
    assert reason.kind is RefusalKind.UNTESTED
    assert "cross-compiled for linux-aarch64 on linux-64; --allow-untested linux-aarch64" in reason.what
    accepted = release(aarch64, expected=expected, untested=frozenset({"linux-aarch64"}))
    assert refusal_reasons(accepted) == ()
    assert nonblocking_notes(accepted) == (
        "small-1-0.conda: not tested, it is cross-compiled for linux-aarch64 on linux-64",
    )
    assert kinds(release(aarch64, expected=expected, untested=frozenset({"linux-64"}))) == [RefusalKind.UNTESTED]


@pytest.mark.parametrize(
    ("verdict", "built_on"),
    [(TestVerdict.SKIPPED, ""), (TestVerdict.NONE, "linux-64"), (TestVerdict.FAILED, "linux-64")],
)
def test_no_other_untested_package_is_accepted(verdict: TestVerdict, built_on: str) -> None:
    untested = replace(candidate(), verdict=verdict, built_on=built_on)
    assert kinds(release(untested, untested=frozenset({"linux-64"}))) == [RefusalKind.UNTESTED]


def test_two_packages_of_a_config_must_not_install_the_same_file() -> None:
    one, two = candidate("one", paths=("bin/x", "share/one")), candidate("two", paths=("bin/x",))
    (reason,) = refusal_reasons(release(one, two))
    assert str(reason) == "same path: config: bin/x is in one and two"
    elsewhere = candidate("two", config="other", paths=("bin/x",))
    configs = {"config": ConfigState.DONE, "other": ConfigState.DONE}
    assert kinds(release(one, elsewhere, configs=configs)) == []


def test_all_reasons_are_reported_at_once() -> None:
    bad = replace(candidate(licenses=(), sha256="cc"), verdict=TestVerdict.NONE)
    with pytest.raises(ReleaseRefused) as refused:
        require_releasable(release(bad, allowed=()))
    assert "for 4 reasons" in str(refused.value)
    assert [line.split(":")[0].strip() for line in refused.value.why.splitlines()] == [
        *("not allowed", "untested", "changed", "no license")
    ]


def test_every_kind_of_reason_has_its_row_in_the_documentation() -> None:
    page = (ROOT / "docs" / "how-to" / "publish.md").read_text()
    assert [kind.value for kind in RefusalKind if f"| {kind.value} |" not in page] == []


# Real packages

AWS = b"AKIA" + b"ABCDEFGH23456789"


def test_a_package_is_read_to_its_last_byte(tmp_path: Path) -> None:
    package = release_package(tmp_path, "small")
    read = gate.inspect_package(package, gate.forbidden_texts(["/build/feedstock"]))
    assert read.licenses == ("LICENCE",)
    assert read.paths == ("share/small",)
    assert read.leaks == ()
    assert read.escapes == ()
    assert read.size == package.stat().st_size


@pytest.mark.parametrize(
    ("data", "what"),
    [
        (b"made in /build/feedstock/work", gate.BUILD_PATH),
        (b"x" * (gate.CHUNK - 10) + b" " + AWS + b" ", "an AWS access key"),
        (b"-----BEGIN RSA PRIVATE KEY-----\n" + b"MIIE" * 30, "a private key"),
        (b"token = s3cr3t-token", "a token of this machine"),
    ],
)
def test_forbidden_texts_are_found(tmp_path: Path, data: bytes, what: str) -> None:
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": {}}, payload={"etc/settings": data})
    read = gate.inspect_package(package, gate.forbidden_texts(["/build/feedstock"], ["s3cr3t-token"]))
    assert [(leak.file, leak.what) for leak in read.leaks] == [("etc/settings", what)]
    assert data[read.leaks[0].offset :].startswith((b"/build/feedstock/", AWS, b"-----BEGIN", b"s3cr3t"))
    assert "s3cr3t" not in str(read.leaks[0])


@pytest.mark.parametrize(
    ("name", "data", "cure"),
    [
        ("lib/liba.so", b"\x7fELF..\0/build/feedstock/work/a.c\0", "-ffile-prefix-map=$SRC_DIR="),
        ("lib/liba.a", b"!<arch>..\0/build/feedstock/work/a.c\0", "-ffile-prefix-map=$SRC_DIR="),
        ("lib/a-1.dist-info/direct_url.json", b'{"url": "file:///build/feedstock/work/a.c"}', "pip's record"),
        ("lib/a.cmake", b'set(X "/build/feedstock/work/a.c")', "only $PREFIX is replaced"),
    ],
)
def test_a_build_path_is_shown_with_a_cure(tmp_path: Path, name: str, data: bytes, cure: str) -> None:
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": {}}, payload={name: data})
    (leak,) = gate.inspect_package(package, gate.forbidden_texts(["/build/feedstock"])).leaks
    assert (leak.text, leak.offset) == ("/build/feedstock/work/a.c", data.index(b"/build"))
    assert cure in str(leak)


def test_the_offset_of_a_leak_counts_all_chunks(tmp_path: Path) -> None:
    data = b"-" * (2 * gate.CHUNK + 5) + b"/build/feedstock/x"
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": {}}, payload={"lib/x": data})
    (leak,) = gate.inspect_package(package, gate.forbidden_texts(["/build/feedstock"])).leaks
    assert leak.offset == 2 * gate.CHUNK + 5


def test_a_parser_of_private_keys_is_not_a_leak(tmp_path: Path) -> None:
    data = b'if text.startswith("-----BEGIN PRIVATE KEY-----"): return "a key"' + b" " * 100
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": {}}, payload={"lib/parser.py": data})
    assert gate.inspect_package(package, gate.forbidden_texts([])).leaks == ()


def test_the_placeholder_of_the_prefix_is_not_a_leak(tmp_path: Path) -> None:
    placeholder = "/build/feedstock/host_env_placehold_placehold"
    paths = {"paths": [{"_path": "etc/where", "prefix_placeholder": placeholder}]}
    payload = {"etc/where": placeholder.encode(), "etc/other": placeholder.encode()}
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": paths}, payload=payload)
    read = gate.inspect_package(package, gate.forbidden_texts(["/build/feedstock"]))
    assert [(leak.file, leak.what) for leak in read.leaks] == [("etc/other", gate.BUILD_PATH)]


def test_paths_out_of_the_prefix_are_reported(tmp_path: Path) -> None:
    payload = {"../../etc/cron.d/evil": b"x", "/etc/passwd": b"x", "lib/../fine": b"x"}
    links = {"lib/up": "in/../../x", "lib/out": "../../secret", "lib/abs": "/etc/shadow", "lib/in": "../share/x"}
    paths = {"paths": [{"_path": "share/../../../home"}, {"_path": "lib/in"}]}
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": paths}, payload=payload, links=links)
    assert gate.inspect_package(package, ()).escapes == (
        *("share/../../../home", "../../etc/cron.d/evil", "/etc/passwd", "lib/../fine"),
        *("lib/up -> in/../../x", "lib/out -> ../../secret", "lib/abs -> /etc/shadow"),
    )


def test_a_file_behind_a_link_is_reported(tmp_path: Path) -> None:
    payload = {"lib/in/file": b"x", "lib/inside": b"x"}
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": {}}, payload=payload, links={"lib/in": ".."})
    assert gate.inspect_package(package, ()).escapes == ("lib/in/file",)


def test_a_corrupted_package_is_reported(tmp_path: Path) -> None:
    package = release_package(tmp_path, "small")
    data = bytearray(package.read_bytes())
    data[len(data) // 2] ^= 0xFF
    package.write_bytes(data)
    with pytest.raises(BrokenPackage):
        gate.inspect_package(package, ())


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
def test_metadata_of_another_shape_is_an_error(tmp_path: Path, info: dict[str, object]) -> None:
    package = conda_package(tmp_path / "p-1-0.conda", {"paths.json": {}, **info}, payload={"x": b"x"})
    with pytest.raises(BrokenPackage):
        gate.inspect_package(package, ())


@pytest.mark.parametrize("link", ["include/tsl", "x86_64-linux/include/tsl", "lib/python3.11/site-packages/small/inc"])
def test_a_link_to_a_folder_where_packages_meet_is_refused(link: str) -> None:
    owner = candidate("small", links=((link, "share/headers"),))
    other = candidate("large", paths=("share/headers/x.h",))
    (reason,) = refusal_reasons(release(owner, other))
    assert (reason.kind, reason.about) == (RefusalKind.FOLDER_LINK, "small-1-0.conda")
    assert reason.what == f"{link} leads to the folder share/headers"


def test_a_link_to_a_folder_elsewhere_is_noted_and_one_to_a_file_is_not() -> None:
    links = (("lib64", "lib"), ("include/x.h", "include/y.h"))
    target = release(candidate(paths=("lib/libx.so", "include/y.h"), links=links))
    assert refusal_reasons(target) == ()
    assert nonblocking_notes(target) == ("small-1-0.conda: lib64 leads to the folder lib",)


def test_a_package_whose_list_has_another_size_is_broken(tmp_path: Path) -> None:
    path = {"_path": "share/a", "path_type": "hardlink", "sha256": "0" * 64, "size_in_bytes": 7}
    info = {"index.json": {}, "about.json": {}, "paths.json": {"paths": [path], "paths_version": 1}}
    package = conda_package(tmp_path / "a-1-0.conda", info, payload={"share/a": b"text"})
    with pytest.raises(BrokenPackage, match=r"an invalid paths\.json"):
        gate.inspect_package(package, ())
