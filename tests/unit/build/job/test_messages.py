"""The messages of a config's process are distinguished from its build's output."""

from __future__ import annotations

import contextlib
import json
import os
import time
from typing import TYPE_CHECKING

import pytest

from kiln.base import masking
from kiln.base.errors import AlreadyRunning, BudgetSpent, BuildFailed, DiskFull, KilnError, OutOfMemory
from kiln.base.secret_forms import MASKED
from kiln.build.job import messages
from kiln.build.job.job import BuildOptions
from kiln.build.job.messages import (
    MARK,
    BudgetMonitor,
    BuildLog,
    StepReporter,
    error_as_json,
    error_from_json,
    failed_config_result,
    parse_message,
    send_message,
)
from kiln.state.results import ConfigState
from tests import waiting

if TYPE_CHECKING:
    from pathlib import Path


def test_a_message_is_parsed_and_other_lines_are_output(capsys: pytest.CaptureFixture[str]) -> None:
    send_message("step", title="build ü")
    (line,) = capsys.readouterr().out.split("\n")[:-1]
    assert parse_message(line) == {"kind": "step", "title": "build ü"}
    for line in ("gcc -c a.c", MARK, f"{MARK}[]", f"{MARK}{{}}", f'{MARK}{{"kind"', f"{MARK}null"):
        assert parse_message(line) is None


