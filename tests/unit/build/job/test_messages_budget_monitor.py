"""A build is stopped with enough time left to pack what it made, or after a number of actions."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BudgetSpent
from kiln.build.job import messages
from kiln.build.job.job import BuildOptions
from kiln.build.job.messages import BudgetMonitor

if TYPE_CHECKING:
    from pathlib import Path


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
        until = time.monotonic() + 20
        while not monitor.stop.exists():
            assert time.monotonic() < until
    assert (bool(monitor.spent), monitor.terminated) == (True, False)


def test_a_build_that_goes_on_regardless_is_terminated(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    signals: list[int] = []
    monkeypatch.setattr(messages, "SHORTEST", 0.01)
    monkeypatch.setattr(os, "kill", lambda _, number: signals.append(number))
    monitor = a_monitor(tmp_path, deadline=time.time())

    def build() -> None:
        with monitor.stop_when_spent():
            until = time.monotonic() + 20
            while not signals:
                assert time.monotonic() < until
            raise KeyboardInterrupt

    with pytest.raises(BudgetSpent, match="stopped before it was finished"):
        build()
    assert monitor.terminated


def test_a_link_in_the_place_of_the_file_does_not_keep_a_build_going(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    signals: list[int] = []
    monkeypatch.setattr(messages, "SHORTEST", 0.01)
    monkeypatch.setattr(os, "kill", lambda _, number: signals.append(number))
    monitor = a_monitor(tmp_path, action_limit=1)
    with monitor.stop_when_spent():
        monitor.stop.symlink_to(tmp_path / "elsewhere")
        act(monitor, 1)
        until = time.monotonic() + 20
        while not signals:
            assert time.monotonic() < until
    assert not (tmp_path / "elsewhere").exists()


def test_without_a_budget_nothing_is_watched(tmp_path: Path) -> None:
    monitor = a_monitor(tmp_path)
    with monitor.stop_when_spent():
        assert monitor._thread is None
