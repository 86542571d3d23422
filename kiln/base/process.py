"""Start all processes: logged before they run, bounded in time, stopped with all their children."""

from __future__ import annotations

import codecs
import contextlib
import functools
import logging
import os
import shlex
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections import deque
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import IO, TYPE_CHECKING

from kiln.base import files, masking, process_table
from kiln.base.errors import KilnError, MissingTool
from kiln.base.masked_stream import MaskedLineStream
from kiln.base.system.processes import PipeReader, signal_group

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


TABLE = Path(__file__).with_name("system_packages.csv")
# The package manager of each family of systems, by the names that os-release gives them in ID and ID_LIKE.
MANAGERS = {"debian": "apt", "ubuntu": "apt", "fedora": "dnf", "rhel": "dnf", "centos": "dnf"}
INSTALL = {"apt": "sudo apt install", "dnf": "sudo dnf install", "brew": "brew install"}


def os_release() -> dict[str, str]:
    """Return the values of this machine's os-release file; empty if it does not exist."""
    import platform  # slow to import, and rarely needed

    try:
        return platform.freedesktop_os_release()
    except (OSError, UnicodeDecodeError):
        return {}


def package_manager(release: Mapping[str, str] | None = None, platform: str = sys.platform) -> str | None:
    """Return the package manager of a system, ``apt``, ``dnf`` or ``brew``; None for a system of another family.

    The system is this machine unless its os-release values are given.
    """
    if platform == "darwin":
        return "brew"
    release = os_release() if release is None else release
    names = (release.get("ID", ""), *release.get("ID_LIKE", "").split())
    return next((MANAGERS[name] for name in names if name in MANAGERS), None)


def system_package_of_program(program: str, manager: str = "apt") -> str:
    """Return the name of the package that has a program; empty when unknown."""
    return _packages_by_program().get(program, {}).get(manager, "")


def installation_command(names: Iterable[str], manager: str) -> str:
    """Return the command that installs packages."""
    return " ".join((INSTALL[manager], *names))


def installation_advice(program: str, release: Mapping[str, str] | None = None, platform: str = sys.platform) -> str:
    """Return how to install a program on this system: a command, or the package's name on Debian, or an empty text."""
    here = package_manager(release, platform)
    if here is not None and (name := system_package_of_program(program, here)):
        return installation_command([name], here)
    if here is None and (name := system_package_of_program(program)):
        return f"install it with this system's package manager (Debian's package is {name})"
    return ""


@functools.cache
def _packages_by_program() -> dict[str, dict[str, str]]:
    return {row["program"]: row for row in files.csv_rows(TABLE)}


class Program(str, Enum):
    """The modules of kiln that run as processes of their own; each has a function ``main``, or runs as a script."""

    KILN = "kiln"
    CONFIG = "kiln.run.config_process"
    BUILD = "kiln.build.main"
    ENGINE = "kiln.build.engine.worker"
    RATTLER = "kiln.conda.rattler.worker"
    GENERATOR = "kiln.feedstock.init.generator"
    CONTROLLER = "kiln.fleet.detached.server"  # started by the controller's own script, see ansible/
    PLAYBOOK = "kiln.fleet.ansible.playbook_child"

    def script_command(self, *words: str, python: str = sys.executable, isolated: bool = False) -> tuple[str, ...]:
        """Return the command that runs the module as a script; ``isolated`` without the caller's Python settings."""
        return (python, *(("-I",) if isolated else ()), "-m", self.value, *words)

    @property
    def main_text(self) -> str:
        """The text for ``python -c`` that calls the module's ``main`` with the arguments.

        ``-m`` would import the module's package, and with it the module, a first time.
        """
        return f"import sys; from {self.value} import main; main(*sys.argv[1:])"

    def main_command(self, *arguments: str) -> tuple[str, ...]:
        """Return the command that calls the module's ``main`` by this Python."""
        return (sys.executable, "-c", self.main_text, *arguments)


LOGGER = logging.getLogger(__name__)

TAIL_LINES = 40
_MOST_ERRORS = 1 << 16  # bytes
TIMED_OUT = 124  # as timeout(1)
GRACE = 5.0  # seconds between SIGTERM and SIGKILL of a process group


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessResult:
    """The result of a process: ``tail`` is the end of its output, ``stdout`` is filled by ``capture`` alone.

    ``exit_code`` is negative for a process that a signal ended, and 124 for one that ran out of time, or was ``idle``
    for too long.
    """

    argv: tuple[str, ...]
    exit_code: int
    tail: str
    seconds: float
    stdout: str = ""
    idle: bool = False

    @property
    def ok(self) -> bool:
        """True when the exit code is 0."""
        return self.exit_code == 0


