"""The state of a Bazel build by its events, and the variables and credentials of the compile step."""

from __future__ import annotations

import base64
import binascii
import contextlib
import gzip
import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urlsplit

from kiln.base.errors import UsageError
from kiln.base.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.state.results import CompileReport


HEADERS = "headers"
# A file's name, and that of its text in the variable.
CERTIFICATES = {"ca.pem": "ca", "client.pem": "certificate", "client.key": "key"}
SECRET = ("client.key", HEADERS)
HEADER = re.compile(r"([A-Za-z0-9_.-]+)[ \t]*:[ \t]*(\S.*)")
LIMIT = 1 << 16  # bytes of a file
LONGEST_CREDENTIALS = (
    120_000  # characters of the variable: Linux gives a process at most 131,072 bytes of each, with its name
)


def encode_credentials_folder(folder: Path) -> str:
    """Return the variable's value: base64 of a JSON object with all files of a folder.

    Raises:
        UsageError: for a missing or unknown file, one that others can read, or invalid or too much content; without
            the content.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise UsageError(f"cannot read the folder of credentials: {folder}", why=str(error.strerror)) from error
    unknown = [name for name in names if name not in {HEADERS, *CERTIFICATES}]
    if unknown or not names:
        raise UsageError(
            f"{folder} has {f'the unknown file {unknown[0]}' if unknown else 'no files'}",
            hint=f"its files are {', '.join((*CERTIFICATES, HEADERS))}; each may be missing",
        )
    if ("client.pem" in names) != ("client.key" in names):
        raise UsageError(f"{folder} has one of client.pem and client.key, and needs both or none")
    value: dict[str, Any] = {CERTIFICATES[name]: _read_pem_file(folder / name) for name in names if name != HEADERS}
    if HEADERS in names:
        value[HEADERS] = _read_headers_file(folder / HEADERS)
    variable = base64.b64encode(json.dumps(value).encode()).decode()
    if len(variable) > LONGEST_CREDENTIALS:
        raise UsageError(
            f"the files in {folder} are too large together",
            why=f"they have {len(variable):,} characters in Base64, and a variable has at most {LONGEST_CREDENTIALS:,}",
            hint="leave the certificates that the executor does not use out of ca.pem",
        )
    return variable


def is_encoded_credentials(text: str) -> bool:
    """Return whether a text is the variable's value, and not the name of a folder."""
    try:
        value = json.loads(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return False
    return isinstance(value, dict) and value.keys() <= {HEADERS, *CERTIFICATES.values()}


def secrets_in_encoded_credentials(variable: str) -> tuple[str, ...]:
    """Return the secrets inside the variable, which are masked like the whole: headers' values and the key.

    Of a value such as ``Bearer TOKEN``, what follows its scheme is one, too, for it may be printed alone.
    """
    try:
        value = json.loads(base64.b64decode(variable, validate=True))
        key = value.get("key", "")
        contents = [content for _, content in value.get(HEADERS, ())]
        tokens = [words[1] for content in contents if len(words := content.split(maxsplit=1)) > 1]
    except (binascii.Error, ValueError, TypeError, AttributeError):
        return ()
    return (*contents, *tokens, *([key] if key else []))


def _read_private_text(path: Path) -> str:
    try:
        status = path.stat()
        if path.name in SECRET and status.st_mode & 0o077:
            raise UsageError(f"others can read {path}", hint=f"chmod 600 {path}")
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise UsageError(f"{path} is larger than {LIMIT} bytes")
        return data.decode()
    except OSError as error:
        raise UsageError(f"cannot read {path}", why=str(error.strerror)) from error
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text") from None


def _read_pem_file(path: Path) -> str:
    text = _read_private_text(path)
    if not re.search(r"^-----BEGIN [A-Z ]+-----\s", text, re.MULTILINE):
        raise UsageError(f"{path} is not a PEM file")
    return text


def _read_headers_file(path: Path) -> list[tuple[str, str]]:
    headers = []
    for number, line in enumerate(_read_private_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        match = HEADER.fullmatch(line.strip())
        if match is None or not match[2].isprintable():
            raise UsageError(f"{path}:{number}: not a header", hint="one header to a line, as NAME: VALUE")
        headers.append((match[1], match[2]))
    return headers


DISK_CACHE, REMOTE_CACHE, EVENTS = "BAZEL_DISK_CACHE", "BAZEL_REMOTE_CACHE", "BAZEL_BUILD_EVENTS"
CPUS, MEMORY, DISTDIR, CACHE_KEY = "BAZEL_CPUS", "BAZEL_MEMORY_MB", "BAZEL_DISTDIR", "BAZEL_CACHE_KEY"
PROFILE, EXECUTOR, CREDENTIALS = "BAZEL_PROFILE", "BAZEL_REMOTE_EXECUTOR", "BAZEL_REMOTE_CREDENTIALS"
JOBS, FALLBACK = "BAZEL_REMOTE_JOBS", "BAZEL_REMOTE_FALLBACK"
SECRETS = (REMOTE_CACHE, EXECUTOR, CREDENTIALS)  # addresses may contain a password


def secret_variable_names(environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the names of the secret variables that are set."""
    return tuple(name for name in SECRETS if environment.get(name))


def with_secrets_inside_credentials(secrets: Mapping[str, str]) -> dict[str, str]:
    """Return secret variables, and the secrets inside of the credentials' variable under names of their own."""
    parts = secrets_in_encoded_credentials(secrets.get(CREDENTIALS, ""))
    return {**secrets, **{f"{CREDENTIALS}_{number}": part for number, part in enumerate(parts)}}


LONGEST_OUTPUT = 1 << 16  # bytes at the end of an action's output that are kept
PROFILE_LIMIT = 1 << 28  # bytes of a profile that are read
KEPT = 40  # error lines of Bazel that are kept

# "[1,234 / 5,678] Compiling a.cc; 12s local ... (8 actions running)", and "[5,678 / 5,678] 2 actions running"
_COUNTS = lazy_pattern(r"^\[([\d,]+) / ([\d,]+)\]\s*(.*)$")
_COMPLAINT = lazy_pattern(r"^(?:ERROR|FATAL|Error|FAILED):")
_PROCESSES = lazy_pattern(r"([\d,]+) ([a-z][^,.]*)")
_COLOURS = lazy_pattern(r"\x1b\[[0-9;]*[A-Za-z]")
# "Critical Path: 10.17s, Remote (99.94% of the time): [parse: 1.20%, queue: 70.94%, ...]", then a line for each action.
_CRITICAL = lazy_pattern(r"^Critical Path: ([\d.]+)s(?:, Remote \([\d.]+% of the time\): \[([^\]]*)\])?")
_QUEUE = lazy_pattern(r"\bqueue: ([\d.]+)%")
# The lines that --sandbox_debug, the default of Debian's Bazel, adds to the output of every action.
_SANDBOX = lazy_pattern(r"^\d+\.\d+: src/main/tools/")


@dataclass(frozen=True, slots=True, kw_only=True)
class ActionFailure:
    """An action that failed: its target, its kind (``CppCompile``), and the end of its output."""

    label: str
    kind: str
    exit_code: int | None
    text: str

    def __str__(self) -> str:
        code = "" if self.exit_code is None else f" ended with exit code {self.exit_code}"
        return f"{self.kind or 'an action'} of {self.label or 'the build'}{code or ' failed'}"


@dataclass(slots=True, kw_only=True)
class BazelBuildState:
    """One call of Bazel, as far as its events have arrived."""

    events: int = 0
    workspace: str = ""
    server: int | None = None
    done: int = 0
    total: int | None = None
    current: str = ""
    actions: int = 0
    failures: list[ActionFailure] = field(default_factory=list)
    complaints: list[str] = field(default_factory=list)
    counts: dict[str, int] = field(default_factory=dict)
    seconds: float = 0.0
    profile: Path | None = None
    critical: float | None = None
    queued: float | None = None

    def handle_event_line(self, line: bytes) -> None:
        """Handle one event; invalid lines are skipped."""
        with contextlib.suppress(ValueError, LookupError, TypeError, AttributeError, StopIteration):
            event = json.loads(line)
            kind = next(iter(event["id"]))
            self.events += 1
            if "aborted" in event:
                self._add_error_line(str(event["aborted"].get("description", "")))
            else:
                self._handle_event(kind, event)

    def compile_report(self) -> CompileReport | None:
        """Return the origin of the actions, once Bazel has counted them; None before."""
        from kiln.state.results import CompileReport

        if not self.counts:
            return None
        hits = sum(count for name, count in self.counts.items() if "cache hit" in name)
        internal = self.counts.get("internal", 0)
        ran = sum(self.counts.values()) - hits - internal
        remote = self.counts.get("remote", 0)
        # An action that runs remotely also waits there for a worker.
        work = None if self.profile is None or remote else total_action_seconds(self.profile)
        return CompileReport(
            hits=hits,
            misses=ran,
            internal=internal,
            seconds=self.seconds,
            work=work,
            remote=remote,
            critical=self.critical,
            queued=self.queued,
        )

    def _handle_event(self, kind: str, event: dict[str, Any]) -> None:
        match kind:
            case "started":
                self.server = _parse_integer(event.get("started", {}).get("serverPid"))
                self.workspace = str(event.get("started", {}).get("workspaceDirectory", ""))
            case "progress":
                self._handle_progress(event)
            case "actionCompleted":
                self._handle_action_completed(event)
            case "buildMetrics":
                self._handle_build_metrics(event)
            case "buildToolLogs":
                self._handle_tool_logs(event)

    def _handle_progress(self, event: dict[str, Any]) -> None:
        """Handle Bazel's terminal output, the only place with the number of actions."""
        for raw in str(event.get("progress", {}).get("stderr", "")).splitlines():
            line = _COLOURS.sub("", raw).strip()
            if match := _COUNTS.match(line):
                self.done = max(self.done, int(match[1].replace(",", "")))
                self.total = int(match[2].replace(",", ""))
                self.current = match[3] or self.current
            elif _COMPLAINT.match(line):
                self._add_error_line(line)

    def _add_error_line(self, line: str) -> None:
        if line and line not in self.complaints and len(self.complaints) < KEPT:
            self.complaints.append(line)

    def _handle_action_completed(self, event: dict[str, Any]) -> None:
        action = event.get("action", {})
        self.actions += 1
        self.done = max(self.done, self.actions)
        if not action.get("success", False):
            self.failures.append(_action_failure(event, action))

    def _handle_build_metrics(self, event: dict[str, Any]) -> None:
        metrics = event.get("buildMetrics", {})
        self.seconds = (_parse_integer(metrics.get("timingMetrics", {}).get("wallTimeInMs")) or 0) / 1000
        for row in metrics.get("actionSummary", {}).get("runnerCount", ()):  # from Bazel 5 on
            if row.get("name") != "total":
                self.counts[str(row.get("name"))] = _parse_integer(row.get("count")) or 0

    def _handle_tool_logs(self, event: dict[str, Any]) -> None:
        for log in event.get("buildToolLogs", {}).get("log", ()):
            if log.get("name") == "process stats" and not self.counts:
                self.counts = parse_process_counts(_tool_log_text(log))
            elif log.get("name") == "critical path":
                self.critical, self.queued = parse_critical_and_queue_seconds(_tool_log_text(log))
            elif str(log.get("name", "")).endswith("profile.gz"):
                self.profile = _path_of_file_uri(log.get("uri"))


def _tool_log_text(log: dict[str, Any]) -> str:
    return base64.b64decode(log.get("contents", "")).decode(errors="replace")


def parse_critical_and_queue_seconds(text: str) -> tuple[float | None, float | None]:
    """Return the seconds of the critical path, and those that its actions waited for a remote worker."""
    match = _CRITICAL.match(text)
    if match is None:
        return None, None
    share = _QUEUE.search(match[2] or "")
    return float(match[1]), None if share is None else float(match[1]) * float(share[1]) / 100


def parse_process_counts(text: str) -> dict[str, int]:
    """Return the counts in Bazel's summary of its processes, ``8 processes: 6 remote cache hit, 2 internal``.

    Bazel 4 calls a disk cache ``remote``, too.
    """
    _, _, counts = text.partition(":")
    return {name.strip(): int(count.replace(",", "")) for count, name in _PROCESSES.findall(counts)}


def total_action_seconds(profile: Path) -> float | None:
    """Return the total seconds of all actions, from Bazel's profile; None without one."""
    try:
        with gzip.open(profile) as file:
            events = json.loads(file.read(PROFILE_LIMIT))["traceEvents"]
        durations = [float(event.get("dur", 0)) for event in events if event.get("cat") == "action processing"]
    except (OSError, EOFError, ValueError, LookupError, TypeError):
        return None
    return sum(durations) / 1e6


def _action_failure(event: dict[str, Any], action: dict[str, Any]) -> ActionFailure:
    parts = [_action_output_end(action.get(name)) for name in ("stdout", "stderr")]
    output = [line for part in parts for line in part.splitlines() if not _SANDBOX.match(line)]
    message = action.get("failureDetail", {}).get("message", "")
    return ActionFailure(
        label=str(action.get("label") or event["id"]["actionCompleted"].get("label", "")),
        kind=str(action.get("type", "")),
        exit_code=_parse_integer(action.get("exitCode")),
        text="\n".join(output).strip() or str(message).split("\n")[0],
    )


def _action_output_end(file: dict[str, Any] | None) -> str:
    """Return the end of an action's output, which is in the event or in a file."""
    if not file:
        return ""
    if "contents" in file:
        return base64.b64decode(file["contents"])[-LONGEST_OUTPUT:].decode(errors="replace")
    path = _path_of_file_uri(file.get("uri"))
    try:
        data = path.read_bytes() if path is not None and path.is_file() else b""
    except OSError:
        return ""
    return data[-LONGEST_OUTPUT:].decode(errors="replace")


def _path_of_file_uri(uri: object) -> Path | None:
    parts = urlsplit(str(uri or ""))
    return Path(unquote(parts.path)) if parts.scheme == "file" else None


def _parse_integer(value: object) -> int | None:
    """Return an integer, which the JSON of protocol buffers writes as a string if it has 64 bits."""
    try:
        return int(str(value))
    except ValueError:
        return None
