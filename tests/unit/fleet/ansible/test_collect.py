"""Workers are not trusted: what is collected from them, or handed to another, is what was built there."""

from __future__ import annotations

import hashlib
import json
import os
import queue
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.base import files
from kiln.base.errors import BrokenHandover, BrokenPackage, DiskFull, HashMismatch, MachinesUnknown, SystemFault
from kiln.build.job import collected as job_collected
from kiln.build.job.collected import ResultsCollected
from kiln.fleet.ansible import collect, handlers
from kiln.fleet.ansible.fetch import BuildResults
from kiln.fleet.ansible.playbooks import PlaybookRunner, PlaybookSite
from kiln.fleet.ansible.sessions import PlaybookSession
from kiln.fleet.protocol import CollectFailed, CollectResults, CommandUndelivered, StartBuild
from kiln.state.store import handover
from kiln.state.store.handover import ChainState, HandoverRecord

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.fleet.protocol import Event

DATA = b"a package"
WHEEL = "wheels/cuda12.9/tensorflow-2.21.0-cp311-cp311-manylinux_2_27_x86_64.whl"
TIMES = {"install_seconds": 0.1, "seconds": 0.1}
TESTS: dict[str, Any] = {"package": "a", "verdict": "passed", "commands": 1, "notes": [], "log": None, **TIMES}


def collected(folder: Path, name: str = "small-1-h_0.conda", **changes: Any) -> Path:
    """Write a collected config with one package."""
    artifact = {
        "path": f"/var/lib/kiln/project/build_artifacts/linux-64/{name}",
        "sha256": hashlib.sha256(DATA).hexdigest(),
        "size": len(DATA),
        "config": "a",
        "name": "small",
        "version": "1",
        "build_string": "h_0",
        "subdir": "linux-64",
        **changes,
    }
    tests = {"package": "small", "verdict": "passed", "commands": 1, "install_seconds": 1, "seconds": 1, "notes": []}
    package = {"artifact": artifact, "build_seconds": 1.0, "reused": False, "tests": {**tests, "log": "/tmp/x"}}
    config = {"config": "a", "packages": [package], "steps": [], "peak_memory": 5, "reason": ""}
    (folder / "packages" / "linux-64").mkdir(parents=True)
    (folder / "packages" / "linux-64" / "small-1-h_0.conda").write_bytes(DATA)
    (folder / "report.json").write_text(json.dumps({"configs": [config]}))
    return folder


def test_a_package_has_its_path_here(tmp_path: Path) -> None:
    event = job_collected.read_collected_results(collected(tmp_path), worker="m", config="a")
    (package,) = event.packages
    assert package.artifact.path == tmp_path / "packages" / "linux-64" / "small-1-h_0.conda"
    assert package.tests.log is None
    assert event.peak_memory == 5


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"sha256": "0" * 64}, HashMismatch),
        ({"name": "other-1-h_0.conda"}, BrokenPackage),
        ({"subdir": "../../etc"}, BrokenPackage),
        ({"name": "..conda"}, BrokenPackage),
        ({"name": "$(reboot).conda"}, BrokenPackage),
        ({"name": "small.tar.bz2"}, BrokenPackage),
    ],
)
def test_anything_but_the_built_package_is_refused(
    changes: dict[str, str], error: type[Exception], tmp_path: Path
) -> None:
    name = changes.pop("name", "small-1-h_0.conda")
    with pytest.raises(error):
        job_collected.read_collected_results(collected(tmp_path, name, **changes), worker="m", config="a")


def test_a_link_instead_of_a_package_is_refused(tmp_path: Path) -> None:
    package = collected(tmp_path) / "packages" / "linux-64" / "small-1-h_0.conda"
    package.rename(tmp_path / "elsewhere")
    package.symlink_to(tmp_path / "elsewhere")
    with pytest.raises(BrokenPackage, match="is missing"):
        job_collected.read_collected_results(tmp_path, worker="m", config="a")


