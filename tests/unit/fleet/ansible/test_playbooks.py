"""A playbook has succeeded only when its runner reports so; its answer lists the workers that remain."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import threading
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kiln.fleet.ansible import playbooks
from kiln.fleet.ansible.playbook_child import playbook_exit_code
from kiln.fleet.ansible.playbooks import (
    NOT_ENDED,
    PlaybookResult,
    PlaybookRunner,
    PlaybookSite,
    is_removal_confirmed,
)
from tests.waiting import until

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("status", "rc", "code"),
    [("successful", 0, 0), ("failed", None, 1), ("failed", 0, 1), ("failed", 4, 4), ("canceled", 254, 254)],
)
def test_the_exit_code_is_zero_only_for_success(status: str, rc: int | None, code: int) -> None:
    assert playbook_exit_code(status, rc) == code


def site(folder: Path, *events: dict[str, Any], code: int = 0) -> PlaybookSite:
    """Return a site whose Python prints the events of a playbook's process, and writes an answer."""
    python = folder / "python"
    lines = "".join(f"echo '{json.dumps(event)}'\n" for event in events)
    answer = """answer=$(dirname "$4").json; echo '{"left": []}' >"$answer"\n"""
    python.write_text(f"#!/bin/sh\n{answer}{lines}exit {code}\n")
    python.chmod(0o755)
    return PlaybookSite(
        folder=folder / "run", playbooks=folder, python=python, variables={}, environment={"PATH": "/bin"}
    )


@pytest.mark.processes
@pytest.mark.parametrize(
    ("events", "code", "ok", "reason"),
    [
        ([{"kind": "end", "status": "successful", "rc": 0}], 0, True, NOT_ENDED),
        ([{"kind": "end", "status": "failed", "rc": None}], 0, False, NOT_ENDED),
        ([{"kind": "end", "status": "failed", "rc": None}], 1, False, NOT_ENDED),
        ([], 0, False, NOT_ENDED),
        ([{"kind": "unreachable", "host": "m", "task": "T", "reason": "gone"}], 4, False, "T: gone"),
    ],
)
def test_a_playbook_that_was_killed_has_not_succeeded(
    tmp_path: Path, events: list[dict[str, Any]], code: int, ok: bool, reason: str
) -> None:
    result = PlaybookRunner(site(tmp_path, *events, code=code)).run_playbook("down.yml")
    assert (result.ok, result.failure_reason("m")) == (ok, reason)
    assert result.unreachable == ({"m"} if events and events[0]["kind"] == "unreachable" else frozenset())
    assert is_removal_confirmed(result) is ok


def test_nothing_is_left_only_after_a_successful_listing_of_nothing() -> None:
    assert is_removal_confirmed(PlaybookResult(ok=True, reasons={}, answer={"left": []}))
    assert not is_removal_confirmed(PlaybookResult(ok=True, reasons={}, answer={"left": ["kiln-a-1"]}))
    assert not is_removal_confirmed(PlaybookResult(ok=False, reasons={}, answer={"left": []}))
    assert not is_removal_confirmed(PlaybookResult(ok=True, reasons={}))


def test_a_limited_number_of_workers_is_prepared_at_a_time_and_the_provider_does_not_wait(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    pairs, lock, active, most = threading.Barrier(2, timeout=20), threading.Lock(), [0], [0]

    def run(words: tuple[Any, ...], **_: object) -> SimpleNamespace:
        if "prepare" in str(words[-1]):
            with lock:
                active[0] += 1
                most[0] = max(most[0], active[0])
            pairs.wait()  # broken unless two run at once
            with lock:
                active[0] -= 1
        return SimpleNamespace(ok=True, tail="")

    monkeypatch.setattr("kiln.base.process.run", run)
    monkeypatch.setattr("kiln.fleet.ansible.playbooks.playbook_slots_for_memory", lambda _: 2)
    runner = PlaybookRunner(site(tmp_path))
    preparations = [
        threading.Thread(
            target=runner.run_playbook, args=("prepare.yml",), kwargs={"worker": f"f-{number}"}, daemon=True
        )
        for number in range(6)
    ]
    with runner._slots, runner._slots:
        runner.run_playbook("down.yml")  # would wait for ever
    for thread in preparations:
        thread.start()
    for thread in preparations:
        thread.join(timeout=20)
    assert (most[0], active[0]) == (2, 0)


@pytest.mark.processes
def test_processes_with_the_runs_mark_are_ended_and_no_others(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(playbooks, "GRACE", 0.2)
    ours = {**os.environ, playbooks.MARK: str(tmp_path)}
    others = {**os.environ, playbooks.MARK: f"{tmp_path}-2"}
    stubborn = ("sh", "-c", "trap '' TERM; echo ready; while :; do sleep 0.1; done")
    with (
        subprocess.Popen(stubborn, env=ours, stdout=subprocess.PIPE) as marked,
        subprocess.Popen(("sleep", "600"), env=others) as other,
    ):
        try:
            assert marked.stdout is not None
            assert marked.stdout.readline() == b"ready\n"
            assert marked.pid in playbooks.find_processes_of_run(tmp_path)
            assert marked.pid in playbooks.end_processes_of_run(tmp_path)
            assert marked.wait(60) == -signal.SIGKILL
            until(
                lambda: not playbooks.find_processes_of_run(tmp_path),
                "the sleep that it had just started is over, too",
            )
            assert other.poll() is None
        finally:
            marked.kill()
            other.kill()
