"""The one place that starts processes: logged before they run, bounded in time, stopped with all their children."""

from __future__ import annotations

import contextlib
import logging
import math
import os
import re
import selectors
import shlex
import shutil
import signal
import subprocess
import threading
import time
from collections import deque
from dataclasses import dataclass
from pathlib import Path
from typing import IO, TYPE_CHECKING

from kiln.errors import MissingTool

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from types import FrameType

LOGGER = logging.getLogger(__name__)

TAIL_LINES = 40
TIMED_OUT = 124  # what timeout(1) returns
TOGETHER = 1.0  # seconds within which two requests to end are one
GRACE = 5.0  # seconds between asking a process group to end and ending it
PR_SET_PDEATHSIG = 1  # linux/prctl.h
_LONGEST_LINE = 1 << 16
_CREDENTIALS = re.compile(r"(?<=://)[^/\s@'\"]+(?=@)")


@dataclass(frozen=True, slots=True, kw_only=True)
class Result:
    """What a process left: ``tail`` is the end of what it said, ``stdout`` is filled by ``capture`` alone.

    ``exit_code`` is negative for a process that a signal ended, and 124 for one that ran out of time.
    """

    argv: tuple[str, ...]
    exit_code: int
    tail: str
    seconds: float
    stdout: str = ""

    @property
    def ok(self) -> bool:
        """Whether the process ended well."""
        return self.exit_code == 0


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    log: Path | None = None,
    timeout: float | None = None,
    secrets: Sequence[str] = (),
    on_line: Callable[[str], None] | None = None,
    tail_lines: int = TAIL_LINES,
) -> Result:
    """Run a program to its end with exactly the environment ``env``; its output and errors come together, in order.

    ``log`` is appended to. ``timeout`` is in seconds. ``secrets``, and credentials inside URLs, are blotted out of
    everything that is logged, kept or handed to ``on_line``. A bad exit code is returned, not raised.
    Raises MissingTool when the program is not there.
    """
    with _Listener(log=log, secrets=secrets, on_line=on_line, tail_lines=tail_lines) as listener:
        return _execute(_native(argv), env=env, cwd=cwd, timeout=timeout, listener=listener, apart=False)


def capture(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    timeout: float | None = None,
    secrets: Sequence[str] = (),
) -> Result:
    """Run a program whose answer is wanted: its standard output comes back whole and as it was; only errors are kept.

    Raises MissingTool when the program is not there.
    """
    with _Listener(log=None, secrets=secrets, on_line=None, tail_lines=TAIL_LINES) as listener:
        return _execute(_native(argv), env=env, cwd=cwd, timeout=timeout, listener=listener, apart=True)


def hand_over(argv: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str], cwd: Path | None = None) -> int:
    """Run a program that has the terminal, or whatever this process reads and writes, to itself; returns its exit code.

    Nothing of what it says is kept. Ctrl-C is the program's affair until it has ended.
    Raises MissingTool when the program is not there.
    """
    words = _native(argv)
    LOGGER.info("hand over to: %s", _CREDENTIALS.sub("***", shlex.join(words)))
    program = words[0] if "/" in words[0] else str(find(words[0], env=env))
    before = signal.signal(signal.SIGINT, _left_to_the_program)
    try:
        with subprocess.Popen(words, executable=program, env=dict(env), cwd=cwd) as process:
            try:
                return process.wait()
            except BaseException:
                process.terminate()
                raise
    finally:
        signal.signal(signal.SIGINT, before)


def _left_to_the_program(_number: int, _frame: FrameType | None) -> None:
    """Do nothing; a signal that is ignored altogether would be ignored by the program, too."""


def without_credentials(text: str) -> str:
    """Return text with the user and password in every URL blotted out."""
    return _CREDENTIALS.sub("***", text)


def find(program: str, *, env: Mapping[str, str]) -> Path:
    """Return where ``program`` lies on the PATH of ``env``; raises MissingTool when it is nowhere."""
    found = shutil.which(program, path=env.get("PATH", os.defpath))
    if found is None:
        raise MissingTool(f"{program!r} is not on this machine", why=f"PATH is {env.get('PATH', os.defpath)!r}")
    return Path(found)


def die_with_parent(number: signal.Signals = signal.SIGKILL, *, parent: int | None = None) -> None:
    """Have the kernel send this process a signal when the one that started it is gone, killed even.

    ``parent`` is the number of that process, where it is known: if it is gone already, while this one was still
    starting, this one ends here.
    """
    import ctypes  # takes a tenth of what a command's start may take, and few need it

    ctypes.CDLL(None).prctl(PR_SET_PDEATHSIG, number)
    if parent is not None and os.getppid() != parent:
        os._exit(128 + number)


@contextlib.contextmanager
def termination_as_interrupt() -> Iterator[None]:
    """Let SIGTERM and SIGHUP end the block as Ctrl-C does, so that processes are stopped and files put in order."""
    if threading.current_thread() is not threading.main_thread():
        yield
        return
    interrupt = _interrupter()
    before = {number: signal.signal(number, interrupt) for number in (signal.SIGTERM, signal.SIGHUP)}
    try:
        yield
    finally:
        for number, handler in before.items():
            signal.signal(number, handler)


def _interrupter() -> Callable[[int, FrameType | None], None]:
    """A handler that takes signals which come together for one: timeout(1) asks a process, then the process's group."""
    last = -math.inf

    def interrupt(number: int, _frame: FrameType | None) -> None:
        nonlocal last
        before, last = last, time.monotonic()
        if last - before >= TOGETHER:
            raise KeyboardInterrupt(signal.Signals(number).name)

    return interrupt


