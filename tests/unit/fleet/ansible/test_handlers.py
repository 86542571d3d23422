"""Commands to workers over ssh: jobs, builds, logs and notices."""

from __future__ import annotations

import base64
import json
import queue
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any, ClassVar, cast

import pytest

from kiln.fleet.ansible.handlers import (
    AT_ONCE,
    MARK,
    LogStream,
    follow_build,
    job_state_and_result,
    job_states_of_same_inputs,
    report_service_health,
    start_build_on_worker,
)
from kiln.fleet.ansible.sessions import PlaybookSession
from kiln.fleet.protocol import (
    BuildFinished,
    BuildStarted,
    FollowBuild,
    Heartbeat,
    ReclaimNotice,
    StartBuild,
    WatchService,
)


def test_jobs_of_other_inputs_are_left_out() -> None:
    status = {
        "one": {"state": "running", "key": "a"},
        "two": {"state": "ended", "key": "b"},
        "three": {"state": "ended"},
    }
    keys = {"one": "a", "two": "other", "three": "c"}
    assert job_states_of_same_inputs(status, keys) == {"one": "running", "three": "ended"}


def test_secrets_of_a_build_are_sent_on_standard_input_and_are_no_argument() -> None:
    sent: dict[str, object] = {}

    class Listener(Answers):
        def ssh(self, *words: object, **more: object) -> Any:
            sent.update(more, words=words)
            return SimpleNamespace(ok=True, exit_code=0, tail="")

    session = Listener()
    cast("Any", session.site).folder = Path("nowhere")
    cast("Any", session.site).job_secrets = {"BAZEL_REMOTE_EXECUTOR": "grpcs://e.example.org"}
    started = start_build_on_worker(session, StartBuild(worker="f-1", config="c", key="a1"))
    assert sent["words"] == ("f-1", "sudo kiln-job start c")
    assert sent["stdin"] == "KILN_FLEET_KEY=a1\nBAZEL_REMOTE_EXECUTOR=grpcs://e.example.org\n"
    assert started == BuildStarted(worker="f-1", config="c")


@pytest.mark.parametrize(
    ("provider", "is_let_in", "url"),
    [
        ("aws", False, "http://kiln:word@10.0.0.9:8080"),
        ("static", True, "http://kiln:word@10.0.0.9:8080"),
        ("static", False, ""),
    ],
)
def test_a_build_gets_access_to_the_cache_and_builds_without_it_where_it_is_refused(
    tmp_path: Path, provider: str, is_let_in: bool, url: str
) -> None:
    (tmp_path / "keys").mkdir()
    (tmp_path / "keys" / "cache").write_text("word")
    (tmp_path / "inventory").mkdir()
    hosts = {"f-1": {"kiln_machine": {"private": "10.0.0.1"}}}
    (tmp_path / "inventory" / "f-1.json").write_text(json.dumps({"kiln_machines": {"hosts": hosts}}))
    sent: list[tuple[tuple[object, ...], object]] = []

    class Listener(Answers):
        def ssh(self, *words: object, **more: object) -> Any:
            sent.append((words, more.get("stdin")))
            return SimpleNamespace(ok=is_let_in or "let-in" not in str(words), exit_code=0, tail="")

    session = Listener()
    variables = {"kiln_provider": provider, "kiln_run": "f"}
    session.site = cast("Any", SimpleNamespace(folder=tmp_path, variables=variables, job_secrets={}))
    start_build_on_worker(session, StartBuild(worker="f-1", config="c", key="a1", cache="http://10.0.0.9:8080"))
    asked = [("kiln-f-cache", "sudo kiln-cache-gate let-in 10.0.0.1")] if provider == "static" else []
    assert [words for words, _ in sent] == [*asked, ("f-1", "sudo kiln-job start c")]
    expected = f"KILN_FLEET_KEY=a1\n{f'BAZEL_REMOTE_CACHE={url}' if url else ''}".rstrip("\n") + "\n"
    assert sent[-1][1] == expected


class Answers(PlaybookSession):
    """A session whose worker answers with the given states of its job ``c``, one after the other."""

    def __init__(self, *states: dict[str, object]) -> None:
        site = SimpleNamespace(poll=0.0)
        super().__init__(site=cast("Any", site), playbooks=cast("Any", None), events=queue.SimpleQueue())
        self.states = list(states)
        self.provider_lock = threading.Lock()

    def ssh(self, *_: object, **__: object) -> Any:
        text = f"{json.dumps({'c': self.states.pop(0)})}\n\n{MARK}\n{base64.b64encode(b'').decode()}"
        return SimpleNamespace(ok=True, stdout=text, exit_code=0, tail="")


