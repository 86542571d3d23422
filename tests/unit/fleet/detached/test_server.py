"""The results of a detached run are gathered by several computers at once."""

from __future__ import annotations

import json
import os
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING, Any

import pytest

from kiln.fleet.detached.server import RunReporter

if TYPE_CHECKING:
    from pathlib import Path

RUN = "0a1b2c3d"


@pytest.fixture
def reporter(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> RunReporter:
    """Return the reporter of a run that has ended with 200 packages."""
    folder = tmp_path / "controller"
    folder.mkdir()
    (folder / "output.log").write_text("kiln: done\n")
    packages = []
    for number in range(200):
        path = tmp_path / "channel" / f"p{number}.conda"
        path.parent.mkdir(exist_ok=True)
        path.write_bytes(b"x")
        packages.append({"artifact": {"path": str(path), "subdir": "linux-64"}})
    state: dict[str, Any] = {"process": "ended", "report": {"configs": [{"config": "a", "packages": packages}]}}
    monkeypatch.setattr(RunReporter, "run_state", lambda _: state)
    return RunReporter(tmp_path / "project", folder, RUN)


def test_several_exports_at_once_give_all_the_whole_folder(reporter: RunReporter) -> None:
    with ThreadPoolExecutor(4) as pool:
        answers = list(pool.map(lambda _: reporter.export_results(), range(8)))
    assert all(answer == answers[0] for answer in answers)
    assert sum(path.is_file() for path in (reporter.folder / "export").rglob("*")) == 202
    assert json.loads((reporter.folder / "export" / "state.json").read_text()) == answers[0]


def test_an_export_removes_nothing_that_another_computer_may_be_fetching(reporter: RunReporter) -> None:
    reporter.export_results()
    descriptor = os.open(reporter.folder / "export" / "packages" / "linux-64", os.O_RDONLY)
    reporter.export_results()
    assert len(list(os.scandir(descriptor))) == 200, "as of a program that has opened the folder"
    os.close(descriptor)


def test_an_export_replaces_what_is_there_of_an_earlier_build(reporter: RunReporter) -> None:
    reporter.export_results()
    path = reporter.folder.parent / "channel" / "p0.conda"
    part = path.with_name("new")
    part.write_bytes(b"another build")
    part.replace(path)
    reporter.export_results()
    target = reporter.folder / "export" / "packages" / "linux-64"
    assert (target / "p0.conda").read_bytes() == b"another build"
    assert len(list(target.iterdir())) == 200


def test_an_export_has_the_log_of_the_last_build_and_that_of_its_tests(reporter: RunReporter) -> None:
    folder = reporter.layout.safe_path("fleet", RUN, "logs")
    folder.mkdir(parents=True)
    for number, name in enumerate(("a.1.log", "a.2.log", "a.test.log", "b.1.log")):
        (folder / name).write_text(name)
        os.utime(folder / name, (number, number))
    reporter.export_results()
    logs = reporter.folder / "export" / "logs"
    assert {path.name: path.read_text() for path in logs.iterdir()} == {"a.log": "a.2.log", "a.test.log": "a.test.log"}
    assert reporter.latest_log("a") == folder / "a.test.log"
