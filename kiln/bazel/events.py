"""Bazel's build events, folded one by one into what is known of a build."""

from __future__ import annotations

import base64
import contextlib
import gzip
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any
from urllib.parse import unquote, urlsplit

from kiln.model.compile import CompileReport

LONGEST = 1 << 16  # bytes of an action's own output that are kept, its end
PROFILE_LIMIT = 1 << 28  # bytes of a profile that are read
KEPT = 40  # lines of Bazel's own complaints

# "[1,234 / 5,678] Compiling a.cc; 12s local ... (8 actions running)", and "[5,678 / 5,678] 2 actions running"
_COUNTS = re.compile(r"^\[([\d,]+) / ([\d,]+)\]\s*(.*)$")
_COMPLAINT = re.compile(r"^(?:ERROR|FATAL|Error|FAILED):")
_PROCESSES = re.compile(r"([\d,]+) ([a-z][^,.]*)")
_COLOURS = re.compile(r"\x1b\[[0-9;]*[A-Za-z]")
# What --sandbox_debug, which Debian's Bazel has on, adds to the output of every action.
_SANDBOX = re.compile(r"^\d+\.\d+: src/main/tools/")


@dataclass(frozen=True, slots=True, kw_only=True)
class Failure:
    """An action that failed: its target, its kind (``CppCompile``), and the end of its own output."""

    label: str
    kind: str
    exit_code: int | None
    text: str

    def __str__(self) -> str:
        code = "" if self.exit_code is None else f" ended with exit code {self.exit_code}"
        return f"{self.kind or 'an action'} of {self.label or 'the build'}{code or ' failed'}"


@dataclass(slots=True, kw_only=True)
class Build:
    """One call of Bazel, as far as its events have come."""

    events: int = 0
    server: int | None = None
    done: int = 0
    total: int | None = None
    current: str = ""
    actions: int = 0
    failures: list[Failure] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    profile: Path | None = None
    exit_name: str | None = None

    def take(self, line: bytes) -> None:
        """Take one event; what is none, or is not as Bazel writes it, is left out."""
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, StopIteration):
            event = json.loads(line)
            kind = next(iter(event["id"]))
            self.events += 1
            if "aborted" in event:
                self._complain(str(event["aborted"].get("description", "")))
            else:
                self._fold(kind, event)

    def report(self) -> CompileReport | None:
        """Return what the actions came from, once Bazel has counted them."""
        if not self.counts:
            return None
        hits = sum(count for name, count in self.counts.items() if "cache hit" in name)
        internal = self.counts.get("internal", 0)
        ran = sum(self.counts.values()) - hits - internal
        work = None if self.profile is None else action_seconds(self.profile)
        return CompileReport(hits=hits, misses=ran, internal=internal, seconds=self.seconds, work=work)

    def _fold(self, kind: str, event: dict[str, Any]) -> None:
        match kind:
            case "started":
                self._started(event)
            case "progress":
                self._progress(event)
            case "actionCompleted":
                self._action(event)
            case "buildFinished":
                self._finished(event)
            case "buildMetrics":
                self._metrics(event)
            case "buildToolLogs":
                self._tool_logs(event)

    def _started(self, event: dict[str, Any]) -> None:
        self.server = _number(event.get("started", {}).get("serverPid"))

    def _progress(self, event: dict[str, Any]) -> None:
        """Take what Bazel shows its user: the only place where it tells how many actions there are."""
        for raw in str(event.get("progress", {}).get("stderr", "")).splitlines():
            line = _COLOURS.sub("", raw).strip()
            if match := _COUNTS.match(line):
                self.done = max(self.done, int(match[1].replace(",", "")))
                self.total = int(match[2].replace(",", ""))
                self.current = match[3] or self.current
            elif _COMPLAINT.match(line):
                self._complain(line)

    def _complain(self, line: str) -> None:
        if line and line not in self.complaints and len(self.complaints) < KEPT:
            self.complaints.append(line)

    def _action(self, event: dict[str, Any]) -> None:
        action = event.get("action", {})
        self.actions += 1
        self.done = max(self.done, self.actions)
        if not action.get("success", False):
            self.failures.append(_failure(event, action))

    def _finished(self, event: dict[str, Any]) -> None:
        self.exit_name = event.get("finished", {}).get("exitCode", {}).get("name", "SUCCESS")

    def _metrics(self, event: dict[str, Any]) -> None:
        metrics = event.get("buildMetrics", {})
        self.seconds = (_number(metrics.get("timingMetrics", {}).get("wallTimeInMs")) or 0) / 1000
        for row in metrics.get("actionSummary", {}).get("runnerCount", ()):  # from Bazel 5 on
            if row.get("name") != "total":
                self.counts[str(row.get("name"))] = _number(row.get("count")) or 0

    def _tool_logs(self, event: dict[str, Any]) -> None:
        for log in event.get("buildToolLogs", {}).get("log", ()):
            if log.get("name") == "process stats" and not self.counts:
                self.counts = processes(base64.b64decode(log.get("contents", "")).decode(errors="replace"))
            elif str(log.get("name", "")).endswith("profile.gz"):
                self.profile = _local(log.get("uri"))


def processes(text: str) -> dict[str, int]:
    """Return the counts in Bazel's last word on its processes, ``8 processes: 6 remote cache hit, 2 internal``.

    A disk cache is called ``remote`` too by Bazel 4.
    """
    _, _, told = text.partition(":")
    return {name.strip(): int(count.replace(",", "")) for count, name in _PROCESSES.findall(told)}


def action_seconds(profile: Path) -> float | None:
    """Return the seconds that all actions of a build took together, from Bazel's profile; None without one."""
    try:
        with gzip.open(profile) as file:
            events = json.loads(file.read(PROFILE_LIMIT))["traceEvents"]
        spent = [float(event.get("dur", 0)) for event in events if event.get("cat") == "action processing"]
    except (OSError, EOFError, ValueError, LookupError, TypeError):
        return None
    return sum(spent) / 1e6


def _failure(event: dict[str, Any], action: dict[str, Any]) -> Failure:
    parts = [_content(action.get(name)) for name in ("stdout", "stderr")]
    said = [line for part in parts for line in part.splitlines() if not _SANDBOX.match(line)]
    told = action.get("failureDetail", {}).get("message", "")
    return Failure(
        label=str(action.get("label") or event["id"]["actionCompleted"].get("label", "")),
        kind=str(action.get("type", "")),
        exit_code=_number(action.get("exitCode")),
        text="\n".join(said).strip() or str(told).split("\n")[0],
    )


def _content(file: dict[str, Any] | None) -> str:
    """The end of an action's output: in the event itself, or in a file beside the build."""
    if not file:
        return ""
    if "contents" in file:
        return base64.b64decode(file["contents"])[-LONGEST:].decode(errors="replace")
    path = _local(file.get("uri"))
    try:
        data = path.read_bytes() if path is not None and path.is_file() else b""
    except OSError:
        return ""
    return data[-LONGEST:].decode(errors="replace")


def _local(uri: object) -> Path | None:
    parts = urlsplit(str(uri or ""))
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _number(value: object) -> int | None:
    """A whole number, which the JSON of protocol buffers writes as a string when it has 64 bits."""
    try:
        return int(str(value))
    except ValueError:
        return None