@pytest.mark.parametrize(
    ("state", "code", "fault", "outcome"),
    [
        ("ended", 17, "Read-only file system", (None, True)),
        ("lost", None, "Read-only file system", (None, True)),
        ("ended", 0, "Read-only file system", (0, False)),
        ("ended", 17, "", (17, False)),
        ("lost", None, "", (None, False)),
    ],
)
def test_a_build_that_fails_on_a_broken_disk_is_not_at_fault(
    state: str, code: int | None, fault: str, outcome: tuple[int | None, bool]
) -> None:
    session = Answers({"state": state, "exit_code": code, "result": "exit-code", "disk_fault": fault})
    event = follow_build(session, FollowBuild(worker="f-1", config="c"))
    assert isinstance(event, BuildFinished)
    assert (event.exit_code, event.unfit) == outcome
    assert not event.unfit or event.reason == "its disk cannot be written: Read-only file system"


@pytest.mark.parametrize(
    ("times", "seconds"),
    [({"started": 100.0, "ended": 246.0}, 146.0), ({"started": 246.0, "ended": 100.0}, 0.0), ({"ended": 9.0}, None)],
)
def test_a_build_takes_what_its_worker_s_clock_says(times: dict[str, float], seconds: float | None) -> None:
    session = Answers({**times, "state": "ended", "exit_code": 0, "result": "success"})
    event = follow_build(session, FollowBuild(worker="f-1", config="c"))
    assert isinstance(event, BuildFinished)
    assert event.seconds == seconds


def test_the_notice_to_a_worker_is_reported_once() -> None:
    at = 1_790_000_120.0
    running: dict[str, object] = {"state": "running", "reclaimed_at": None}
    noticed: dict[str, object] = {**running, "reclaimed_at": at}
    ended: dict[str, object] = {**noticed, "state": "ended", "exit_code": 0, "result": "success"}
    session = Answers(running, noticed, noticed, ended)
    follow_build(session, FollowBuild(worker="f-1", config="c"))
    events = [session.events.get_nowait() for _ in range(session.events.qsize())]
    assert [event for event in events if isinstance(event, ReclaimNotice)] == [ReclaimNotice(worker="f-1", at=at)]


def test_the_notice_to_the_worker_of_a_cache_is_reported_once() -> None:
    """Such a worker has no build that is followed."""
    questions: list[object] = []

    class Noticed(Answers):
        records: ClassVar = [
            "",
            '{"action": "terminate", "at": 1790000120.0}',
            '{"action": "terminate", "at": 1790000120.0}',
        ]

        def ssh(self, *words: object, **_: object) -> Any:
            questions.append(words)
            return SimpleNamespace(ok=True, stdout=self.records.pop(0), exit_code=0, tail="")

        def must_still_follow(self, worker: str) -> bool:
            return worker == "kiln-r-cache" and bool(self.records)

    session = Noticed()
    report_service_health(session, WatchService(worker="kiln-r-cache"))
    assert "is-active --quiet kiln-cache" in str(questions[0])
    events = [session.events.get_nowait() for _ in range(session.events.qsize())]
    beat = Heartbeat(worker="kiln-r-cache")
    assert events == [beat, beat, ReclaimNotice(worker="kiln-r-cache", at=1_790_000_120.0), beat]


def answer(data: bytes, state: str = "running") -> str:
    return f"{json.dumps({'a': {'state': state}})}\n\n{MARK}\n{base64.b64encode(data).decode()}"


def test_a_log_is_fetched_piece_by_piece_and_continued_by_another_process(tmp_path: Path) -> None:
    path = tmp_path / "a.log"
    with LogStream(path) as log:
        assert "tail -c +1 " in log.status_and_log_command("a")
        job, lines = log.parse_status_and_log(
            answer(b"2026-11-21 13:37:55 === compile\n2026-11-21 13:37:56 gcc \xc3"), "a"
        )
        assert (job, lines) == ({"state": "running"}, [("compile", "")])
        assert log.parse_status_and_log(answer(b"\xa9 a.c\n"), "a")[1] == [
            ("compile", "2026-11-21 13:37:56 gcc \xe9 a.c")
        ]
    with LogStream(path) as log:
        assert f"tail -c +{path.stat().st_size + 1} " in log.status_and_log_command("a")


def test_the_command_waits_on_the_worker_unless_more_can_be_fetched_at_once() -> None:
    with LogStream(None) as log:
        assert "kiln-job wait a 0.0;" in log.status_and_log_command("a", 5.0), "the earlier output is fetched at once"
        log.parse_status_and_log(answer(b"one\n"), "a")
        assert "kiln-job wait a 5.0;" in log.status_and_log_command("a", 5.0)
        log.parse_status_and_log(answer(b"x" * AT_ONCE), "a")
        assert "kiln-job wait a 0.0;" in log.status_and_log_command("a", 5.0), "there is more"


def test_a_job_that_the_worker_does_not_know_is_lost() -> None:
    with LogStream(None) as log:
        assert job_state_and_result(log.parse_status_and_log(answer(b""), "b")[0]) == ("lost", "", None)


def test_an_invalid_answer_is_a_value_error() -> None:
    with LogStream(None) as log, pytest.raises(ValueError, match="Expecting value"):
        log.parse_status_and_log("motd: welcome!", "a")
