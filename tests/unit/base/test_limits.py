"""Work that is too much ends in an own error, whatever the step is that it hangs in, and the process itself goes on."""

from __future__ import annotations

import os
import resource
import select
import signal
import threading
import time
from typing import TYPE_CHECKING

import pytest

from kiln.base import limits
from kiln.base.errors import KilnError, RecipeFault, UnsafeTemplate
from kiln.base.limits import errors
from kiln.base.position import Place

if TYPE_CHECKING:
    from collections.abc import Callable

pytestmark = [pytest.mark.processes, pytest.mark.usefixtures("limited_process")]

HERE = Place(file="recipe/meta.yaml", line=7)


def noted(work: Callable[[], object]) -> Callable[[], object]:
    """The work, at a place that it has reported."""

    def run() -> object:
        errors.record_place(HERE.file, HERE.line)
        return work()

    return run


def endless() -> None:
    while True:
        pass


def grow() -> None:
    held: list[str] = []
    while True:
        held.append("x" * 1_000_000 + str(len(held)))


def test_the_result_is_what_the_work_returns() -> None:
    assert limits.run_bounded(lambda: {"place": HERE, "items": (1, None)}) == {"place": HERE, "items": (1, None)}


def test_inside_a_bounded_process_no_second_one_starts() -> None:
    inner, outer = limits.run_bounded(lambda: (os.getpid(), limits.run_bounded(os.getpid)))
    assert inner == outer != os.getpid()


def test_an_own_error_comes_back_whole() -> None:
    fault = RecipeFault("bad", at=HERE, why="so", hint="that", others=[RecipeFault("worse")])

    def fail() -> None:
        raise fault

    with pytest.raises(RecipeFault) as caught:
        limits.run_bounded(fail)
    assert str(caught.value) == str(fault)


def test_a_fault_of_our_own_comes_back_with_where_it_happened() -> None:
    with pytest.raises(ZeroDivisionError) as caught:
        limits.run_bounded(lambda: 1 // 0)
    assert "test_limits.py" in str(caught.value.__cause__)


def deepen() -> None:
    deepen()


@pytest.mark.parametrize(
    ("work", "seconds", "why"),
    [
        pytest.param(endless, 0.1, "it takes more than 0.1 s of processor time", id="many steps"),
        pytest.param(lambda: 7 ** (10**9), 0.1, "it takes more than 0.1 s of processor time", id="a single step"),
        pytest.param(deepen, errors.SECONDS, "it is nested too deeply", id="too deep"),
        pytest.param(grow, errors.SECONDS, "it takes more than 320 MB of memory", id="memory by and by"),
        pytest.param(lambda: "x" * 10**10, errors.SECONDS, "it takes more than 320 MB of memory", id="memory at once"),
    ],
)
def test_work_that_is_too_much_is_ended_and_placed(
    work: Callable[[], object], seconds: float, why: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(errors, "SECONDS", seconds)
    with pytest.raises(UnsafeTemplate) as caught:
        limits.run_bounded(noted(work))
    assert (caught.value.at, caught.value.why) == (HERE, why)


def test_a_result_counts_as_large_as_it_is_written_out() -> None:
    long = "x" * 1_000_000
    with pytest.raises(UnsafeTemplate):
        limits.run_bounded(lambda: [long] * 100)


def test_any_number_of_frozensets_comes_back() -> None:
    result = [[[frozenset([number, frozenset(["a"])]), {number}]] for number in range(200)]
    assert limits.run_bounded(lambda: result) == result
    assert all(type(entry[0][0]) is frozenset for entry in limits.run_bounded(lambda: result))


def test_a_process_that_is_killed_is_an_own_error() -> None:
    with pytest.raises(UnsafeTemplate) as caught:
        limits.run_bounded(noted(lambda: os.kill(os.getpid(), signal.SIGKILL)))
    assert caught.value.at == HERE
    assert "status -9" in caught.value.why


def test_an_interrupt_ends_the_work(monkeypatch: pytest.MonkeyPatch) -> None:
    children: list[int] = []
    fork = limits._fork

    def noticed() -> int:
        children.append(child := fork())
        return child

    monkeypatch.setattr(select, "select", interrupted)
    monkeypatch.setattr(limits, "_fork", noticed)
    with pytest.raises(KeyboardInterrupt):
        limits.run_bounded(endless)
    with pytest.raises(ChildProcessError):  # it has ended, and was waited for
        os.waitpid(children[0], os.WNOHANG)


def test_a_signal_ends_the_work_without_what_the_parent_does_at_its_end() -> None:
    ends: list[int] = []
    before = signal.signal(signal.SIGTERM, lambda number, _: ends.append(number))
    try:
        with pytest.raises(UnsafeTemplate) as caught:
            limits.run_bounded(lambda: os.kill(os.getpid(), signal.SIGTERM))
        os.kill(os.getpid(), signal.SIGTERM)  # the parent listens as before
    finally:
        signal.signal(signal.SIGTERM, before)
    assert "status -15" in caught.value.why
    assert ends == [signal.SIGTERM]


def interrupted(*_: object) -> None:
    raise KeyboardInterrupt


def test_what_stands_still_is_ended(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(limits, "_STALL", 0.1)
    with pytest.raises(UnsafeTemplate):
        limits.run_bounded(lambda: time.sleep(1e6))


def test_work_is_bounded_in_a_thread_and_with_other_threads() -> None:
    over = threading.Event()
    beside = threading.Thread(target=over.wait)
    beside.start()
    results: list[int] = []
    within = threading.Thread(target=lambda: results.append(limits.run_bounded(lambda: 1)))
    within.start()
    within.join()
    over.set()
    beside.join()
    assert results == [1]


def test_the_limits_are_those_of_the_work_alone() -> None:
    before = [resource.getrlimit(what) for what in (resource.RLIMIT_CPU, resource.RLIMIT_DATA)]
    limits.run_bounded(lambda: None)
    assert [resource.getrlimit(what) for what in (resource.RLIMIT_CPU, resource.RLIMIT_DATA)] == before
    assert signal.getitimer(signal.ITIMER_PROF) == (0, 0)


def test_no_handler_of_ordinary_errors_catches_the_end_of_time(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "SECONDS", 0.1)

    def stubborn() -> None:
        while True:
            try:
                endless()
            except Exception:  # noqa: BLE001 - as templates' own machinery does
                continue

    with pytest.raises(KilnError, match="rendering takes more work"):
        limits.run_bounded(stubborn)