def run(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    log: Path | None = None,
    timeout: float | None = None,
    idle: float | None = None,
    secrets: Sequence[str] = (),
    on_line: Callable[[str], None] | None = None,
    tail_lines: int = TAIL_LINES,
    stdin: str | None = None,
    own: str = "",
) -> ProcessResult:
    """Run a program to its end; its output and errors are merged, in order.

    Its environment is exactly ``env``.
    ``log`` is appended to. ``timeout`` is in seconds. So is ``idle``: the time in which the program may use no
    processor time, run no other program, wait for no lock and print nothing, as when it waits for a server.
    ``secrets``, along with those of `kiln.base.masking`, are masked in the log, the tail and for ``on_line``, except in
    lines that begin with ``own``: messages of kiln's processes, which mask them before. A bad exit code is returned,
    not raised. The program reads ``stdin``, or nothing.
    Raises MissingTool when the program is not found.
    """
    with _OutputRecorder(log=log, secrets=secrets, on_line=on_line, tail_lines=tail_lines, own=own) as listener:
        return _run_process(argv, env=env, cwd=cwd, timeout=timeout, listener=listener, stdin=stdin, idle=idle)


def capture(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str],
    cwd: Path | None = None,
    timeout: float | None = None,
    secrets: Sequence[str] = (),
    stdin: str | None = None,
    most: int | None = None,
) -> ProcessResult:
    """Run a program and return its standard output, complete and unmasked; the tail has only its errors.

    The program reads ``stdin``, or nothing. It is ended as if it ran out of time once its output has more bytes than
    ``most``. Raises MissingTool when the program is not found.
    """
    with _OutputRecorder(log=None, secrets=secrets, on_line=None, tail_lines=TAIL_LINES) as listener:
        return _run_process(
            argv, env=env, cwd=cwd, timeout=timeout, listener=listener, stdin=stdin, most=most, apart=True
        )


@contextlib.contextmanager
def piped(argv: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str]) -> Iterator[IO[bytes]]:
    """Run a program while its standard output is read; it is ended when the reader raises before it has.

    Raises MissingTool when the program is not found, and CalledProcessError with its errors when it fails, also in the
    place of what a reader says about an output that is cut off.
    """
    words = tuple(os.fspath(word) for word in argv)
    with tempfile.TemporaryFile() as errors:
        LOGGER.info("run: %s", masking.masked(shlex.join(words)))
        process = _start_process(words, env=env, cwd=None, stderr=errors, reads=False)
        assert process.stdout is not None
        try:
            yield process.stdout
            process.stdout.read()  # what follows the end that the reader knows
            process.wait()
        except KilnError:
            raise
        except Exception as error:
            with contextlib.suppress(subprocess.TimeoutExpired):  # if the reader failed by itself, it is blocked
                process.wait(timeout=1)
            if process.returncode:
                raise _failure_of(process, words, errors) from error
            raise
        finally:
            _end_process_group(process)
        if process.returncode:
            raise _failure_of(process, words, errors)


def _failure_of(
    process: subprocess.Popen[bytes], words: tuple[str, ...], errors: IO[bytes]
) -> subprocess.CalledProcessError:
    errors.seek(0)
    said = masking.masked(errors.read(_MOST_ERRORS).decode("utf-8", "replace").strip())
    return subprocess.CalledProcessError(process.returncode, words, stderr=said)


def start_helper_process(
    argv: Sequence[str], *, cwd: Path, stderr: IO[bytes], inherited: Sequence[int] = ()
) -> subprocess.Popen[bytes]:
    """Start one of kiln's own processes, which answers requests, with this process's environment and pipes to it.

    It also has the descriptors that are ``inherited``, under the same numbers.
    It has a separate session, so that Ctrl-C reaches this process alone. Raises MissingTool.
    """
    LOGGER.info("start: %s", shlex.join(argv))
    try:
        return subprocess.Popen(
            argv,
            cwd=cwd,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=stderr,
            pass_fds=inherited,
            start_new_session=True,
        )
    except (FileNotFoundError, PermissionError) as error:
        raise MissingTool(f"cannot start {argv[0]!r}", why=error.strerror or str(error)) from error


