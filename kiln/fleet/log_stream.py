"""The log of a build on a worker, fetched piece by piece together with the state of its job."""

from __future__ import annotations

import base64
import contextlib
import json
import re
import shlex
from typing import IO, TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

AT_ONCE = 1 << 20  # bytes of a log that are fetched at a time
LOGS = (
    "/var/lib/kiln/project/build_artifacts/logs"  # of kiln build on the worker, which may have several logs of a config
)
MARK = "--- log ---"
STEP = re.compile(r"(?:\d{4}-\d\d-\d\d )?\d\d:\d\d:\d\d === (?P<title>.+)")


class LogStream:
    """A build's log, appended to a file here; after a failed fetch, or in another process, it continues at its end.

    ``more`` is set while there is more to be fetched at once.
    """

    def __init__(self, path: Path | None) -> None:
        self._path = path
        self._file: IO[bytes] | None = None
        self._offset = 0
        self._rest = b""
        self._is_started = False
        self.step = "build"
        self.more = False

    def __enter__(self) -> LogStream:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("ab", buffering=0)
            self._offset = self._file.tell()
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    def status_and_log_command(self, config: str, seconds: float = 0.0) -> str:
        """Return the command that prints the state of all jobs, and the next piece of a config's log.

        Unless there is more to be fetched at once, it waits on the worker for the build's end, for ``seconds`` at most.
        """
        wait = f"kiln-job wait {shlex.quote(config)} {seconds if self._is_started and not self.more else 0.0}"
        log = f"$(ls -t {LOGS}/*/{shlex.quote(config)}.log 2>/dev/null | head -n 1)"
        piece = f'tail -c +{self._offset + 1} "{log}" 2>/dev/null | head -c {AT_ONCE} | base64 -w 0'
        return f"sudo sh -c {shlex.quote(f'{wait}; kiln-job status && echo && echo {MARK} && {piece}')}"

    def append_log_from_file(self, source: Path | None) -> list[tuple[str, str]]:
        """Append the next piece of a log on this computer, and return its lines, each with its step."""
        if source is None:
            return self.append_log_piece(b"")
        with source.open("rb") as file:
            file.seek(self._offset)
            return self.append_log_piece(file.read(AT_ONCE))

    def parse_status_and_log(self, answer: str, config: str) -> tuple[Mapping[str, Any], list[tuple[str, str]]]:
        """Return the state of a config's job, and the new lines of its log, each with its step."""
        status, _, piece = answer.partition(MARK)
        lines = self.append_log_piece(base64.b64decode(piece.strip()))
        return dict(json.loads(status).get(config, {})), lines

    def append_log_piece(self, data: bytes) -> list[tuple[str, str]]:
        """Append the next piece of the log, and return its lines, each with its step."""
        self._is_started = True
        self.more = len(data) >= AT_ONCE
        self._offset += len(data)
        if self._file is not None:
            with contextlib.suppress(OSError):  # a full disk here must not lose a build there
                self._file.write(data)
        *lines, self._rest = (self._rest + data).split(b"\n")
        return [self._line_with_step(line) for line in lines]

    def _line_with_step(self, raw: bytes) -> tuple[str, str]:
        text = raw.decode("utf-8", "replace")
        if match := STEP.match(text):
            self.step = match["title"]
            return self.step, ""
        return self.step, text


def job_state_and_result(job: Mapping[str, Any]) -> tuple[str, str, int | None]:
    """Return a job's state, its result and its exit code; a job that its worker does not know is lost."""
    code = job.get("exit_code")
    return str(job.get("state", "lost")), str(job.get("result") or ""), None if code is None else int(code)
