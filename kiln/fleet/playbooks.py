"""Playbooks of one fleet run, several at a time: each in a process of its own, and all of them can be stopped."""

from __future__ import annotations

import contextlib
import itertools
import json
import os
import signal
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln import command, files
from kiln.fleet import orphans

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

LITTLE = 16 << 20  # bytes free on the disk, with which a playbook may fail for want of more


@dataclass(frozen=True, slots=True, kw_only=True)
class Site:
    """Where a fleet run has its things: ``folder`` is the run's own, ``python`` that of the fleet's environment.

    ``variables`` are those that every playbook gets, ``environment`` what its process sees, of which ``secrets`` are
    blotted out of all that is written; ``more`` are files of further variables. ``options`` are those of ``kiln build``
    on the machines, whose kind is ``type``; ``poll`` are the seconds between two looks at a build.
    """

    folder: Path
    playbooks: Path
    python: Path
    variables: Mapping[str, Any]
    environment: Mapping[str, str] = field(repr=False)
    secrets: tuple[str, ...] = field(repr=False, default=())
    options: tuple[str, ...] = ()
    more: tuple[Path, ...] = ()
    type: str = ""
    cache_type: str = ""
    spot: bool = False
    poll: float = 5.0

    @property
    def reserve(self) -> Path:
        """A file that holds room on the disk for the tear-down."""
        return self.folder / "reserve"

    @property
    def marked(self) -> dict[str, str]:
        """The environment of what is started, with the run's mark."""
        return {**self.environment, orphans.MARK: str(self.folder)}


@dataclass(frozen=True, slots=True, kw_only=True)
class Played:
    """How a playbook ended: ``reasons`` say for each host why it failed there."""

    ok: bool
    reasons: Mapping[str, str]

    def reason(self, host: str) -> str:
        """Return why it failed for a host, or at all."""
        return self.reasons.get(host) or "; ".join(self.reasons.values()) or "the playbook did not end"


class Playbooks:
    """Runs playbooks of one site, several at a time, and can stop them all."""

    def __init__(self, site: Site) -> None:
        self.site = site
        self._running: dict[int, int] = {}
        self._number = itertools.count(1)
        self._lock = threading.Lock()
        self._stopped = False

    def play(
        self,
        name: str,
        *,
        machine: str = "",
        tags: Sequence[str] = (),
        on_task: Callable[[str], None] = lambda _: None,
        last: bool = False,
        variables: Mapping[str, Any] | None = None,
    ) -> Played:
        """Run a playbook to its end; one that is not the ``last`` is refused or ended once all are stopped.

        Raises:
            DiskFull: when it failed, and there is no room on this computer's disk.
        """
        number = next(self._number)
        folder = self.site.folder / "runner" / f"{number:04d}-{name.removesuffix('.yml')}-{os.getpid()}"
        spec = self._spec(folder, name, machine, tags, variables or {})
        heard: dict[str, str] = {}

        def hear(line: str) -> None:
            event = told(line)
            if event.get("kind") == "hello" and not last:
                self._began(number, int(event["pid"]))
            elif event.get("kind") == "task":
                on_task(event["name"])
            elif event.get("kind") in {"failed", "unreachable"}:
                # What follows comes of the first.
                heard.setdefault(event["host"], f"{event['task']}: {event['reason']}")

        if self._stopped and not last:
            return Played(ok=False, reasons={"": "the run is being stopped"})
        words = (self.site.python, "-I", "-m", "kiln.fleet.playbook", spec)
        try:
            ended = command.run(
                words,
                env=self.site.marked,
                log=self.site.folder / "playbooks.log",
                secrets=self.site.secrets,
                on_line=hear,
            )
        finally:
            with self._lock:
                self._running.pop(number, None)
            files.remove(folder)
        if not ended.ok and not last:
            files.require_room(self.site.folder, LITTLE, for_what=f"{name}, which has failed,")
        if not ended.ok and not heard:
            heard[""] = ended.tail[-500:]
        return Played(ok=ended.ok, reasons=heard)

    def stop(self) -> None:
        """End all playbooks that run, with what they started."""
        with self._lock:
            self._stopped = True
            for pid in self._running.values():
                with contextlib.suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGTERM)
        orphans.end(self.site.folder)

    def _began(self, number: int, pid: int) -> None:
        with self._lock:
            self._running[number] = pid
            if self._stopped:
                os.kill(pid, signal.SIGTERM)

    def _spec(self, folder: Path, name: str, machine: str, tags: Sequence[str], variables: Mapping[str, Any]) -> Path:
        """Write down what the process is to run; it holds no secret."""
        folder.mkdir(parents=True, mode=0o700)
        inventory = self.site.folder / "inventory" / f"{machine}.json"
        files.write_text(folder / "variables.json", json.dumps({**self.site.variables, **variables}))
        spec = {
            "playbook": str(self.site.playbooks / name),
            "inventory": [str(inventory)] if machine else [],
            "limit": [machine] if machine else [],
            "tags": list(tags),
            "variables": [str(folder / "variables.json"), *map(str, self.site.more)],
            "folder": str(folder),
            "parent": os.getpid(),
        }
        files.write_text(folder / "spec.json", json.dumps(spec))
        return folder / "spec.json"


def told(line: str) -> dict[str, Any]:
    """Return the JSON object that a line is; nothing for any other line."""
    try:
        told = json.loads(line)
    except ValueError:
        return {}
    return told if isinstance(told, dict) else {}