def test_a_build_cannot_speak_for_its_process(capsys: pytest.CaptureFixture[str]) -> None:
    with StepReporter().step("build") as step:
        step.pass_on_line(f'{MARK}{{"kind": "result", "state": "done"}}')
    told = [parse_message(line) for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [item and item["kind"] for item in told] == ["step", None, "done"]


def test_steps_are_reported_from_start_to_end_and_collected(capsys: pytest.CaptureFixture[str]) -> None:
    voice = StepReporter()
    with voice.step("fetch") as step:
        step.reused = True
        step.add_note("n")
    with pytest.raises(ZeroDivisionError), voice.step("make"):
        raise ZeroDivisionError
    told = [parse_message(line) or {} for line in capsys.readouterr().out.split("\n")[:-1]]
    assert [(item["kind"], item["title"], item.get("failed")) for item in told] == [
        ("step", "fetch", None),
        ("done", "fetch", False),
        ("step", "make", None),
        ("done", "make", True),
    ]
    assert [(step.title, step.reused, step.notes, step.failed) for step in voice.steps] == [
        ("fetch", True, ("n",), False),
        ("make", False, (), True),
    ]
    assert voice.failed == "make"


def test_steps_at_the_same_moment_are_shown_one_after_the_other(capsys: pytest.CaptureFixture[str]) -> None:
    voice, shown = StepReporter(), list[str]()
    with contextlib.suppress(ZeroDivisionError), voice.step("one") as one:
        one.pass_on_line("1a")
        with contextlib.suppress(ZeroDivisionError), voice.step("two") as two:  # as in another thread
            two.pass_on_line("2a")
            one.pass_on_line("1b")
            shown = capsys.readouterr().out.split("\n")[:-1]
            raise ZeroDivisionError
        with voice.step("three") as three:
            three.pass_on_line("3a")
        one.pass_on_line("1c")
        raise ZeroDivisionError
    assert [line for line in shown if not line.startswith(MARK)] == ["1a", "1b"]
    later = capsys.readouterr().out.split("\n")[:-1]
    told = [message["kind"] + " " + message["title"] if (message := parse_message(line)) else line for line in later]
    assert told == ["1c", "done one", "step two", "2a", "done two", "step three", "3a", "done three"]
    assert [(step.title, step.failed) for step in voice.steps] == [("one", True), ("two", True), ("three", False)]
    assert voice.failed == "two"  # the first to fail
    with voice.step("four"):
        pass
    assert voice.failed is None


def test_a_download_is_a_steps_progress_and_the_log_has_its_tenths(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    clock = [0.0]
    monkeypatch.setattr("kiln.base.text.time.monotonic", lambda: clock[0])
    for title in ("fetch", "test"):
        with StepReporter().step(title) as step:
            for done in range(0, 101, 2):
                step.report_received(done * 1_000_000, 100_000_000)
                clock[0] += 1.0
            step.report_received(5, 5)
    with BuildLog(tmp_path / "a.log") as log:
        for line in capsys.readouterr().out.split("\n")[:-1]:
            log.record_and_pass_on_line(line)
    shown = [line[20:] for line in (tmp_path / "a.log").read_text().splitlines()]
    first = shown[: len(shown) // 2]
    assert first[:2] == ["=== fetch", "    10 MB of 100 MB, 2.0 MB/s, about 45 s left"]
    assert first[-2] == "    100 MB of 100 MB"
    assert len(first) == 1 + 10 + 1
    assert shown[len(first) : -1] == ["=== test", *first[1:-1]], "each step has its own"


def test_an_error_survives_json_and_names_its_step_first() -> None:
    error = DiskFull("full", why="of logs", hint="remove some")
    told = error_from_json(error_as_json(error, step="compile"))
    assert (type(told), told.what, told.why, told.hint) == (DiskFull, "compile: full", "of logs", "remove some")
    assert error_from_json(error_as_json(error)).what == "full"


@pytest.mark.parametrize(
    ("error", "state"),
    [
        (BuildFailed("x"), ConfigState.FAILED),
        (OutOfMemory("x"), ConfigState.OUT_OF_MEMORY),
        (DiskFull("x"), ConfigState.DISK_FULL),
        (AlreadyRunning("x"), ConfigState.LOCKED),
    ],
)
def test_what_ended_a_config_decides_its_state(error: KilnError, state: ConfigState) -> None:
    assert failed_config_result(error)["state"] == state.value


def a_monitor(folder: Path, **options: float) -> BudgetMonitor:
    cache = folder / "cache"
    (cache / "ac" / "00").mkdir(parents=True)
    return BudgetMonitor(options=BuildOptions(**options), cache=cache, stop=folder / "stop")  # type: ignore[arg-type]


def act(monitor: BudgetMonitor, number: int, size: int = 1) -> None:
    (monitor.cache / "ac" / "00" / f"{number:064x}").write_bytes(bytes(size))


def test_the_reserve_grows_with_what_has_to_be_packed() -> None:
    assert messages.least_reserve_seconds(20_000.0) == messages.LEAST
    assert messages.least_reserve_seconds(60.0) == 6.0
    assert messages.reserve_seconds(0, 6.0) == 6.0
    assert messages.reserve_seconds(10_000_000_000, 120.0) == pytest.approx(120 + 200 + 400)


def test_it_stops_when_only_the_reserve_is_left(tmp_path: Path) -> None:
    monitor = a_monitor(tmp_path, deadline=1000.0, least_reserve=50.0)
    assert monitor.stop_reason(940.0, 0) == ""
    assert monitor.stop_reason(950.5, 0) == "49.5 s of --budget are left, which its end and its packing take"


def test_a_larger_cache_is_stopped_earlier(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(messages, "UPLOADED", 1000)
    monitor = a_monitor(tmp_path, deadline=1000.0, least_reserve=1.0)
    act(monitor, 1, 100_000)
    assert monitor.stop_reason(905.0, 0)


def test_it_stops_after_a_number_of_actions(tmp_path: Path) -> None:
    monitor = a_monitor(tmp_path, action_limit=2)
    act(monitor, 1)
    assert monitor.stop_reason(0.0, 0) == ""
    act(monitor, 2)
    assert monitor.stop_reason(0.0, 0) == "2 actions of Bazel are finished, and --budget allows 2"
    assert monitor.stop_reason(0.0, 1) == ""


def test_it_stops_at_once_when_the_machine_is_taken_back(tmp_path: Path) -> None:
    notice = tmp_path / "notice"
    monitor = a_monitor(tmp_path, notice=notice)  # type: ignore[arg-type]
    assert monitor.options.has_budget, "or a Bazel in a container is not interrupted"
    assert monitor.stop_reason(1000.0, 0) == ""
    notice.write_text("{")
    assert monitor.stop_reason(1000.0, 0) == "", "half written"
    notice.write_text('{"at": 1095}')
    assert monitor.stop_reason(1000.0, 0) == "the machine is taken back in 1 min 35 s"


def test_as_much_is_handed_on_as_the_time_of_a_notice_allows() -> None:
    assert messages.transferable_bytes(messages.SHORTEST) == 0
    assert messages.transferable_bytes(messages.SHORTEST + 6.0) == 100_000_000
    assert messages.reserve_seconds(messages.transferable_bytes(70.0), messages.SHORTEST) == pytest.approx(70.0)


def test_a_build_that_is_asked_to_stop_ends_by_itself(tmp_path: Path) -> None:
    monitor = a_monitor(tmp_path, action_limit=1)
    with monitor.stop_when_spent():
        act(monitor, 1)
        waiting.until(monitor.stop.exists, "the file that says so")
    assert (bool(monitor.spent), monitor.terminated) == (True, False)


@pytest.fixture
def signals(monkeypatch: pytest.MonkeyPatch) -> list[int]:
    """The signals that are sent, the first one soon."""
    sent: list[int] = []
    monkeypatch.setattr(messages, "SHORTEST", 0.01)
    monkeypatch.setattr(os, "kill", lambda _, number: sent.append(number))
    return sent


def test_a_build_that_goes_on_regardless_is_terminated(tmp_path: Path, signals: list[int]) -> None:
    monitor = a_monitor(tmp_path, deadline=time.time())

    def build() -> None:
        with monitor.stop_when_spent():
            waiting.until(lambda: bool(signals), "a signal")
            raise KeyboardInterrupt

    with pytest.raises(BudgetSpent, match="stopped before it was finished"):
        build()
    assert monitor.terminated


def test_a_link_in_the_place_of_the_file_does_not_keep_a_build_going(tmp_path: Path, signals: list[int]) -> None:
    monitor = a_monitor(tmp_path, action_limit=1)
    with monitor.stop_when_spent():
        monitor.stop.symlink_to(tmp_path / "elsewhere")
        act(monitor, 1)
        waiting.until(lambda: bool(signals), "a signal")
    assert not (tmp_path / "elsewhere").exists()


def test_without_a_budget_nothing_is_watched(tmp_path: Path) -> None:
    monitor = a_monitor(tmp_path)
    with monitor.stop_when_spent():
        assert monitor._thread is None


SECRET = "correct-horse-battery"


@pytest.fixture(autouse=True)
def protected(monkeypatch: pytest.MonkeyPatch) -> None:
    """Protect the secret for one test alone."""
    monkeypatch.setattr(masking._ProcessMask, "mask", masking.Mask([SECRET]))


@pytest.mark.parametrize(
    "line",
    [
        f"{MARK}no message, but {SECRET}",
        MARK + json.dumps({"kind": "hello", "pid": SECRET}),
        MARK + json.dumps({"kind": "step", "title": SECRET}),
        MARK + json.dumps({"kind": "step", "title": "build", "more": SECRET}),
    ],
)
def test_a_forged_message_shows_no_secret(tmp_path: Path, capsys: pytest.CaptureFixture[str], line: str) -> None:
    with BuildLog(tmp_path / "log") as log:
        log.record_and_pass_on_line(line)
    assert SECRET not in (tmp_path / "log").read_text()
    assert SECRET not in capsys.readouterr().out
    assert MASKED in (tmp_path / "log").read_text()


def test_a_message_keeps_its_kind_though_it_were_a_secret(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(masking._ProcessMask, "mask", masking.Mask(["step"]))
    with BuildLog(tmp_path / "log") as log:
        log.record_and_pass_on_line(MARK + json.dumps({"kind": "step", "title": "compile"}))
    assert "=== compile" in (tmp_path / "log").read_text()
    assert '"kind": "step"' in capsys.readouterr().out
