"""What comes from a machine is a stranger's: only what it says it has built, under a package's name, comes in."""

from __future__ import annotations

import base64
import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from kiln.errors import BrokenPackage, HashMismatch
from kiln.fleet import arrival
from kiln.fleet.follow import AT_ONCE, MARK, Log, status_of

if TYPE_CHECKING:
    from pathlib import Path

DATA = b"a package"


def collected(folder: Path, name: str = "small-1-h_0.conda", **changed: Any) -> Path:
    """What the playbook has brought of a cell with one package."""
    artifact = {
        "path": f"/var/lib/kiln/project/build_artifacts/linux-64/{name}",
        "sha256": hashlib.sha256(DATA).hexdigest(),
        "size": len(DATA),
        "cell": "a",
        "name": "small",
        "version": "1",
        "build_string": "h_0",
        "subdir": "linux-64",
        **changed,
    }
    tests = {"package": "small", "verdict": "passed", "commands": 1, "install_seconds": 1, "seconds": 1, "notes": []}
    package = {"artifact": artifact, "build_seconds": 1.0, "reused": False, "tests": {**tests, "log": "/tmp/x"}}
    cell = {"config": "a", "packages": [package], "steps": [], "peak_memory": 5, "reason": ""}
    (folder / "packages" / "linux-64").mkdir(parents=True)
    (folder / "packages" / "linux-64" / "small-1-h_0.conda").write_bytes(DATA)
    (folder / "report.json").write_text(json.dumps({"cells": [cell]}))
    return folder


def test_a_package_is_told_where_it_lies_here(tmp_path: Path) -> None:
    home = arrival.read(collected(tmp_path), machine="m", config="a")
    (package,) = home.packages
    assert package.artifact.path == tmp_path / "packages" / "linux-64" / "small-1-h_0.conda"
    assert package.tests.log is None
    assert home.peak_memory == 5


@pytest.mark.parametrize(
    ("changed", "error"),
    [
        ({"sha256": "0" * 64}, HashMismatch),
        ({"name": "other-1-h_0.conda"}, HashMismatch),
        ({"subdir": "../../etc"}, BrokenPackage),
        ({"name": "..conda"}, BrokenPackage),
        ({"name": "$(reboot).conda"}, BrokenPackage),
        ({"name": "small.tar.bz2"}, BrokenPackage),
    ],
)
def test_what_is_not_what_was_built_does_not_come_in(
    changed: dict[str, str], error: type[Exception], tmp_path: Path
) -> None:
    name = changed.pop("name", "small-1-h_0.conda")
    with pytest.raises(error):
        arrival.read(collected(tmp_path, name, **changed), machine="m", config="a")


def test_a_link_in_a_packages_place_is_refused(tmp_path: Path) -> None:
    package = collected(tmp_path) / "packages" / "linux-64" / "small-1-h_0.conda"
    package.rename(tmp_path / "elsewhere")
    package.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(HashMismatch, match="did not come"):
        arrival.read(tmp_path, machine="m", config="a")


@pytest.mark.parametrize("report", ["", "{", "[]", '{"cells": []}', '{"cells": [{"config": "a"}]}'])
def test_a_report_that_is_none_is_told_as_such(report: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(report)
    (tmp_path / "state.json").write_text('{"exit_code": 0}')
    with pytest.raises(BrokenPackage, match="no report of a"):
        arrival.read(tmp_path, machine="m", config="a")


def test_a_build_that_failed_before_it_could_report_is_told_by_its_last_words(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("")
    (tmp_path / "state.json").write_text('{"exit_code": 4}')
    (tmp_path / "log").write_text("note: hello\nerror: no cell a\n  try: another\n")
    home = arrival.read(tmp_path, machine="m", config="a")
    assert (home.reason, home.packages, home.log) == ("no cell a\n  try: another", (), tmp_path / "log")


def answer(data: bytes, state: str = "running") -> str:
    return f"{json.dumps({'a': {'state': state}})}\n\n{MARK}\n{base64.b64encode(data).decode()}"


def test_a_log_comes_piece_by_piece_and_goes_on_in_another_process(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with Log(path) as log:
        assert "tail -c +1 " in log.question("a")
        job, lines = log.take(answer(b"2026-11-21 13:37:55 === compile\n2026-11-21 13:37:56 gcc \xc3"), "a")
        assert (job, lines) == ({"state": "running"}, [("compile", "")])
        assert log.take(answer(b"\xa9 a.c\n"), "a")[1] == [("compile", "2026-11-21 13:37:56 gcc \xe9 a.c")]
    with Log(path) as log:
        assert f"tail -c +{path.stat().st_size + 1} " in log.question("a")


def test_a_look_waits_on_the_machine_where_nothing_is_to_be_had_at_once() -> None:
    with Log(None) as log:
        assert "kiln-job wait a 0.0;" in log.question("a", 5.0), "what was said before is wanted at once"
        log.take(answer(b"one\n"), "a")
        assert "kiln-job wait a 5.0;" in log.question("a", 5.0)
        log.take(answer(b"x" * AT_ONCE), "a")
        assert "kiln-job wait a 0.0;" in log.question("a", 5.0), "there is more"


def test_a_machine_that_knows_no_such_job_has_lost_it() -> None:
    with Log(None) as log:
        assert status_of(log.take(answer(b""), "b")[0]) == ("lost", "", None)


def test_nonsense_is_an_error_that_the_crew_takes_for_silence() -> None:
    with Log(None) as log, pytest.raises(ValueError, match="Expecting value"):
        log.take("motd: welcome!", "a")
