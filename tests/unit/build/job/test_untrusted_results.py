"""Results and messages of a build's process that a script may have forged."""

from __future__ import annotations

import base64
import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import files
from kiln.base.errors import BuildFailed, SecretInPackage
from kiln.build.job import untrusted_results
from kiln.build.job.untrusted_results import require_no_secrets
from tests.packages import conda_package, release_package

if TYPE_CHECKING:
    from pathlib import Path


STEP = {
    "title": "compile",
    "seconds": 1.5,
    "reused": False,
    "notes": ["a note"],
    "compile": None,
    "failed": False,
    "phases": [{"name": "script", "seconds": 1.0}],
    "began": 1790000000.0,
}


RESULT: dict[str, Any] = {"packages": [], "steps": [STEP], "outdated": False, "error": None}


TESTS = {"package": "a", "verdict": "passed", "commands": 1, "install_seconds": 0.1, "seconds": 0.1}


ARTIFACT = {"path": "a", "sha256": "ab", "size": 1, "config": "c", "name": "a", "version": "1"}


BUILT: dict[str, Any] = {
    "artifact": {**ARTIFACT, "build_string": "0", "subdir": "noarch"},
    "build_seconds": 1,
    "reused": False,
    "tests": {**TESTS, "notes": [], "log": None, "run_packages": []},
    "repositories": [],
    "feedstock": "",
}


def report(package: Path, folder: Path, **changes: object) -> dict[str, Any]:
    """The report of a package by a build."""
    names = {"config": "c", "name": "a", "version": "1", "build_string": "0", "subdir": "noarch"}
    path, sha256 = str(package.relative_to(folder)), files.sha256(package)
    artifact = {"path": path, "sha256": sha256, "size": package.stat().st_size, **names, **changes}
    return {**BUILT, "artifact": artifact}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """A config's folder with a package."""
    release_package(tmp_path / "work" / "channel" / "noarch", "a")
    (tmp_path / "outside").write_text("of others")
    return tmp_path / "work"


@pytest.fixture
def package(folder: Path) -> Path:
    (result,) = folder.rglob("*.conda")
    return result


def test_a_package_is_copied_under_its_name_with_its_hash(folder: Path, package: Path, tmp_path: Path) -> None:
    told = report(package, folder)
    known = f"noarch/{package.name}"
    assert untrusted_results.accept_built_packages([told], folder, expected=known.__eq__, into=tmp_path / "to") == [
        (tmp_path / "to" / known, told)
    ]
    assert (tmp_path / "to" / known).read_bytes() == package.read_bytes()
    assert (tmp_path / "to" / known).stat().st_nlink == 1
    assert untrusted_results.accept_built_packages([told], folder, expected=known.__eq__, into=None) == [
        (package, told)
    ]


@pytest.mark.parametrize("kind", ["link", "folder", "pipe", "link above", "missing"])
def test_only_a_regular_file_is_opened_and_no_link_followed(folder: Path, package: Path, kind: str) -> None:
    told = report(package, folder)
    content = package.read_bytes()
    if kind == "link above":
        package.parent.rename(folder.parent / "noarch")
        package.parent.symlink_to(folder.parent / "noarch")
    else:
        package.unlink()
    if kind == "link":
        (folder.parent / package.name).write_bytes(content)
        package.symlink_to(folder.parent / package.name)
    elif kind == "folder":
        package.mkdir()
    elif kind == "pipe":
        os.mkfifo(package)
    with pytest.raises(BuildFailed, match=r"file not found|not a regular file"):
        untrusted_results.accept_built_packages([told], folder, expected=lambda _: True, into=None)


@pytest.mark.parametrize(
    ("changes", "message"),
    [
        ({"path": "../outside"}, "file not found"),
        ({"path": "/etc/passwd"}, "file not found"),
        ({"path": ""}, "file not found"),
        ({"subdir": "../.."}, "which is not a package of this recipe"),
        ({"sha256": "0" * 64}, "is not the package that was built and tested"),
    ],
)
def test_a_report_that_differs_from_its_package_is_refused(
    folder: Path, package: Path, changes: dict[str, str], message: str
) -> None:
    with pytest.raises(BuildFailed, match=message):
        untrusted_results.accept_built_packages(
            [report(package, folder, **changes)], folder, expected=lambda _: True, into=None
        )


def test_a_package_that_is_not_of_the_recipe_or_called_otherwise_is_refused(folder: Path, package: Path) -> None:
    with pytest.raises(BuildFailed, match="which is not a package of this recipe"):
        untrusted_results.accept_built_packages([report(package, folder)], folder, expected=lambda _: False, into=None)
    renamed = package.rename(package.with_name("b-1-0.conda"))
    with pytest.raises(BuildFailed, match=r"the metadata of b-1-0\.conda names a-1-0"):
        untrusted_results.accept_built_packages([report(renamed, folder)], folder, expected=lambda _: True, into=None)


