"""The session of an executor: everything that the threads which execute the commands of one fleet run share."""

from __future__ import annotations

import contextlib
import logging
import queue
import shlex
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln import process_runner
from kiln.fleet.executor_protocol import LogLine, ReclaimNotice
from kiln.fleet.playbook_runner import PlaybookRunner, PlaybookSite, ssh_config_file

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Sequence

    from kiln.fleet.executor_protocol import Event, KeepPackages
    from kiln.model.build_results import PackageReport

LOGGER = logging.getLogger(__name__)

REMOVALS = 8  # playbooks at a time that remove workers, of about 100 MB each
SSH_SECONDS = 60.0  # for one command on a worker
NO_CONNECTION = frozenset({255, process_runner.TIMED_OUT})  # exit codes of ssh itself, not of the command on the worker


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

    events: queue.Queue[Event] = field(default_factory=queue.Queue)
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

    def task_reporter(self, *workers: str) -> Callable[[str], None]:
        """Return a function that reports a playbook's task as a step of the workers' configs."""

        def report_task(task: str) -> None:
            for worker in workers:
                if worker in self.configs:
                    self.report_step(self.configs[worker], task)

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

    def send_files_to_worker(self, worker: str, paths: Sequence[str], target: str) -> process_runner.ProcessResult:
        """Copy files to a folder of the builds' user on a worker, with their paths after ``/./``."""
        options = ("--relative", "--partial", "--timeout=60")
        return self.rsync(worker, *options, "--", *paths, f"{worker}:{target}/")

    def rsync(self, worker: str, *words: str, seconds: float | None = None) -> process_runner.ProcessResult:
        """Copy files from or to a worker as the builds' user, without links; ``words`` end with sources and target."""
        shell = f"--rsh=ssh -F {shlex.quote(str(ssh_config_file(self.site.folder, worker)))}"
        return process_runner.capture(
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
    ) -> process_runner.ProcessResult:
        """Run a command on a worker, which reads ``stdin``, with the ssh settings in the run's folder."""
        return process_runner.capture(
            ("ssh", "-F", str(ssh_config_file(self.site.folder, worker)), *options, worker, *filter(None, (words,))),
            env=self.site.marked_environment,
            timeout=seconds,
            secrets=self.site.secrets,
            stdin=stdin,
        )
