"""kiln's commands, each in a fork of one process that has imported kiln: a quarter of a second less for each of them.

For commands that a test runs to their end. What looks at signals, at streams or at the start of a process needs a new
interpreter. As a program (``python -m tests.warm SOCKET``) this is the process that forks.
"""

from __future__ import annotations

import atexit
import contextlib
import functools
import gc
import importlib
import json
import os
import pkgutil
import select
import signal
import socket
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, NoReturn

from kiln.__main__ import main
from tests.waiting import CEILING

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[1]
NUMBERS = 5  # descriptors that come with a call: its text, the answer, and the three standard streams
LONGEST = 64  # bytes of an answer


def kiln(
    *words: str,
    cwd: Path = ROOT,
    env: Mapping[str, str] | None = None,
    check: bool = False,
    merged: bool = False,
    stdin: str = "",
    timeout: float = CEILING,
) -> subprocess.CompletedProcess[str]:
    """Run a command to its end; ``merged`` puts what it prints on both streams into ``stdout``, in order.

    Raises:
        subprocess.TimeoutExpired: after ``timeout`` seconds; the command is killed.
        subprocess.CalledProcessError: for another exit code than 0, with ``check``.
    """
    call = {"words": words, "cwd": str(cwd), "env": dict(os.environ if env is None else env)}
    with contextlib.ExitStack() as stack:
        text, given, output, errors = (stack.enter_context(tempfile.TemporaryFile("a+b")) for _ in range(4))
        pair = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # which keeps the two answers apart
        answer, answered = (stack.enter_context(item) for item in pair)
        text.write(json.dumps(call).encode())
        given.write(stdin.encode())
        for file in (text, given):
            file.seek(0)
        streams = (given, output, output if merged else errors)
        descriptors = [text.fileno(), answered.fileno(), *(stream.fileno() for stream in streams)]
        socket.send_fds(_forking_process(), [b"."], descriptors)
        answered.close()
        pid = int(answer.recv(LONGEST))
        if not select.select([answer], [], [], timeout)[0]:
            os.kill(pid, signal.SIGKILL)
            raise subprocess.TimeoutExpired(words, timeout, _read(output), _read(errors))
        code = int(answer.recv(LONGEST))
        ended = subprocess.CompletedProcess(("kiln", *words), code, _read(output), _read(errors))
    if check:
        ended.check_returncode()
    return ended


def _read(file: IO[bytes]) -> str:
    file.seek(0)
    return file.read().decode("utf-8", "replace")


@functools.cache
def _forking_process() -> socket.socket:
    """Return the socket of the process that forks, which is started by the first command and ends with this one."""
    here, there = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
    argv = (sys.executable, "-m", "tests.warm", str(there.fileno()))
    process = subprocess.Popen(argv, cwd=ROOT, pass_fds=[there.fileno()])
    there.close()

    def end() -> None:
        here.shutdown(socket.SHUT_RDWR)  # the end for the other side, though a fork of this process may have a copy
        process.wait()

    atexit.register(end)
    return here


def answer_calls(calls: socket.socket) -> None:
    """Fork for each call until the other end is closed."""
    for module in pkgutil.walk_packages([str(ROOT / "kiln")], "kiln."):
        if not module.name.endswith("__main__"):
            importlib.import_module(module.name)
    gc.freeze()  # a fork would copy what the collector touches
    signal.signal(signal.SIGCHLD, signal.SIG_IGN)  # nobody waits for the processes in between
    while True:
        message, descriptors, _, _ = socket.recv_fds(calls, 1, NUMBERS)
        if not message:
            return
        if not os.fork():
            signal.signal(signal.SIGCHLD, signal.SIG_DFL)
            calls.close()
            _run_in_between(*descriptors)
        for descriptor in descriptors:
            os.close(descriptor)


def _run_in_between(text: int, answer: int, *streams: int) -> NoReturn:
    """Start the command as a child, and answer with its process number, then with its exit code."""
    child = os.fork()
    if not child:
        os.close(answer)
        with os.fdopen(text, "rb") as file:
            call = json.load(file)
        _run_command(call, streams)
    os.write(answer, str(child).encode())
    _, status = os.waitpid(child, 0)
    os.write(answer, str(os.waitstatus_to_exitcode(status)).encode())
    os._exit(0)


def _run_command(call: Mapping[str, Any], streams: tuple[int, ...]) -> NoReturn:
    """Run a command as its own process would, and leave as the forked one: what ends with the first process stays."""
    for number, descriptor in enumerate(streams):
        os.dup2(descriptor, number)
    for descriptor in set(streams):
        os.close(descriptor)
    os.environ.clear()
    os.environ.update(call["env"])
    os.chdir(call["cwd"])
    sys.argv = [str(ROOT / "kiln" / "__main__.py"), *call["words"]]
    code = 1
    try:
        main(call["words"])
    except SystemExit as end:
        code = end.code if isinstance(end.code, int) else 0 if end.code is None else 1
    except BaseException:  # noqa: BLE001 - as the interpreter at its end
        sys.excepthook(*sys.exc_info())
    atexit._run_exitfuncs()
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(code)


if __name__ == "__main__":
    answer_calls(socket.socket(fileno=int(sys.argv[1])))
