"""Run the playbooks of one fleet run, and end the processes that a killed run left behind."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln.base import files, process_table, serialization
from kiln.base.serialization import read_json_object
from kiln.base.system.machine import MachineResources

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path


MARK = "KILN_FLEET_RUN"  # in the environment of all processes that a run starts on this computer: the run's folder
GRACE = 5.0  # seconds between SIGTERM and SIGKILL


def find_processes_of_run(folder: Path) -> tuple[int, ...]:
    """Return the processes that belong to a run, without this one."""
    mark = f"{MARK}={folder}".encode()
    return tuple(
        pid
        for pid in process_table.all_pids()
        if pid != os.getpid() and mark in process_table.environment_of_process(pid)
    )


def end_processes_of_run(folder: Path) -> tuple[int, ...]:
    """End all processes of a run, by SIGTERM and then SIGKILL; return those that there were.

    Only for the holder of the run's lock: any other process with its mark has lost its parent.
    """
    first = find_processes_of_run(folder)
    process_table.send_signal(signal.SIGTERM, first)
    until = time.monotonic() + GRACE
    while (rest := find_processes_of_run(folder)) and time.monotonic() < until:
        time.sleep(0.05)
    process_table.send_signal(signal.SIGKILL, rest)
    return first


PROCESS = 130e6  # bytes of memory of a playbook's processes
FEWEST, MOST = 2, 32  # playbooks of workers at a time
LITTLE = 16 << 20  # bytes of free disk space below which a playbook may fail for lack of space


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookSite:
    """The files and settings of a run's playbooks: ``folder`` is the run's, ``python`` the fleet environment's.

    Every playbook gets ``variables`` and the files of variables in ``variable_files``; ``environment`` is that of its
    process, of which ``secrets`` are masked in all output. ``options`` are those of ``kiln build`` on the workers;
    builds are polled every ``poll`` seconds. ``job_secrets`` are secret variables of every build.
    """

    folder: Path
    playbooks: Path
    python: Path
    variables: Mapping[str, Any]
    environment: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False, default=())
    options: tuple[str, ...] = ()
    job_secrets: Mapping[str, str] = field(repr=False, default_factory=dict)
    variable_files: tuple[Path, ...] = ()
    poll: float = 5.0

    @property
    def disk_reserve_file(self) -> Path:
        """A file that reserves disk space for the tear-down."""
        return self.folder / "reserve"

    @property
    def marked_environment(self) -> dict[str, str]:
        """The environment of the processes that are started, with the run's mark."""
        return {**self.environment, MARK: str(self.folder)}


def ssh_config_file(run_folder: Path, worker: str) -> Path:
    """Return the file with the ssh settings for a worker, which the playbook that provisions it writes."""
    return run_folder / "ssh" / f"{worker}.config"


def recorded_machine(run_folder: Path, worker: str) -> dict[str, Any]:
    """Return the id, the addresses and other facts of a worker, which the playbook that provisions it writes."""
    inventory = read_json_object(run_folder / "inventory" / f"{worker}.json")
    machine: dict[str, Any] = inventory["kiln_machines"]["hosts"][worker]["kiln_machine"]
    return machine


NOT_ENDED = "the playbook did not end"


@dataclass(frozen=True, slots=True, kw_only=True)
class PlaybookResult:
    """The result of a playbook: ``reasons`` say for each host why it failed there.

    ``answer`` has the statistics that the playbook has set (``set_stats``), None when it has set none; ``unreachable``
    are the hosts that could not be reached.
    """

    ok: bool
    reasons: Mapping[str, str]
    answer: Mapping[str, Any] | None = None
    unreachable: frozenset[str] = frozenset()

    def failure_reason(self, host: str) -> str:
        """Return why the playbook failed for a host, or for any."""
        return self.reasons.get(host) or "; ".join(self.reasons.values()) or NOT_ENDED


def is_removal_confirmed(result: PlaybookResult) -> bool:
    """Return whether a playbook that removes workers has listed them afterwards, and the provider had none."""
    return result.ok and result.answer is not None and not result.answer["left"]


def removal_failure_reason(result: PlaybookResult) -> str:
    """Return why something remains, or may remain."""
    if result.ok and result.answer is None:
        return "the playbook did not list what the provider has"
    return result.failure_reason("localhost")


def playbook_slots_for_memory(memory: float) -> int:
    """Return how many playbooks of single workers may run at a time with so many bytes of memory."""
    return max(FEWEST, min(MOST, int(memory / 2 / PROCESS)))


