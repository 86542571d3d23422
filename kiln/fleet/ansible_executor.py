"""The executor of a supervisor's commands on real machines: playbooks by ansible-runner, builds followed over ssh.

Each command is executed in its own thread and ends in an event. The processes started here carry the run's mark in
their environment, and secrets only there.
"""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import DiskFull, KilnError
from kiln.fleet import collect, provider, worker_commands
from kiln.fleet.executor_session import ExecutorSession
from kiln.fleet.messages import (
    Collect,
    CollectFailed,
    CommandFailed,
    ControllerDiskFull,
    FollowBuild,
    Prepare,
    Probe,
    Probed,
    Provision,
    ProvisionFailed,
    QueryJobs,
    Renew,
    StartBuild,
    TearDown,
    TearDownFailed,
    Terminate,
    WatchCache,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Sequence

    from kiln.fleet.messages import Command, Event
    from kiln.fleet.playbook_runner import PlaybookSite
    from kiln.model.build_results import PackageReport

RESERVE = 8 << 20  # bytes kept for the tear-down, which writes into the run's folder, too


class AnsibleExecutor:
    """Executes commands on real machines; see `kiln.fleet.messages.WorkerExecutor`."""

    def __init__(
        self, site: PlaybookSite, *, keep: Callable[[str, Sequence[PackageReport]], tuple[PackageReport, ...]]
    ) -> None:
        """``keep`` moves the collected packages of a config to the folder of finished packages."""
        self.keep = keep
        self.session = ExecutorSession.of(site)

    def now(self) -> float:
        """Return the time in seconds since the epoch."""
        return time.time()

    def next_event(self, until: float) -> Event | None:
        """Return the next event, or None when none has arrived by ``until``."""
        try:
            return self.session.events.get(timeout=max(0.0, until - self.now()))
        except queue.Empty:
            return None

    def submit(self, command: Command) -> None:
        """Execute a command in its own thread."""
        if isinstance(command, Terminate):
            self.session.abandoned.add(command.worker)
        threading.Thread(target=self._execute, args=(command,), daemon=True).start()

    def _execute(self, command: Command) -> None:
        """Execute a command; every failure becomes an event, so that no command is lost."""
        try:
            with files.full_disk_as_error(self.session.site.folder):
                self._dispatch(command)
        except (KilnError, OSError, ValueError, KeyError, TypeError) as error:
            for event in failures(command, error):
                self.session.events.put(event)

    def _dispatch(self, command: Command) -> None:  # noqa: C901, PLR0912 - one line for each command
        session = self.session
        match command:
            case Provision():
                provider.provision(session, command.workers)
            case Prepare():
                worker_commands.prepare(session, command)
            case WatchCache():
                worker_commands.watch_cache(session, command.worker)
            case QueryJobs():
                worker_commands.query_jobs(session, command)
            case StartBuild():
                worker_commands.start(session, command)
            case FollowBuild():
                worker_commands.follow(session, command)
            case Collect():
                session.events.put(collect.collect(session, command, keep=self.keep))
            case Renew():
                worker_commands.renew(session, command)
            case Probe():
                provider.probe(session, command.workers)
            case Terminate():
                provider.terminate(session, command.worker)
            case TearDown():
                provider.tear_down(session)


def failures(command: Command, error: Exception) -> tuple[Event, ...]:
    """Return the events of a command that ended with an error."""
    reason = f"{type(error).__name__}: {error}"
    match command:
        case TearDown():
            return (TearDownFailed(reason=reason, unknown=True),)
        case _ if isinstance(error, DiskFull):
            return (ControllerDiskFull(command=command, reason=f"{error.what}: {error.why}"),)
        case Provision():
            return tuple(ProvisionFailed(worker=worker, reason=reason) for worker in command.workers)
        case Probe():
            return (Probed(answers=frozenset(), listed=None),)
        case Collect():
            return (CollectFailed(worker=command.worker, config=command.config, reason=reason),)
        case _:
            return (CommandFailed(worker=command.worker, reason=reason),)
