"""Results that a worker hands over before its end reach the next one whole, or not at all. The real rsync is used."""

from __future__ import annotations

import os
import queue
import time
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.base import files
from kiln.base.errors import BrokenHandover
from kiln.build.job.collected import ResultsCollected
from kiln.fleet.ansible import collect, handlers
from kiln.fleet.ansible.sessions import PlaybookSession
from kiln.fleet.protocol import CollectFailed, CollectResults, StartBuild
from kiln.state.store import handover
from kiln.state.store.handover import ChainState, HandoverRecord

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = [pytest.mark.processes, pytest.mark.needs("rsync")]

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
        super().__init__(site=cast("Any", site), playbooks=cast("Any", None), events=queue.Queue())
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


def test_only_a_worker_that_may_be_taken_back_looks_for_a_notice(session: Session, tmp_path: Path) -> None:
    on_demand, spot = (StartBuild(worker="w-1", config="c", reclaimable=spot) for spot in (False, True))
    assert collect.handover_options(session, on_demand) == ""
    here = f"{tmp_path}/jobs/c"
    assert collect.handover_options(session, spot) == f"--handover {here}/handover --notice {here}/notice"


@pytest.mark.parametrize("fault", ["archive", "record", "nothing", "late"])
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