def test_a_result_is_read(tmp_path: Path) -> None:
    assert untrusted_results.read_build_result(tmp_path, "result.json") is None
    error = {"type": "BuildFailed", "what": "a", "why": "b", "hint": "c", "step": "compile"}
    for told in (RESULT, {**RESULT, "packages": [BUILT]}, {**RESULT, "error": error}):
        (tmp_path / "result.json").write_text(json.dumps(told))
        assert untrusted_results.read_build_result(tmp_path, "result.json") == told


@pytest.mark.parametrize(
    "told",
    [
        "[",
        "[" * 100_000,
        "{}",
        json.dumps({**RESULT, "more": 1}),
        json.dumps({**RESULT, "steps": [{**STEP, "seconds": float("inf")}]}),
        json.dumps({**RESULT, "steps": [{**STEP, "seconds": 10**400}]}),
        json.dumps({**RESULT, "steps": [{**STEP, "seconds": True}]}),
        json.dumps({**RESULT, "error": {"type": "annotations", "what": "", "why": "", "hint": ""}}),
        json.dumps({**RESULT, "error": {"type": "KilnError", "what": "", "why": "", "hint": ""}}),
        json.dumps({**RESULT, "packages": [{"artifact": {"path": "x"}}]}),
        json.dumps({**RESULT, "packages": [{**BUILT, "repositories": [{"name": "a"}]}]}),
        json.dumps({**RESULT, "packages": [{**BUILT, "repositories": [7]}]}),
        json.dumps({**RESULT, "packages": [{**BUILT, "tests": {**BUILT["tests"], "run_packages": [{"name": 7}]}}]}),
        json.dumps({**RESULT, "packages": [{**BUILT, "tests": {**BUILT["tests"], "verdict": []}}]}),
    ],
)
def test_a_result_that_a_script_made_up_is_refused(tmp_path: Path, told: str) -> None:
    (tmp_path / "result.json").write_text(told)
    with pytest.raises(BuildFailed, match="invalid result of the build"):
        untrusted_results.read_build_result(tmp_path, "result.json")


def test_a_result_that_is_a_link_is_refused(tmp_path: Path) -> None:
    (tmp_path / "outside").write_text(json.dumps(RESULT))
    (tmp_path / "result.json").symlink_to("outside")
    with pytest.raises(BuildFailed, match="file not found"):
        untrusted_results.read_build_result(tmp_path, "result.json")


def test_of_messages_only_those_of_a_building_process_count() -> None:
    assert untrusted_results.is_valid_message({"kind": "step", "title": "compile"})
    assert untrusted_results.is_valid_message({"kind": "expected", "steps": 15})
    assert untrusted_results.is_valid_message({"kind": "done", **STEP})
    progress = {"done": 1, "total": None, "current": "", "left": 2.5, "stalled": "", "in_bytes": True}
    assert untrusted_results.is_valid_message({"kind": "progress", **progress})
    for told in (
        {"kind": "hello", "pid": 1},
        {"kind": "result", "state": "done", "packages": []},
        {"kind": "done", **STEP, "failed": "no"},
        {"kind": "progress", **progress, "in_bytes": "yes"},
        {"kind": "progress", **progress, "done": 1e400},
        {"kind": "step", "title": 1},
        {"kind": "expected", "steps": "many"},
        {"kind": ["step"], "title": "compile"},
    ):
        assert not untrusted_results.is_valid_message(told)


TOKEN = "x7Kq-93hV_2mPzLw4RtY"


@pytest.mark.parametrize(
    ("payload", "home", "named"),
    [
        ({"etc/a.conf": f"token={TOKEN}\n", "etc/b.conf": "token=\n"}, "", "etc/a.conf"),
        ({"a": base64.b64encode(f"user:{TOKEN}".encode()).decode()}, "", "a"),
        ({}, f"https://{TOKEN}@a.org", "info/about.json"),
        ({f"f{number}": TOKEN for number in range(7)}, "", "f0, f1, f2, f3, f4 and 2 more"),
    ],
    ids=["plain", "in another form", "in the metadata", "in many files"],
)
def test_a_package_with_a_secret_is_refused_without_the_value(
    tmp_path: Path, payload: dict[str, str], home: str, named: str
) -> None:
    files = {name: text.encode() for name, text in payload.items()}
    package = conda_package(tmp_path / "a-1-0.conda", {"about.json": {"home": home}}, payload=files)
    with pytest.raises(SecretInPackage) as caught:
        require_no_secrets(package, {"API_TOKEN": TOKEN, "OTHER_TOKEN": TOKEN[::-1]})
    assert caught.value.what == f"a-1-0.conda contains the value of API_TOKEN in {named}"
    assert TOKEN not in str(caught.value)


def test_values_that_are_no_secrets_may_be_in_a_package(tmp_path: Path) -> None:
    package = release_package(tmp_path, "a", payload={"a": b"/usr/local/lib 12.9.1"})
    require_no_secrets(package, {"PREFIX": "/usr/local/lib", "API_TOKEN": TOKEN})
    require_no_secrets(package, {"SOME_FOLDER": "/usr/local/lib", "SOME_VERSION": "12.9.1"})
