"""The threads that execute a supervisor's commands: each command has its own, and ends in an event."""

from __future__ import annotations

import queue
import threading
import time
from typing import TYPE_CHECKING, Any, TypeAlias

from kiln import files
from kiln.errors import DiskFull, KilnError
from kiln.fleet.executor_protocol import (
    CollectFailed,
    CollectResults,
    CommandFailed,
    ControllerDiskFull,
    ProbeWorkers,
    ProvisionFailed,
    ProvisionWorkers,
    TearDownFailed,
    TearDownRun,
    TerminateWorker,
    WorkersProbed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kiln.fleet.executor_protocol import Command, Event
    from kiln.fleet.executor_shared_state import EventSession

    # Executes a command of one kind; an event that it returns is the answer, others it reports itself.
    Handler: TypeAlias = Callable[[Any, Any], Event | None]


class CommandThreads:
    """Executes each command by its handler in its own thread; see `kiln.fleet.executor_protocol.WorkerExecutor`.

    ``folder`` is the run's, on the disk that a command may find full.
    """

    def __init__(self, session: EventSession, folder: Path, handlers: Mapping[type, Handler]) -> None:
        self._session = session
        self._folder = folder
        self.handlers = {**handlers}
        self._latest = self._shift = 0.0

    def now(self) -> float:
        """Return the time in seconds since the epoch; it goes on where this computer's clock is set back.

        Else no lease would be renewed for as long, and all workers would shut down.
        """
        moment = time.time() + self._shift
        self._shift += max(0.0, self._latest - moment)
        self._latest = max(self._latest, moment)
        return self._latest

    def next_event(self, until: float) -> Event | None:
        """Return the next event, or None when none has arrived by ``until``."""
        try:
            return self._session.events.get(timeout=max(0.0, until - self.now()))
        except queue.Empty:
            return None

    def submit(self, command: Command) -> None:
        """Execute a command in its own thread."""
        if isinstance(command, TerminateWorker) and not command.id:
            self._session.abandoned.add(command.worker)
        threading.Thread(target=self._execute_in_thread, args=(command,), daemon=True).start()

    def _execute_in_thread(self, command: Command) -> None:
        """Execute a command; every failure becomes an event, so that no command is lost."""
        try:
            with files.full_disk_as_kiln_error(self._folder):
                self.execute_command_now(command)
        except (KilnError, OSError, ValueError, KeyError, TypeError) as error:
            for event in failure_events(command, error):
                self._session.events.put(event)

    def execute_command_now(self, command: Command) -> None:
        """Execute a command in this thread."""
        event = self.handlers[type(command)](self._session, command)
        if event is not None:
            self._session.events.put(event)


def failure_events(command: Command, error: Exception) -> tuple[Event, ...]:
    """Return the events of a command that ended with an error."""
    reason = f"{type(error).__name__}: {error}"
    match command:
        case TearDownRun():
            return (TearDownFailed(reason=reason, unknown=True),)
        case _ if isinstance(error, DiskFull):
            return (ControllerDiskFull(command=command, reason=f"{error.what}: {error.why}"),)
        case ProvisionWorkers():
            return tuple(ProvisionFailed(worker=worker, reason=reason) for worker in command.workers)
        case ProbeWorkers():
            return (WorkersProbed(answers=frozenset(), machines=None),)
        case CollectResults():
            return (CollectFailed(worker=command.worker, config=command.config, reason=reason),)
        case _:
            return (CommandFailed(worker=command.worker, reason=reason),)
