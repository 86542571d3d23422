"""Stop a config's build before its budget of time or of actions is spent, with enough time left to pack what it made.

A machine that its provider takes back is a budget, too, which begins with the notice: a file with the time of its end.

A file in the config's folder asks for it: no further step begins, and a running Bazel is interrupted. A build that goes
on regardless is terminated.
"""

from __future__ import annotations

import contextlib
import json
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln import files
from kiln.bazel.disk_caches import cached_action_count
from kiln.console.text import duration
from kiln.errors import BudgetSpent

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

    from kiln.job.job_descriptions import BuildOptions

# Bytes of a cache per second: measured for packing (docs/reference/benchmarks.md), assumed for uploading, as no
# service guarantees a speed.
PACKED, UPLOADED = 50_000_000, 25_000_000
LEAST, SHARE = 120.0, 0.1  # seconds of the reserve that do not depend on the size, at most this share of the budget
LOOK, MEASURE = 0.5, 60.0  # seconds between two checks, and between two measurements of a cache
ACTIONS_LOOK = 0.1
SHORTEST = 10.0  # seconds that Bazel has at least for its end
CONTINUE = "run the same command again; with --handover DIR a job on another machine continues it"


def least_reserve_seconds(budget: float) -> float:
    """Return the seconds that a budget keeps for the end of a build, whatever it made."""
    return min(LEAST, SHARE * budget)


def termination_time_in_notice(text: str) -> float | None:
    """Return the time of a machine's end, in seconds since the epoch, by a notice ``{"at": N}``; None without one."""
    try:
        return float(json.loads(text)["at"])
    except (ValueError, KeyError, TypeError):
        return None


def transferable_bytes(seconds: float) -> int:
    """Return the bytes of a cache that can be packed and uploaded in a time, after Bazel's end."""
    return round(max(0.0, seconds - SHORTEST) / (1 / PACKED + 1 / UPLOADED))


def reserve_seconds(size: int, least: float) -> float:
    """Return the seconds that the end of a build takes: of Bazel, and of packing and uploading ``size`` bytes."""
    return least + size / PACKED + size / UPLOADED


@dataclass(slots=True, kw_only=True)
class BudgetMonitor:
    """Watches the time and the finished actions of a build in a thread, and stops it.

    ``cache`` is the folder of its compile cache, ``stop`` the file that asks it to stop. ``spent`` says why, once it
    was stopped, ``terminated`` that it went on regardless.
    """

    options: BuildOptions
    cache: Path
    stop: Path
    spent: str = ""
    terminated: bool = False
    _over: threading.Event = field(default_factory=threading.Event)
    _thread: threading.Thread | None = None
    _before: int = 0
    _measured: float = 0.0
    _reserve: float = 0.0

    @contextlib.contextmanager
    def stop_when_spent(self) -> Iterator[None]:
        """Stop the block in time, where there is a budget.

        Raises:
            BudgetSpent: when the block had to be terminated.
        """
        files.remove(self.stop)
        if self.options.has_budget:
            self._before = cached_action_count(self.cache)
            self._thread = threading.Thread(target=self._watch_budget, name="budget", daemon=True)
            self._thread.start()
        try:
            try:
                yield
            finally:
                self._over.set()
                if self._thread is not None:
                    self._thread.join()
        except KeyboardInterrupt:
            if not self.terminated:
                raise
            raise BudgetSpent(f"stopped before it was finished: {self.spent}", hint=CONTINUE) from None

    def _watch_budget(self) -> None:
        while not self.spent:
            if self._over.wait(LOOK if self.options.action_limit is None else ACTIONS_LOOK):
                return
            self.spent = self.stop_reason(time.time(), self._before)
        with contextlib.suppress(OSError):  # a script has made a link of that name, and is terminated below
            files.create_empty_file(self.stop)
        if not self._over.wait(max(SHORTEST, self._reserve / 2)):
            self.terminated = True
            os.kill(os.getpid(), signal.SIGTERM)

    def stop_reason(self, now: float, before: int) -> str:
        """Return why the build is to stop now, empty while it may go on; ``before`` is the count of actions then."""
        limit, deadline, notice = self.options.action_limit, self.options.deadline, self.options.notice
        end = None if notice is None else termination_time_in_notice(files.text_or_empty(notice))
        if end is not None:
            return f"the machine is taken back in {duration(max(0.0, end - now))}"
        if limit is not None and (done := cached_action_count(self.cache) - before) >= limit:
            return f"{done} actions of Bazel are finished, and --budget allows {limit}"
        if deadline is None:
            return ""
        self._update_reserve(now)
        left = deadline - now
        if left > self._reserve:
            return ""
        return f"{duration(max(0.0, left))} of --budget are left, which its end and its packing take"

    def _update_reserve(self, now: float) -> None:
        """Estimate the time that the end takes; measuring a large cache takes long itself."""
        if now - self._measured < MEASURE:
            return
        started = time.monotonic()
        self._reserve = reserve_seconds(files.size_on_disk(self.cache), self.options.least_reserve)
        self._measured = now + 10 * (time.monotonic() - started)