@pytest.mark.parametrize("report", ["", "{", "[]", '{"configs": []}', '{"configs": [{"config": "a"}]}'])
def test_an_invalid_report_is_an_error(report: str, tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text(report)
    (tmp_path / "state.json").write_text('{"exit_code": 0}')
    with pytest.raises(BrokenPackage, match="invalid report of a"):
        job_collected.read_collected_results(tmp_path, worker="m", config="a")


def test_a_build_that_failed_before_its_report_has_its_last_output_as_reason(tmp_path: Path) -> None:
    (tmp_path / "report.json").write_text("")
    (tmp_path / "state.json").write_text('{"exit_code": 4}')
    (tmp_path / "log").write_text("note: hello\nerror: no config a\n  try: another\n")
    event = job_collected.read_collected_results(tmp_path, worker="m", config="a")
    assert (event.reason, event.packages, event.log) == ("no config a\n  try: another", (), tmp_path / "log")


def collected_file(folder: Path, place: str, content: bytes = b"what was built") -> Path:
    """Write a collected config of one file, which is at ``place`` below the worker's build_artifacts."""
    subdir, _, name = place.rpartition("/")
    path = folder / "packages" / subdir / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    artifact = {
        "path": f"/home/x/build_artifacts/{place}", "sha256": files.sha256(path), "size": len(content), "config": "c",
        "name": "a", "version": "1", "build_string": "0", "subdir": subdir,
    }  # fmt: skip
    package = {"artifact": artifact, "build_seconds": 1.0, "reused": False, "tests": TESTS}
    config = {"config": "c", "packages": [package], "steps": [], "peak_memory": None, "reason": ""}
    (folder / "report.json").write_text(json.dumps({"configs": [config]}))
    return path


@pytest.mark.parametrize(
    "place",
    [
        "linux-64/a-1-0.conda",
        "linux-aarch64/a-1-0.conda",
        "noarch/a-1-0.conda",
        WHEEL,
        "wheels/cpu/a-1-py3-none-any.whl",
        "wheels/cpu-linux-aarch64/a-1-py3-none-linux_aarch64.whl",
    ],
)
def test_packages_and_wheels_are_accepted(tmp_path: Path, place: str) -> None:
    path = collected_file(tmp_path, place)
    (package,) = job_collected.read_collected_results(tmp_path, worker="m", config="c").packages
    assert package.artifact.path == path


@pytest.mark.parametrize(
    "place", ["wheels/a-1-py3-none-any.whl", "wheels/cuda12.9/a-1-0.conda", "linux-64/a.whl", "x/a.conda"]
)
def test_other_files_are_refused(tmp_path: Path, place: str) -> None:
    collected_file(tmp_path, place)
    with pytest.raises(BrokenPackage, match="is not the name of a package"):
        job_collected.read_collected_results(tmp_path, worker="m", config="c")


def test_a_wheel_that_was_changed_in_transfer_is_refused(tmp_path: Path) -> None:
    collected_file(tmp_path, WHEEL).write_bytes(b"something else")
    with pytest.raises(HashMismatch, match="is corrupt"):
        job_collected.read_collected_results(tmp_path, worker="m", config="c")


def test_a_build_of_other_inputs_is_foreign(tmp_path: Path) -> None:
    (tmp_path / "state.json").write_text(json.dumps({"state": "ended", "key": "b" * 64}))
    assert "its build had other inputs (bbbbbbbbbbbb, not aaaaaaaaaaaa)" in collect.input_mismatch_reason(
        tmp_path, key="a" * 64
    )
    assert collect.input_mismatch_reason(tmp_path, key="b" * 64) == ""
    (tmp_path / "state.json").write_text("{}")
    assert collect.input_mismatch_reason(tmp_path, key="a" * 64) == "", "a build that an older kiln started has no key"


REQUEST = CollectResults(worker="m", config="a", key="a" * 64)


def fetched(folder: Path, monkeypatch: pytest.MonkeyPatch, error: Exception | None = None) -> Event:
    """Return the event of a collection whose transfer ends in this way."""

    def fetch(_: BuildResults) -> bool:
        if error is not None:
            raise error
        return True

    monkeypatch.setattr(BuildResults, "fetch", fetch)
    site = PlaybookSite(folder=folder, playbooks=folder, python=folder / "python", variables={}, environment={})
    session = PlaybookSession(site=site, playbooks=PlaybookRunner(site), keep=lambda _, packages: tuple(packages))
    return collect.collect_build_results(session, REQUEST)


def test_packages_that_were_fetched_are_collected(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    collected(tmp_path / "collected" / "m" / "a")
    event = fetched(tmp_path, monkeypatch)
    assert isinstance(event, ResultsCollected)
    assert [package.artifact.path.name for package in event.packages] == ["small-1-h_0.conda"]


def test_a_lost_connection_is_tried_again(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    event = fetched(tmp_path, monkeypatch, MachinesUnknown("rsync ended with exit code 255"))
    assert event == CommandUndelivered(command=REQUEST, reason="rsync ended with exit code 255")


@pytest.mark.parametrize(
    ("error", "corrupt"),
    [(SystemFault("rsync ended with exit code 23"), False), (HashMismatch("a-1-0.conda is another"), True)],
)
def test_another_failure_has_its_reason(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, error: Exception, corrupt: bool
) -> None:
    event = fetched(tmp_path, monkeypatch, error)
    assert isinstance(event, CollectFailed)
    assert (event.reason, event.corrupt, event.foreign) == (str(error), corrupt, False)


def test_a_full_disk_is_not_a_failure_of_the_worker(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with pytest.raises(DiskFull, match="2 GB"):
        fetched(tmp_path, monkeypatch, DiskFull("collecting a from m needs 2 GB"))


def test_results_of_other_inputs_are_removed_and_reported_as_foreign(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    folder = collected(tmp_path / "collected" / "m" / "a")
    (folder / "state.json").write_text(json.dumps({"key": "b" * 64}))
    event = fetched(tmp_path, monkeypatch)
    assert isinstance(event, CollectFailed)
    assert (event.foreign, event.corrupt, folder.exists()) == (True, False, False)


def test_corrupt_results_are_removed_to_be_fetched_anew(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folder = collected(tmp_path / "collected" / "m" / "a", sha256="0" * 64)
    event = fetched(tmp_path, monkeypatch)
    assert isinstance(event, CollectFailed)
    assert (event.corrupt, event.foreign, folder.exists()) == (True, False, False)


SSH = """#!/bin/sh
while [ "${1#-}" != "$1" ]; do shift 2; done
shift  # the worker
words="$*"
exec sh -c "${words#*runuser -u kiln -- }"
"""


class Session(PlaybookSession):
    """A session whose worker is a folder of this computer; ``words`` are the other commands that it got."""

    def __init__(self, folder: Path) -> None:
        (folder / "bin").mkdir()
        (folder / "bin" / "ssh").write_text(SSH)
        (folder / "bin" / "ssh").chmod(0o755)
        environment = {"PATH": f"{folder / 'bin'}:{os.environ['PATH']}", "LC_ALL": "C.UTF-8"}
        site = SimpleNamespace(
            folder=folder / "run", marked_environment=environment, secrets=(), poll=0.0, options=(), job_secrets={}
        )
        super().__init__(site=cast("Any", site), playbooks=cast("Any", None), events=queue.SimpleQueue())
        self.words: list[str] = []

    def ssh(self, worker: str, words: str, **more: Any) -> Any:
        self.words += [*filter(None, (more.get("stdin"),)), words]
        return SimpleNamespace(ok=True, stdout="", exit_code=0, tail="")


@pytest.fixture
def session(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Session:
    """A session of the run in the folder ``run``; the folders of a worker's jobs are in ``jobs``."""
    monkeypatch.setattr(collect, "JOBS", str(tmp_path / "jobs"))
    return Session(tmp_path)


def hand_over(tmp_path: Path, text: str = "an action's result") -> str:
    """Write what the build of the config ``c`` hands over on its worker, and return the name of the archive."""
    source = tmp_path / "entry"
    source.write_text(text)
    folder = tmp_path / "jobs" / "c" / "handover"
    folder.parent.mkdir(parents=True, exist_ok=True)
    archive = handover.pack_archive(folder, [(f"cache/ac/00/{0:064x}", source)])[0]
    record = HandoverRecord(
        version=handover.VERSION,
        config="c",
        sources="s",
        cache_key="k",
        in_container=False,
        state=ChainState.UNFINISHED,
        links=(),
        archive=archive,
    )
    handover.write_handover_record(folder, record)
    return archive.name


def fetch(session: Session, seconds: float = 60.0) -> Any:
    until = time.time() + seconds
    command = CollectResults(worker="w-1", config="c", until=until)
    return collect.collect_build_results(session, command)


def files_of(folder: Path) -> set[str]:
    return {path.name for path in folder.iterdir()}


@pytest.mark.processes
@pytest.mark.needs("rsync")
def test_what_one_worker_hands_over_is_sent_to_the_next(session: Session, tmp_path: Path) -> None:
    name = hand_over(tmp_path)
    assert isinstance(fetch(session), ResultsCollected)
    assert files_of(collect.handover_folder(session, "c")) == {name, handover.RECORD}
    files.remove(tmp_path / "jobs" / "c" / "handover")
    start = StartBuild(worker="w-2", config="c")
    assert collect.handover_options(session, start) == f"--handover {tmp_path}/jobs/c/handover", "also on demand"
    assert collect.send_handover_to_worker(session, start).ok
    assert session.words == ["sudo kiln-job clear c"]
    assert files_of(tmp_path / "jobs" / "c" / "handover") == {name, handover.RECORD}
    session.words.clear()
    handlers.start_build_on_worker(session, start)
    assert f"KILN_JOB_OPTIONS=--handover {tmp_path}/jobs/c/handover" in session.words[-2]
    assert session.words[-1] == "sudo kiln-job start c"


@pytest.mark.processes
@pytest.mark.needs("rsync")
def test_only_a_worker_that_may_be_taken_back_looks_for_a_notice(session: Session, tmp_path: Path) -> None:
    on_demand, spot = (StartBuild(worker="w-1", config="c", reclaimable=spot) for spot in (False, True))
    assert collect.handover_options(session, on_demand) == ""
    here = f"{tmp_path}/jobs/c"
    assert collect.handover_options(session, spot) == f"--handover {here}/handover --notice {here}/notice"


@pytest.mark.parametrize("fault", ["archive", "record", "nothing", "late"])
@pytest.mark.processes
@pytest.mark.needs("rsync")
def test_what_arrives_damaged_or_late_is_not_kept(session: Session, tmp_path: Path, fault: str) -> None:
    hand_over(tmp_path)
    assert isinstance(fetch(session), ResultsCollected)
    before = files_of(collect.handover_folder(session, "c"))
    name, there = hand_over(tmp_path, "another result"), tmp_path / "jobs" / "c" / "handover"
    if fault == "archive":
        (there / name).write_bytes(b"x")
    elif fault == "record":
        (there / handover.RECORD).write_text("{")
    elif fault == "nothing":
        files.remove(there)
    event = fetch(session, seconds=-1.0 if fault == "late" else 60.0)
    assert isinstance(event, CollectFailed)
    assert event.reason
    assert files_of(collect.handover_folder(session, "c")) == before, "an earlier one is better than none"
    assert [path.name for path in (tmp_path / "run" / "handover").iterdir()] == ["c"]


@pytest.mark.processes
@pytest.mark.needs("rsync")
def test_a_handover_that_a_worker_cannot_use_is_removed_and_the_config_built_anew(
    session: Session, tmp_path: Path
) -> None:
    hand_over(tmp_path)
    fetch(session)
    job = {"state": "ended", "result": "exit-code", "exit_code": BrokenHandover.exit_code}
    event = handlers._finished_event(session, "w-2", "c", job)
    assert event is not None
    assert (event.exit_code, "damaged" in event.reason) == (None, True)
    assert not collect.handover_folder(session, "c").exists()
