"""Work under limits in this process, as on Windows: too much ends in the same errors, and this process goes on."""

from __future__ import annotations

import resource
import subprocess
import sys
import threading
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import KilnError, UnsafeTemplate
from kiln.base.limits import errors, in_process, run_bounded
from kiln.base.limits.errors import record_place
from kiln.base.position import Place

if TYPE_CHECKING:
    from collections.abc import Callable

HERE = Place(file="recipe/meta.yaml", line=7)


def noted(work: Callable[[], object]) -> Callable[[], object]:
    def run() -> object:
        record_place(HERE.file, HERE.line)
        return work()

    return run


def endless() -> None:
    while True:
        pass


def stubborn() -> None:
    while True:
        try:
            endless()
        except Exception:  # noqa: BLE001 - as templates' own machinery does
            continue


def deepen() -> None:
    deepen()


def test_the_result_and_ordinary_errors_come_through() -> None:
    assert in_process.run_bounded(lambda: (1, run_bounded(lambda: 2))) == (1, 2)
    with pytest.raises(ZeroDivisionError):
        in_process.run_bounded(lambda: 1 // 0)


@pytest.mark.parametrize("work", [endless, stubborn])
def test_work_without_end_is_ended_and_placed(work: Callable[[], object], monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "SECONDS", 0.1)
    with pytest.raises(UnsafeTemplate) as caught:
        in_process.run_bounded(noted(work))
    assert (caught.value.at, caught.value.why) == (HERE, "it takes more than 0.1 s of processor time")


def test_work_that_goes_too_deep_is_ended_and_placed() -> None:
    with pytest.raises(UnsafeTemplate, match="it is nested too deeply") as caught:
        in_process.run_bounded(noted(deepen))
    assert caught.value.at == HERE


def test_work_that_fills_the_memory_is_ended_and_the_limit_is_gone_after_it() -> None:
    before = resource.getrlimit(resource.RLIMIT_DATA)
    with pytest.raises(UnsafeTemplate, match="more than 320 MB"):
        in_process.run_bounded(noted(lambda: bytes(10**9)))
    assert resource.getrlimit(resource.RLIMIT_DATA) == before
    assert len(bytes(10**9)) == 10**9


def test_the_next_work_has_its_own_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "SECONDS", 0.1)
    for _ in range(3):
        with pytest.raises(KilnError):
            in_process.run_bounded(endless)
        assert in_process.run_bounded(lambda: sum(range(1000))) == 499500


def test_threads_take_turns() -> None:
    results: list[int] = []
    threads = [
        threading.Thread(target=lambda number=number: results.append(in_process.run_bounded(lambda: number)))
        for number in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(results) == [0, 1, 2, 3]


@pytest.mark.processes
def test_a_single_step_without_end_ends_the_process_with_the_place() -> None:
    code = """
from kiln.base.limits import in_process
in_process.STALL = 0.3
in_process.run_bounded(lambda: 7 ** (10 ** 9))
"""
    process = subprocess.run((sys.executable, "-c", code), text=True, capture_output=True, check=False)
    assert process.returncode == 1
    assert "Timeout" in process.stderr
    assert "<lambda>" in process.stderr