def _native(argv: Sequence[str | os.PathLike[str]]) -> tuple[str, ...]:
    return tuple(os.fspath(word) for word in argv)


class _Listener:
    """Takes a process's output line by line: to the log file, to the tail, to whoever watches."""

    def __init__(
        self, *, log: Path | None, secrets: Sequence[str], on_line: Callable[[str], None] | None, tail_lines: int
    ) -> None:
        self._path = log
        self._file: IO[str] | None = None
        self._secrets = tuple(secret for secret in secrets if secret)
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=tail_lines)
        self._rest = b""

    def __enter__(self) -> _Listener:
        if self._path is not None:
            self._path.parent.mkdir(parents=True, exist_ok=True)
            self._file = self._path.open("a", encoding="utf-8", buffering=1)
        return self

    def __exit__(self, *_: object) -> None:
        if self._file is not None:
            self._file.close()

    @property
    def tail(self) -> str:
        return "\n".join(self._tail)

    def blot(self, text: str) -> str:
        for secret in self._secrets:
            text = text.replace(secret, "***")
        return without_credentials(text)

    def note(self, text: str) -> None:
        """Write a line of our own into the log file."""
        if self._file is not None:
            self._file.write(f"{self.blot(text)}\n")

    def take(self, chunk: bytes) -> None:
        *lines, self._rest = (self._rest + chunk).split(b"\n")
        for line in lines:
            self._line(line)
        if len(self._rest) > _LONGEST_LINE:
            self.end()

    def end(self) -> None:
        """Take what came after the last line break."""
        rest, self._rest = self._rest, b""
        if rest:
            self._line(rest)

    def _line(self, raw: bytes) -> None:
        line = self.blot(raw.decode("utf-8", "replace").rstrip("\r"))
        self._tail.append(line)
        if self._file is not None:
            self._file.write(f"{line}\n")
        if self._on_line is not None:
            self._on_line(line)


def _execute(
    argv: tuple[str, ...],
    *,
    env: Mapping[str, str],
    cwd: Path | None,
    timeout: float | None,
    listener: _Listener,
    apart: bool,
) -> Result:
    shown = listener.blot(shlex.join(argv))
    LOGGER.info("run: %s", shown)
    listener.note(f"$ {shown}")
    start = time.monotonic()
    process = _start(argv, env=env, cwd=cwd, apart=apart)
    stdout = bytearray()
    try:
        in_time = _listen(process, listener, stdout, until=None if timeout is None else start + timeout)
    finally:
        _end_group(process)
    listener.end()
    seconds = time.monotonic() - start
    exit_code = process.returncode if in_time else TIMED_OUT
    listener.note(f"# exit code {exit_code} after {seconds:.1f} s")
    return Result(
        argv=argv, exit_code=exit_code, tail=listener.tail, seconds=seconds, stdout=stdout.decode("utf-8", "replace")
    )


def _start(argv: tuple[str, ...], *, env: Mapping[str, str], cwd: Path | None, apart: bool) -> subprocess.Popen[bytes]:
    program = argv[0] if "/" in argv[0] else str(find(argv[0], env=env))
    if cwd is not None and not cwd.is_dir():
        raise NotADirectoryError(f"no folder {cwd} to run {argv[0]} in")
    try:
        return subprocess.Popen(
            argv,
            executable=program,
            env=dict(env),
            cwd=cwd,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE if apart else subprocess.STDOUT,
            start_new_session=True,  # a group of its own, which can be ended as a whole
        )
    except (FileNotFoundError, PermissionError) as error:
        raise MissingTool(f"cannot start {program!r}", why=error.strerror or str(error)) from error


def _listen(process: subprocess.Popen[bytes], listener: _Listener, stdout: bytearray, *, until: float | None) -> bool:
    """Read until the process has ended; return False when its time ran out before."""
    with selectors.DefaultSelector() as selector:
        for pipe in filter(None, (process.stdout, process.stderr)):
            to_answer = pipe is process.stdout and process.stderr is not None
            selector.register(pipe, selectors.EVENT_READ, stdout.extend if to_answer else listener.take)
        while selector.get_map():
            if until is not None and time.monotonic() > until:
                return False
            if not _read_ready(selector) and process.poll() is not None:
                return True  # a child left in the background may hold the pipe open for ever
    return _ended(process, until)


def _read_ready(selector: selectors.BaseSelector) -> bool:
    ready = selector.select(timeout=0.2)
    for key, _ in ready:
        chunk = os.read(key.fd, 1 << 16)
        if chunk:
            key.data(chunk)
        else:
            selector.unregister(key.fileobj)
    return bool(ready)


def _ended(process: subprocess.Popen[bytes], until: float | None) -> bool:
    """Wait for a process that has closed its output."""
    try:
        process.wait(timeout=None if until is None else max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group when it still runs, politely first, and close its pipes."""
    if process.poll() is None:
        try:
            _signal_group(process, signal.SIGTERM)
            process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            LOGGER.warning("process %d did not end when asked; it is killed", process.pid)
        finally:
            _signal_group(process, signal.SIGKILL)
            process.wait()
    for pipe in filter(None, (process.stdout, process.stderr)):
        pipe.close()


def _signal_group(process: subprocess.Popen[bytes], number: signal.Signals) -> None:
    with contextlib.suppress(ProcessLookupError):
        os.killpg(process.pid, number)