class PlaybookEvents:
    """The events of a playbook's process: why it failed for which host, and how it ended."""

    def __init__(self, *, on_hello: Callable[[int], None], on_task: Callable[[str], None]) -> None:
        self._on_hello = on_hello
        self._on_task = on_task
        self.reasons: dict[str, str] = {}
        self.unreachable: set[str] = set()
        self.ends: list[dict[str, Any]] = []

    @property
    def succeeded(self) -> bool:
        """True when ansible-runner reports success; it has no ``rc`` for one that was killed."""
        return bool(self.ends) and (self.ends[-1]["status"], self.ends[-1]["rc"]) == ("successful", 0)

    def handle_event_line(self, line: str) -> None:
        """Handle a line of the process."""
        event = serialization.decode(line) or {}
        match event.get("kind"):
            case "hello":
                self._on_hello(int(event["pid"]))
            case "task":
                self._on_task(event["name"])
            case "end":
                self.ends.append(event)
            case "failed" | "unreachable" as kind:
                # Later failures follow from the first.
                self.reasons.setdefault(event["host"], f"{event['task']}: {event['reason']}")
                self.unreachable.update({event["host"]} if kind == "unreachable" else ())


class PlaybookRunner:
    """Runs the playbooks of one site, several at a time, and can stop them all.

    As many playbooks of single workers run at a time as take half of the memory here. Those of the provider do not wait
    for a slot: they are few, and what they end costs money.
    """

    def __init__(self, site: PlaybookSite) -> None:
        self.site = site
        self._slots = threading.Semaphore(playbook_slots_for_memory(MachineResources.of_this_machine().memory))
        self._number = itertools.count(1)
        self._stopped = False

    def run_playbook(
        self,
        name: str,
        *,
        worker: str = "",
        on_task: Callable[[str], None] = lambda _: None,
        last: bool = False,
        variables: Mapping[str, Any] | None = None,
        seconds: float | None = None,
    ) -> PlaybookResult:
        """Run a playbook to its end, for some seconds at most; once all are stopped, only the ``last`` one.

        Raises:
            DiskFull: when it failed, and this computer's disk is full.
        """
        from kiln.base import process as base_process

        folder = self.site.folder / "runner" / f"{next(self._number):04d}-{name.removesuffix('.yml')}-{os.getpid()}"
        answer = folder.with_suffix(".json")  # not in the folder, which the playbook's own process removes
        on_hello = (lambda _: None) if last else self._end_if_stopped
        events = PlaybookEvents(on_hello=on_hello, on_task=on_task)
        with self._slots if worker else contextlib.nullcontext():
            if self._stopped and not last:
                return PlaybookResult(ok=False, reasons={"": "the run is being stopped"})
            spec = self._write_playbook_spec(folder, name, worker, variables or {}, answer)
            program = base_process.Program.PLAYBOOK
            try:
                process = base_process.run(
                    program.script_command(str(spec), python=str(self.site.python), isolated=True),
                    env=self.site.marked_environment,
                    log=self.site.folder / "playbooks.log",
                    secrets=self.site.secrets,
                    on_line=events.handle_event_line,
                    timeout=seconds,
                )
                data = read_json_object(answer) if answer.exists() else None
            finally:
                files.remove(folder)
                files.remove(answer)
        ok = process.ok and events.succeeded
        if not ok and not last:
            files.require_disk_space(self.site.folder, LITTLE, for_what=f"{name}, which has failed,")
        if not ok and not events.reasons:
            has_ended = not (process.ok or events.ends or process.exit_code == base_process.TIMED_OUT)
            events.reasons[""] = (process.tail[-500:] if has_ended else "") or NOT_ENDED
        return PlaybookResult(ok=ok, reasons=events.reasons, answer=data, unreachable=frozenset(events.unreachable))

    def stop_all_playbooks(self) -> None:
        """End all playbooks that run, with their child processes."""
        self._stopped = True
        end_processes_of_run(self.site.folder)

    def _end_if_stopped(self, pid: int) -> None:
        """End a playbook's process that was being started when all were stopped."""
        if self._stopped:
            os.kill(pid, signal.SIGTERM)

    def _write_playbook_spec(
        self, folder: Path, name: str, worker: str, variables: Mapping[str, Any], answer: Path
    ) -> Path:
        """Write the process's instructions, which hold no secret, and return their path."""
        folder.mkdir(parents=True, mode=0o700)
        inventory = self.site.folder / "inventory" / f"{worker}.json"
        files.write_text(folder / "variables.json", json.dumps({**self.site.variables, **variables}))
        spec = {
            "playbook": str(self.site.playbooks / name),
            "inventory": [str(inventory)] if worker else [],
            "limit": [worker] if worker else [],
            "variables": [str(folder / "variables.json"), *map(str, self.site.variable_files)],
            "folder": str(folder),
            "answer": str(answer),
            "parent": os.getpid(),
        }
        files.write_text(folder / "spec.json", json.dumps(spec))
        return folder / "spec.json"