def run_on_terminal(argv: Sequence[str | os.PathLike[str]], *, env: Mapping[str, str], cwd: Path | None = None) -> int:
    """Run a program on this process's standard streams, and return its exit code.

    Its output is not recorded. The program alone handles Ctrl-C until it has ended.
    Raises MissingTool when the program is not found.
    """
    words = tuple(os.fspath(word) for word in argv)
    LOGGER.info("hand over to: %s", masking.masked(shlex.join(words)))
    program = _path_or_found_program(words[0], env)
    # A function that does nothing: if the signal were ignored, the program would ignore it, too.
    before = signal.signal(signal.SIGINT, lambda *_: None)
    try:
        with subprocess.Popen(words, executable=program, env=env, cwd=cwd) as process:
            try:
                return process.wait()
            except BaseException:
                process.terminate()
                raise
    finally:
        signal.signal(signal.SIGINT, before)


def program_on_path(program: str, *, env: Mapping[str, str]) -> str | None:
    """Return the path of ``program`` on the PATH of ``env``; None when it is not found."""
    return shutil.which(program, path=env.get("PATH", os.defpath))


def find_program(program: str, *, env: Mapping[str, str]) -> Path:
    """Return the path of ``program`` on the PATH of ``env``; raises MissingTool when it is not found."""
    location = program_on_path(program, env=env)
    if location is None:
        why = f"PATH is {env.get('PATH', os.defpath)!r}"
        raise MissingTool(f"{program!r} is not on this machine", why=why, hint=installation_advice(program))
    return Path(location)


def _path_or_found_program(word: str, env: Mapping[str, str]) -> str:
    return word if Path(word).name != word else str(find_program(word, env=env))


class _OutputRecorder:
    """Reads a process's output by line: into the log file, the tail, and ``on_line``."""

    def __init__(
        self,
        *,
        log: Path | None,
        secrets: Sequence[str],
        on_line: Callable[[str], None] | None,
        tail_lines: int,
        own: str = "",
    ) -> None:
        self._path = log
        self._file: IO[str] | None = None
        self._mask = masking.current_mask().with_more_secrets(secrets)
        self._stream = MaskedLineStream(self._mask, own=own)
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._on_line = on_line
        self._tail: deque[str] = deque(maxlen=tail_lines)

    def __enter__(self) -> _OutputRecorder:
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

    def masked(self, text: str) -> str:
        return self._mask.mask_text(text)

    def write_log_line(self, text: str) -> None:
        """Write a line of kiln's into the log file."""
        if self._file is not None:
            self._file.write(f"{self.masked(text)}\n")

    def record_chunk(self, chunk: bytes) -> None:
        self._record_lines(self._stream.feed(self._decoder.decode(chunk)))

    def record_last_line(self) -> None:
        """Handle the rest after the last line break."""
        rest = self._decoder.decode(b"", final=True)
        self._record_lines([*self._stream.feed(rest), *self._stream.finish()])

    def _record_lines(self, lines: Iterable[str]) -> None:
        for line in lines:
            self._tail.append(line)
            if self._file is not None:
                self._file.write(f"{line}\n")
            if self._on_line is not None:
                self._on_line(line)


def _run_process(
    argv: Sequence[str | os.PathLike[str]],
    *,
    env: Mapping[str, str],
    cwd: Path | None,
    timeout: float | None,
    listener: _OutputRecorder,
    stdin: str | None,
    apart: bool = False,
    idle: float | None = None,
    most: int | None = None,
) -> ProcessResult:
    words = tuple(os.fspath(word) for word in argv)
    text = listener.masked(shlex.join(words))
    LOGGER.info("run: %s", text)
    listener.write_log_line(f"$ {text}")
    start = time.monotonic()
    process = _start_process(
        words, env=env, cwd=cwd, stderr=subprocess.PIPE if apart else subprocess.STDOUT, reads=stdin is not None
    )
    stdout = bytearray()
    idle_time = _IdleLimit(process.pid, idle)
    try:
        if stdin is not None:
            threading.Thread(target=_write_stdin, args=(process, stdin.encode()), daemon=True).start()
        until = None if timeout is None else start + timeout
        in_time = _read_output(process, listener, stdout, until=until, idle_time=idle_time, most=most)
    finally:
        _end_process_group(process)
    listener.record_last_line()
    seconds = time.monotonic() - start
    exit_code = process.returncode if in_time else TIMED_OUT
    listener.write_log_line(f"# exit code {exit_code} after {seconds:.1f} s")
    return ProcessResult(
        argv=words,
        exit_code=exit_code,
        tail=listener.tail,
        seconds=seconds,
        stdout=stdout.decode("utf-8", "replace"),
        idle=idle_time.over and not in_time,
    )


