"""The threads that execute a supervisor's commands, and what they share."""

from __future__ import annotations

import contextlib
import logging
import queue
import shlex
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, TypeAlias

from kiln.base import files, process
from kiln.base.errors import DiskFull, KilnError
from kiln.fleet.ansible.playbooks import PlaybookRunner, PlaybookSite, ssh_config_file
from kiln.fleet.protocol import (
    CollectFailed,
    CollectResults,
    CommandFailed,
    ControllerDiskFull,
    LogLine,
    ProbeWorkers,
    ProvisionFailed,
    ProvisionWorkers,
    ReclaimNotice,
    TearDownFailed,
    TearDownRun,
    TerminateWorker,
    WorkersProbed,
)

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.fleet.protocol import Command, Event, KeepPackages
    from kiln.state.results import PackageReport

    # Executes a command of one kind; an event that it returns is the answer, others it reports itself.
    Handler: TypeAlias = Callable[[Any, Any], Event | None]


STEP = 1.0  # seconds of a wait for an event


class CommandThreads:
    """Executes each command by its handler in its own thread; see `kiln.fleet.protocol.WorkerExecutor`.

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
        """Return the next event, or None when none has arrived by ``until``.

        Wait in steps: a signal that comes just before a wait is handled when that has ended.
        """
        while True:
            left = max(0.0, until - self.now())
            with contextlib.suppress(queue.Empty):
                return self._session.events.get(timeout=min(left, STEP))
            if left <= STEP:
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


LOGGER = logging.getLogger(__name__)

REMOVALS = 8  # playbooks at a time that remove workers, of about 100 MB each
GENERATED = "Validating arguments against arg spec"  # in the names of tasks that Ansible adds to roles
SSH_SECONDS = 60.0  # for one command on a worker
NO_CONNECTION = frozenset({255, process.TIMED_OUT})  # exit codes of ssh itself, not of the command on the worker


def packages_in_place(_config: str, packages: Sequence[PackageReport]) -> tuple[PackageReport, ...]:
    """Return the collected packages of a config, which stay where they are."""
    return tuple(packages)


@dataclass(slots=True, kw_only=True)
class EventSession:
    """The events of an executor, and what its threads share.

    ``abandoned`` are the workers that are being terminated, ``reclaimed`` those of whose notice the supervisor knows,
    ``configs`` the config of each worker. ``stopped`` is set by the tear-down. ``notes`` are those that the user has
    seen. ``keep`` moves the collected packages of a config to the folder of finished packages.
    """

    events: queue.SimpleQueue[Event] = field(default_factory=queue.SimpleQueue)  # which a Ctrl-C leaves unlocked
    abandoned: set[str] = field(default_factory=set)
    configs: dict[str, str] = field(default_factory=dict)
    reclaimed: set[str] = field(default_factory=set)
    stopped: threading.Event = field(default_factory=threading.Event)
    notes: set[str] = field(default_factory=set)
    keep: KeepPackages = packages_in_place

    def must_still_follow(self, worker: str) -> bool:
        """Return whether a worker is still to be followed."""
        return not self.stopped.is_set() and worker not in self.abandoned

    def show_note_once(self, text: str) -> None:
        """Show a note of a playbook to the user, once in a run."""
        if text not in self.notes:
            self.notes.add(text)
            LOGGER.warning("note: %s", text)

    def report_step(self, config: str, step: str) -> None:
        """Report a step that is done for a config."""
        self.events.put(LogLine(config=config, step=step, text=""))

    def report_reclaim(self, worker: str, at: float) -> None:
        """Report, once, that a worker's provider takes it back at a time."""
        if worker not in self.reclaimed:
            self.reclaimed.add(worker)
            self.events.put(ReclaimNotice(worker=worker, at=at))

    def task_reporter(self, what: str, *workers: str) -> Callable[[str], None]:
        """Return a function that reports a playbook's task as a step of their configs, ``prepare r1-2: TASK``.

        A task that Ansible has added itself is none: the one before stays shown.
        """

        def report_task(task: str) -> None:
            for worker in workers:
                if worker in self.configs and GENERATED not in task:
                    self.report_step(self.configs[worker], f"{what} {worker}: {task}")

        return report_task


@dataclass(slots=True, kw_only=True)
class PlaybookSession(EventSession):
    """The state of an executor of playbooks, shared by its threads.

    ``provider_lock`` is held by a playbook that creates workers, and by those that remove some, which are run several
    at a time: a new worker may need the quota, or the machine, of one that is being removed.
    """

    site: PlaybookSite
    playbooks: PlaybookRunner
    provider_lock: threading.Lock = field(default_factory=threading.Lock)
    _removal_lock: threading.Lock = field(default_factory=threading.Lock)
    _removal_slots: threading.Semaphore = field(default_factory=lambda: threading.Semaphore(REMOVALS))
    _removals: int = 0

    @contextlib.contextmanager
    def shared_removal_lock(self) -> Iterator[None]:
        """Hold the provider's lock together with other removals, `REMOVALS` of them at a time."""
        with self._removal_lock:
            if not self._removals:
                self.provider_lock.acquire()
            self._removals += 1
        try:
            with self._removal_slots:
                yield
        finally:
            with self._removal_lock:
                self._removals -= 1
                if not self._removals:
                    self.provider_lock.release()

    @classmethod
    def from_site(cls, site: PlaybookSite, *, keep: KeepPackages = packages_in_place) -> PlaybookSession:
        """Return a new session of a site."""
        return cls(site=site, playbooks=PlaybookRunner(site), keep=keep)

    def send_files_to_worker(self, worker: str, paths: Sequence[str], target: str) -> process.ProcessResult:
        """Copy files to a folder of the builds' user on a worker, with their paths after ``/./``."""
        options = ("--relative", "--partial", "--timeout=60")
        return self.rsync(worker, *options, "--", *paths, f"{worker}:{target}/")

    def rsync(self, worker: str, *words: str, seconds: float | None = None) -> process.ProcessResult:
        """Copy files from or to a worker as the builds' user, without links; ``words`` end with sources and target."""
        shell = f"--rsh=ssh -F {shlex.quote(str(ssh_config_file(self.site.folder, worker)))}"
        return process.capture(
            ("rsync", "--times", "--no-links", "--rsync-path=sudo runuser -u kiln -- rsync", shell, *words),
            env=self.site.marked_environment,
            timeout=seconds,
            secrets=self.site.secrets,
        )

    def ssh(
        self,
        worker: str,
        words: str,
        *,
        seconds: float = SSH_SECONDS,
        options: tuple[str, ...] = (),
        stdin: str | None = None,
    ) -> process.ProcessResult:
        """Run a command on a worker, which reads ``stdin``, with the ssh settings in the run's folder."""
        return process.capture(
            ("ssh", "-F", str(ssh_config_file(self.site.folder, worker)), *options, worker, *filter(None, (words,))),
            env=self.site.marked_environment,
            timeout=seconds,
            secrets=self.site.secrets,
            stdin=stdin,
        )
