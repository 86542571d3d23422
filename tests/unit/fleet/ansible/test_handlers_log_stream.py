"""The log of a build is fetched piece by piece, together with the state of its job."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from kiln.fleet.ansible.handlers import AT_ONCE, MARK, LogStream, job_state_and_result

if TYPE_CHECKING:
    from pathlib import Path


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