class _IdleLimit:
    """Measures how long a process has been idle; ``over`` when that exceeds ``seconds``, None for no limit."""

    def __init__(self, pid: int, seconds: float | None) -> None:
        self._pid, self._seconds = pid, seconds
        self._used, self._since = -1.0, time.monotonic()
        self.over = False

    def is_exceeded_after_read(self, *, received: bool) -> bool:
        """Return whether the limit is exceeded; ``received`` when the process has printed something."""
        if self._seconds is not None and process_table.has_proc_files():
            process = process_table.read_process(self._pid)
            used = -1.0 if process is None else process.used
            if (
                received
                or used > self._used
                or process_table.child_pids(self._pid)
                or process_table.waits_for_lock(self._pid)
            ):
                self._used, self._since = used, time.monotonic()
            self.over = time.monotonic() - self._since > self._seconds
        return self.over


def _write_stdin(process: subprocess.Popen[bytes], text: bytes) -> None:
    """Write a program's input, which may exceed a pipe's buffer; a program that has ended does not read it."""
    assert process.stdin is not None, "a pipe was requested"
    with contextlib.suppress(BrokenPipeError), process.stdin as pipe:
        pipe.write(text)


def _start_process(
    argv: tuple[str, ...], *, env: Mapping[str, str], cwd: Path | None, stderr: int | IO[bytes], reads: bool
) -> subprocess.Popen[bytes]:
    program = _path_or_found_program(argv[0], env)
    if cwd is not None and not cwd.is_dir():
        raise NotADirectoryError(f"folder to run {argv[0]} in not found: {cwd}")
    try:
        return subprocess.Popen(
            argv,
            executable=program,
            env=env,
            cwd=cwd,
            stdin=subprocess.PIPE if reads else subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=stderr,
            start_new_session=True,  # a group, which can be killed as a whole
        )
    except (FileNotFoundError, PermissionError) as error:
        is_missing = isinstance(error, FileNotFoundError)
        hint = installation_advice(Path(program).name) if is_missing else ""
        raise MissingTool(f"cannot start {program!r}", why=error.strerror or str(error), hint=hint) from error


def _read_output(
    process: subprocess.Popen[bytes],
    listener: _OutputRecorder,
    stdout: bytearray,
    *,
    until: float | None,
    idle_time: _IdleLimit,
    most: int | None,
) -> bool:
    """Read until the process has ended; return False when it ran out of time, was idle or wrote too much."""
    ended = False  # before the last read: else that may have missed the last lines
    with contextlib.closing(PipeReader(filter(None, (process.stdout, process.stderr)))) as reader:
        while reader.is_open:
            if until is not None and time.monotonic() > until:
                return False
            chunks = reader.read_available(0.2)
            for pipe, chunk in chunks:
                to_answer = pipe is process.stdout and process.stderr is not None
                (stdout.extend if to_answer else listener.record_chunk)(chunk)
            if idle_time.is_exceeded_after_read(received=bool(chunks)) or (most is not None and len(stdout) > most):
                return False
            if ended and not chunks:
                return True  # a child in the background may keep the pipe open forever
            ended = process.poll() is not None
    try:  # it has closed its output
        process.wait(timeout=None if until is None else max(0.0, until - time.monotonic()))
    except subprocess.TimeoutExpired:
        return False
    return True


def _end_process_group(process: subprocess.Popen[bytes]) -> None:
    """End the process and its group if it still runs, SIGTERM first, and close its pipes."""
    if process.poll() is None:
        try:
            signal_group(process, signal.SIGTERM)
            process.wait(timeout=GRACE)
        except subprocess.TimeoutExpired:
            LOGGER.warning("process %d did not end after SIGTERM; it is killed", process.pid)
        finally:
            signal_group(process, signal.SIGKILL)
            process.wait()
    for pipe in filter(None, (process.stdout, process.stderr)):
        pipe.close()
