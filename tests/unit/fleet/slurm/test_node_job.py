"""A job on a node of Slurm records its result next to its log, whatever became of it or of an earlier start of it."""

from __future__ import annotations

import json
import signal
from typing import TYPE_CHECKING, Any

import pytest

from kiln.fleet.slurm.node_job import NodeJob

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture(autouse=True)
def same_signals() -> Iterator[None]:
    """Restore the handler of SIGTERM, which a job sets for its process."""
    handler = signal.getsignal(signal.SIGTERM)
    yield
    signal.signal(signal.SIGTERM, handler)


def node_job(folder: Path, monkeypatch: pytest.MonkeyPatch, *, restarts: str = "", status: int | None = 0) -> NodeJob:
    """Return a job whose build ends with a status, and may not be started with None."""
    monkeypatch.setenv("SLURM_RESTART_COUNT", restarts)
    monkeypatch.setenv("SLURM_JOB_ID", "7")
    monkeypatch.setenv("SLURMD_NODENAME", "n1")
    (folder / "job.json").write_text(json.dumps({"key": "k", "argv": ["kiln"], "environment": {}}))
    job = NodeJob(folder)

    def run_build_command() -> int:
        assert status is not None, "the build was started"
        assert state(folder)["state"] == "running"
        return status

    monkeypatch.setattr(job, "_run_build_command", run_build_command)
    return job


def state(folder: Path) -> dict[str, Any]:
    result: dict[str, Any] = json.loads((folder / "state.json").read_text())
    return result


@pytest.mark.parametrize(
    ("status", "exit_code", "result", "code_in_state"),
    [(0, 0, "success", 0), (3, 3, "exit-code", 3), (-9, 1, "signal 9", None)],
)
def test_the_state_has_the_result_of_the_build(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    status: int,
    exit_code: int,
    result: str,
    code_in_state: int | None,
) -> None:
    assert node_job(tmp_path, monkeypatch, status=status).run_job() == exit_code
    final = state(tmp_path)
    assert (final["state"], final["result"], final["exit_code"]) == ("ended", result, code_in_state)
    assert (final["key"], final["id"], final["node"], final["restarts"]) == ("k", "7", "n1", 0)
    assert final["ended"] >= final["started"]


def test_a_build_that_ended_by_itself_after_sigterm_was_terminated(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = node_job(tmp_path, monkeypatch)

    def end_after_signal() -> int:
        signal.raise_signal(signal.SIGTERM)
        return 3

    monkeypatch.setattr(job, "_run_build_command", end_after_signal)
    assert job.run_job() == 1
    assert (state(tmp_path)["result"], state(tmp_path)["exit_code"]) == ("terminated", None)


def test_a_job_whose_nodes_fail_again_and_again_is_not_built_once_more(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert node_job(tmp_path, monkeypatch, restarts="3").run_job() == 0
    assert node_job(tmp_path, monkeypatch, restarts="4", status=None).run_job() == 1
    assert (state(tmp_path)["state"], state(tmp_path)["result"]) == ("ended", "restarted 4 times")


def test_a_start_on_a_node_that_was_cut_off_does_not_overwrite_the_state_of_a_later_one(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    first = node_job(tmp_path, monkeypatch, status=1)
    second = node_job(tmp_path, monkeypatch, restarts="1")
    monkeypatch.setattr(first, "_run_build_command", lambda: second.run_job() + 1)
    first.run_job()
    assert (state(tmp_path)["restarts"], state(tmp_path)["result"]) == (1, "success")


@pytest.mark.parametrize("text", ["", "{", '{"restarts": "x"}'])
def test_a_state_that_cannot_be_read_is_replaced(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, text: str) -> None:
    (tmp_path / "state.json").write_text(text)
    node_job(tmp_path, monkeypatch).run_job()
    assert state(tmp_path)["result"] == "success"
