"""The ledger keeps finished steps, for several writers and past broken files."""

from __future__ import annotations

import dataclasses
import signal
from concurrent.futures import ThreadPoolExecutor
from typing import TYPE_CHECKING

import pytest

from kiln.state.ledger.ledger import Ledger, StoredArtifact
from kiln.state.results import ConfigRun, ConfigState, RunCost
from tests.unit.state.run_reports import DONE, RUN, A, B, writer

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


def test_a_finished_step_is_found_by_its_key_in_a_later_run(tmp_path: Path) -> None:
    Ledger(tmp_path / "l.sqlite").store_step("k", config="c", title="t", seconds=1.5, detail={"path": "a/b"})
    result = Ledger(tmp_path / "l.sqlite").finished_step("k")
    assert result is not None
    assert (result.config, result.title, result.seconds, result.detail) == ("c", "t", 1.5, {"path": "a/b"})
    with Ledger(tmp_path / "l.sqlite") as ledger:
        ledger.delete_step("k")
        assert ledger.finished_step("k") is None


def test_no_record_of_several_writers_is_lost(tmp_path: Path) -> None:
    ledger = Ledger(tmp_path / "l.sqlite")

    def write(number: int) -> None:
        ledger.store_step(f"k{number}", config="c", title="t", seconds=number, detail={})

    with ThreadPoolExecutor(8) as pool:
        list(pool.map(write, range(200)))
    assert all(ledger.finished_step(f"k{number}") for number in range(200))


@pytest.fixture
def ledger(tmp_path: Path) -> Iterator[Ledger]:
    with Ledger(tmp_path / "l.sqlite") as opened:
        yield opened


def test_a_run_is_read_as_it_was_written(ledger: Ledger, tmp_path: Path) -> None:
    number = ledger.begin_run(RUN)
    ledger.update_config(number, DONE)
    ledger.end_run(number)
    with Ledger(tmp_path / "l.sqlite") as other:
        result = other.run_report()
    assert result is not None
    assert result.finished is not None
    assert result == dataclasses.replace(RUN, run=number, finished=result.finished, configs=(DONE, B))


def test_the_cost_of_a_run_that_a_repair_has_lost(ledger: Ledger) -> None:
    number = ledger.begin_run(RUN)
    cost = RunCost(spent=1.0, expected=2.0, currency="EUR", end=3.0)
    ledger.update_cost(number + 1, cost)
    ledger.update_cost(number, cost)
    report = ledger.run_report()
    assert report is not None
    assert report.cost == cost


def test_runs_have_different_numbers(ledger: Ledger) -> None:
    first, second = ledger.begin_run(RUN), ledger.begin_run(dataclasses.replace(RUN, jobs=7))
    assert ledger.run_numbers() == (second, first)
    assert [getattr(ledger.run_report(number), "jobs", None) for number in (first, second, None, 99)] == [2, 7, 7, None]


def test_the_next_estimate_is_the_last_whole_build(ledger: Ledger) -> None:
    for seconds in (5.0, 8.0):
        number = ledger.begin_run(RUN)
        ledger.update_config(number, dataclasses.replace(DONE, finished=10.0 + seconds))
        ledger.update_config(number, dataclasses.replace(B, state=ConfigState.FAILED, started=1.0, finished=2.0))
    assert ledger.last_build_seconds() == {"a": 8.0}
    assert ledger.last_build_peak_memory_by_config() == {"a": 1 << 20}


def test_a_stored_package_is_found_by_its_path(ledger: Ledger) -> None:
    kept = StoredArtifact(path="linux-64/a.conda", sha256="5", size=1, modified=2, config="a", inputs="i")
    ledger.store_artifacts(kept)
    assert ledger.stored_artifact("linux-64/a.conda") == kept
    assert ledger.stored_artifact("linux-64/b.conda") is None


@pytest.mark.processes
def test_all_that_a_killed_process_had_written_is_kept(tmp_path: Path) -> None:
    with writer(tmp_path / "l.sqlite", 100_000) as process:
        assert process.stdout is not None
        number = int(process.stdout.readline())
        for _ in range(50):
            last = int(process.stdout.readline())
        process.send_signal(signal.SIGKILL)
        last = max([last, *map(int, process.stdout.read().split("\n")[:-1])])
    with Ledger(tmp_path / "l.sqlite") as ledger:
        report = ledger.run_report(number)
    assert report is not None
    assert len(report.configs) in {last + 1, last + 2}
    assert {config.state for config in report.configs} == {ConfigState.INTERRUPTED}


def test_rehearsals_and_builds_are_kept_apart(tmp_path: Path) -> None:
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        for seconds, rehearsal in ((100.0, False), (5.0, True)):
            config = ConfigRun(
                config="a",
                state=ConfigState.DONE if rehearsal else ConfigState.FAILED,
                group="cpu",
                started=1.0,
                finished=1.0 + seconds,
                peak_memory=int(seconds),
            )
            ledger.begin_run(dataclasses.replace(RUN, configs=(config,), rehearsal=rehearsal))
        assert (ledger.latest_config_states(), ledger.latest_config_states(rehearsal=True)) == (
            {"a": ConfigState.FAILED},
            {"a": ConfigState.DONE},
        )
        assert (ledger.last_build_seconds(), ledger.last_build_seconds(rehearsal=True)) == ({}, {"a": 5.0})
        assert (ledger.last_build_peak_memory_by_config(), ledger.last_build_peak_memory_by_config(rehearsal=True)) == (
            {"a": 100},
            {"a": 5},
        )
        latest = ledger.run_report()
        assert latest is not None
        assert latest.rehearsal


@pytest.mark.parametrize("state", [ConfigState.LOCKED, ConfigState.WAITING])
def test_a_run_without_a_result_of_a_config_does_not_hide_its_earlier_state(ledger: Ledger, state: ConfigState) -> None:
    config = dataclasses.replace(A, started=None, packages=(), state=state)
    ledger.update_config(ledger.begin_run(RUN), config)
    assert ledger.latest_config_states()["a"] is state
    ledger.update_config(ledger.begin_run(RUN), dataclasses.replace(A, state=ConfigState.FAILED))
    ledger.update_config(ledger.begin_run(RUN), config)
    assert ledger.latest_config_states()["a"] is ConfigState.FAILED
