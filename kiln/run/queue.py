"""The queue from which a free worker takes its next config: one rule for the plan and for the run."""

from __future__ import annotations

import copy
import dataclasses
import heapq
import math
from bisect import insort
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet

    from kiln.state.results import JobEstimate


# The parts of a queue whose values change; the values of the others are replaced.
CHANGING_VALUES = frozenset({"_waiting", "_held", "_cold_groups", "_compiling", "_on_disk", "_reach"})
WORTH = 1.1  # a compile is repeated only if that ends its group's builds a tenth of a compile sooner


class BuildQueue:
    """The configs that wait, and the location of each group's compile.

    With ``cache`` a finished compile is in reach of every worker. With ``wait_for_cold`` warm builds then wait for a
    cold build of their group that is running; otherwise they compile in full. With ``always_share`` the configs of a
    group share a compile even if the estimates show no saving. With ``dependent``, which implies a cache, warm builds
    are begun at once and wait elsewhere for the cold one: as jobs of a scheduler that depend on it. A config of a
    machine type is given to workers of that type only, and shares a compile with configs of that type only.
    """

    def __init__(
        self,
        jobs: Iterable[JobEstimate],
        *,
        cache: bool = False,
        wait_for_cold: bool = True,
        always_share: bool = False,
        dependent: bool = False,
    ) -> None:
        self._cache = cache or dependent
        self._dependent = dependent
        self._always_share = always_share
        self._wait_for_cold = wait_for_cold
        self._waiting: dict[str, list[JobEstimate]] = {}
        self._held: dict[str, list[JobEstimate]] = {}  # not given out, but counted
        # Machine type -> heap of the groups without a compile, the longest first.
        self._cold_groups: dict[str, list[tuple[float, str, str]]] = {}
        self._compiling: dict[str, set[str]] = {}  # group -> workers that compile it now
        self._on_disk: dict[str, set[str]] = {}  # group -> workers that have it
        self._reach: dict[str, set[str]] = {}  # worker -> groups on its disk
        self._cached: set[str] = set()
        self._group_types: dict[str, str] = {}  # group -> the machine type that builds it, empty for any
        self._worker_types: dict[str, str] = {}
        self._busy: dict[str, tuple[JobEstimate, float]] = {}  # worker -> its job, and the job's expected end
        # Machine type -> the group of its workers that is built last, and when; until the queue changes.
        self._last_ends: dict[str, tuple[float, str]] = {}
        # Machine type and groups in reach of a worker that has to wait -> since when; until the queue changes.
        self._refused: dict[tuple[str, frozenset[str]], float] = {}
        self._count = 0
        for job in jobs:
            self.add(job)

    def __len__(self) -> int:
        return self._count

    def __iter__(self) -> Iterator[JobEstimate]:
        return (job for groups in (self._waiting, self._held) for jobs in groups.values() for job in jobs)

    def set_worker_machine_type(self, worker: str, machine_type: str) -> None:
        """Record the machine type of a worker, which gets the configs of that type, and those of none."""
        self._worker_types[worker] = machine_type

    def worker_machine_type(self, worker: str) -> str:
        """Return the machine type of a worker, empty if it was not recorded."""
        return self._worker_types.get(worker, "")

    def has_work(self, machine_type: str) -> bool:
        """Return whether a config waits that a worker of a machine type may build, now or later."""
        groups = (*self._waiting.items(), *self._held.items())
        return any(jobs and self._group_types[group] in {"", machine_type} for group, jobs in groups)

    def add(self, job: JobEstimate) -> None:
        """Add a config, perhaps again."""
        self._forget_choices()
        group = self._compile_group(job)
        self._count += 1
        if group in self._held:
            self._held[group].append(job)
            return
        insort(self._waiting.setdefault(group, []), job, key=lambda other: (-other.cold, other.config))
        self._queue_cold_group(group)

    def revise_estimates(self, estimates: Mapping[str, JobEstimate]) -> None:
        """Take other durations for the configs that wait or are built; a group shares its compile as before."""
        self._forget_choices()

        def revised(job: JobEstimate) -> JobEstimate:
            new = estimates.get(job.config, job)
            return dataclasses.replace(job, cold=new.cold, warm=new.warm, source=new.source)

        for groups in (self._waiting, self._held):
            for group, jobs in groups.items():
                groups[group] = sorted(map(revised, jobs), key=lambda job: (-job.cold, job.config))
        for worker, (job, end) in self._busy.items():
            before = self.running_build_seconds(worker)
            self._busy[worker] = (revised(job), end)
            self._busy[worker] = (revised(job), end - before + self.running_build_seconds(worker))

    def hold_group(self, job: JobEstimate) -> None:
        """Hold back the configs that share a job's compile, unless it is stored or runs.

        They wait for `release_group` or `drop_held_group`.
        """
        self._forget_choices()
        group = self._compile_group(job)
        if self._is_compile_running_or_stored(group):
            return
        self._held.setdefault(group, []).extend(self._waiting.pop(group, []))

    def is_group_held(self, job: JobEstimate) -> bool:
        """Return whether the configs that share a job's compile are held back."""
        return self._compile_group(job) in self._held

    def release_group(self, job: JobEstimate) -> None:
        """Give out again the configs that share a job's compile."""
        for other in self.drop_held_group(job):
            self.add(other)

    def drop_held_group(self, job: JobEstimate) -> list[JobEstimate]:
        """Remove and return the configs that were held back because they share a job's compile."""
        self._forget_choices()
        jobs = self._held.pop(self._compile_group(job), [])
        self._count -= len(jobs)
        return jobs

    def next(self, worker: str, now: float) -> JobEstimate | None:
        """Return the config that a free worker should build, None when it should wait; ``now`` is in seconds."""
        if not self._count:
            return None
        kind = (self.worker_machine_type(worker), frozenset(self._reach.get(worker, ())))
        if now >= self._refused.get(kind, math.inf):
            return None
        group = (
            self._next_cold_group(worker) or self._next_warm_group(worker) or self._group_worth_recompiling(worker, now)
        )
        if group is None:
            self._refused[kind] = now
        return None if group is None else self._waiting[group][0]

    def _forget_choices(self) -> None:
        self._last_ends.clear()
        self._refused.clear()

    def begin_next_build(self, worker: str, now: float) -> JobEstimate | None:
        """Assign the config that a free worker should build, from ``now`` on; None when the worker should wait."""
        job = self.next(worker, now)
        if job is not None:
            self.begin_build(worker, job, now)
        return job

    def needs_full_compile(self, worker: str, job: JobEstimate) -> bool:
        """Return whether a config has to be compiled in full on a worker."""
        group = self._compile_group(job)
        is_awaited = self._dependent and bool(self._compiling.get(group))
        return not is_awaited and group not in self._cached and worker not in self._on_disk.get(group, ())

    def awaited_config(self, worker: str) -> str:
        """Return the config whose build the one on a worker depends on; empty without one."""
        others = self._compiling.get(self._compile_group(self._busy[worker][0]), set()) - {worker}
        return self._busy[min(others)][0].config if self._dependent and others else ""

    def is_running_build_cold(self, worker: str) -> bool:
        """Return whether the build that runs on a worker is cold."""
        return worker in self._compiling.get(self._compile_group(self._busy[worker][0]), ())

    def running_build_seconds(self, worker: str) -> float:
        """Return the expected duration of the build that runs on a worker."""
        job = self._busy[worker][0]
        return job.cold if self.is_running_build_cold(worker) else job.warm

    def expected_start(self, worker: str) -> float:
        """Return the expected start of a worker's build: the end of the one that it depends on, if there is one."""
        return self.expected_end(worker) - self.running_build_seconds(worker)

    def expected_end(self, worker: str) -> float:
        """Return the expected end of the build that runs on a worker, or will."""
        return self._busy[worker][1]

    def copy(self) -> BuildQueue:
        """Return a copy, for a simulation of what follows."""
        duplicate = copy.copy(self)
        for name, value in vars(self).items():
            if name in CHANGING_VALUES:
                setattr(duplicate, name, {key: items.copy() for key, items in value.items()})
            elif isinstance(value, (dict, set)):
                setattr(duplicate, name, value.copy())
        return duplicate

    def expected_job_seconds(self, worker: str, job: JobEstimate) -> float:
        """Return the expected duration of a config on a worker."""
        return job.cold if self.needs_full_compile(worker, job) else job.warm

    def begin_build(self, worker: str, job: JobEstimate, now: float) -> None:
        """Remove a config from the queue and assign it to a worker, from ``now`` on."""
        self._forget_choices()
        self._waiting[self._compile_group(job)].remove(job)
        self._count -= 1
        self.resume_build(worker, job, now)

    def resume_build(self, worker: str, job: JobEstimate, now: float) -> None:
        """Assign a config to a worker that builds it already."""
        self._forget_choices()
        group, is_cold = self._compile_group(job), self.needs_full_compile(worker, job)
        ends = [self._busy[other][1] for other in self._compiling.get(group, ()) if other != worker]
        begin = max(now, min(ends)) if self._dependent and ends else now
        self._busy[worker] = (job, begin + (job.cold if is_cold else job.warm))
        if is_cold:
            self._compiling.setdefault(group, set()).add(worker)

    def end_build(self, worker: str, *, ok: bool = True) -> None:
        """End the build of a worker; its compile can be reused when it was ``ok``."""
        self._forget_choices()
        group = self._compile_group(self._busy.pop(worker)[0])
        self._compiling.get(group, set()).discard(worker)
        if ok:
            self._store_compile_on_disk(worker, group)
            if self._cache:
                self._cached.add(group)
        self._queue_cold_group(group)

    def record_compile_on_disk(self, worker: str, group: str) -> None:
        """Record that a worker's disk holds a group's compile."""
        typed = _group_name_on_machine_type(group, self._worker_types.get(worker, ""))
        self._store_compile_on_disk(worker, typed if typed in self._group_types else group)

    def _store_compile_on_disk(self, worker: str, group: str) -> None:
        self._forget_choices()
        self._on_disk.setdefault(group, set()).add(worker)
        self._reach.setdefault(worker, set()).add(group)
        if self._dependent:
            self._cached.add(group)

    def record_cache_loss(self) -> None:
        """Record that the shared cache is lost."""
        self._forget_choices()
        self._cache = False
        self._cached.clear()
        for group in self._waiting:
            self._queue_cold_group(group)

    def remove_worker(self, worker: str) -> None:
        """Record that a worker is gone, with all that was on its disk."""
        self._forget_choices()
        if worker in self._busy:
            self.end_build(worker, ok=False)
        for group in self._reach.pop(worker, set()):
            self._on_disk[group].discard(worker)
            self._queue_cold_group(group)

    def _compile_group(self, job: JobEstimate) -> str:
        """Return the group whose compile a config reuses: the config itself when that saves nothing."""
        group = _group_name_on_machine_type(
            job.group if self._always_share or job.warm < job.cold else job.config, job.type
        )
        self._group_types.setdefault(group, job.type)
        return group

    def _waiting_groups(self, worker: str) -> list[str]:
        """Return the groups that wait, among those that the worker's machine type builds."""
        types = {"", self.worker_machine_type(worker)}
        return [group for group, jobs in self._waiting.items() if jobs and self._group_types[group] in types]

    def _queue_cold_group(self, group: str) -> None:
        """Schedule a cold build of a group, perhaps again, when its compile is neither stored nor running."""
        if self._waiting.get(group) and not self._is_compile_running_or_stored(group):
            first = self._waiting[group][0]
            heap = self._cold_groups.setdefault(self._group_types[group], [])
            heapq.heappush(heap, (-first.cold, first.config, group))

    def _is_compile_running_or_stored(self, group: str) -> bool:
        return bool(self._compiling.get(group) or self._on_disk.get(group)) or group in self._cached

    def _next_cold_group(self, worker: str) -> str | None:
        firsts = []
        for kind in {"", self._worker_types.get(worker, "")}:
            heap = self._cold_groups.get(kind, [])
            while heap and (not self._waiting.get(heap[0][2]) or self._is_compile_running_or_stored(heap[0][2])):
                heapq.heappop(heap)  # it waits no more, or has a compile
            firsts += heap[:1]
        return min(firsts, default=(0.0, "", None))[2]

    def _next_warm_group(self, worker: str) -> str | None:
        own = self._reach.get(worker, ())
        groups = [group for group in self._waiting_groups(worker) if group in own or group in self._cached]
        firsts = {group: self._waiting[group][0] for group in groups}
        return min(groups, key=lambda group: (-firsts[group].warm, firsts[group].config), default=None)

    def _group_worth_recompiling(self, worker: str, now: float) -> str | None:
        """Return the group whose compile should be repeated on a worker rather than waited for."""
        if self._cache:
            waits = self._wait_for_cold and not self._dependent
            others = [] if waits else self._waiting_groups(worker)
            return min(others, key=lambda group: (-len(self._waiting[group]), group), default=None)
        machine_type = self.worker_machine_type(worker)
        if machine_type not in self._last_ends:
            work = [
                (group, self._workers_with_compile(group), len(jobs), jobs[0].warm)
                for group, jobs in self._waiting.items()
                if jobs
            ]
            self._last_ends[machine_type] = max(
                [(self._expected_group_end(group, work), group) for group in self._waiting_groups(worker)],
                default=(0.0, ""),
            )
        end, group = self._last_ends[machine_type]
        return group if group and now + WORTH * self._waiting[group][0].cold < end else None

    def _expected_group_end(self, group: str, work: Sequence[tuple[str, AbstractSet[str], int, float]]) -> float:
        """Return when the workers that have or run a group's compile would have built its waiting configs.

        Before them they may build the configs of other groups that no other worker has. ``work`` is each group that
        waits, with the workers that have its compile, the number of its configs, and the seconds of a warm build.
        """
        holders, busy = self._workers_with_compile(group), self._busy
        shares = max(1, len(holders))
        free = min([busy[worker][1] if worker in busy else 0.0 for worker in holders], default=0.0)
        seconds = sum(
            [
                math.ceil(count / shares) * warm
                for other, others, count, warm in work
                if other == group or (holders and others <= holders)
            ]
        )
        return free + seconds

    def _workers_with_compile(self, group: str) -> AbstractSet[str]:
        compiling, on_disk = self._compiling.get(group), self._on_disk.get(group)
        return compiling | on_disk if compiling and on_disk else compiling or on_disk or frozenset()


def _group_name_on_machine_type(group: str, machine_type: str) -> str:
    return f"{group} on {machine_type}" if machine_type else group
