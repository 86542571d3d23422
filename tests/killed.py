"""Work killed at each of its steps: every change of files below a folder is one, and `kill -9` comes just before it.

    python -m tests.killed MODULE FUNCTION FOLDER COPIES

calls FUNCTION(folder) on a fresh copy of FOLDER for each step, below COPIES/1, COPIES/2, ..., each in a process of its
own that is killed before its step of that number; the last copy is the one where nothing was left to kill. It prints
the steps, one a line. No code is changed for this: Python's audit events report each change before it is made.
"""

from __future__ import annotations

import functools
import importlib
import os
import shutil
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable

CHANGES = frozenset({"os.rename", "os.link", "os.symlink", "os.remove", "os.mkdir", "os.rmdir", "os.truncate"})
WRITING = os.O_WRONLY | os.O_RDWR | os.O_CREAT


def main(module: str, function: str, folder: str, copies: str) -> None:
    work = getattr(importlib.import_module(module), function)
    importlib.import_module("rattler")  # once, before the processes part
    number = 0
    exit_code = -signal.SIGKILL
    while exit_code == -signal.SIGKILL:
        number += 1
        copy = Path(copies) / str(number)
        shutil.copytree(folder, copy, symlinks=True)
        exit_code = run(functools.partial(work, copy), copy, number)
    sys.exit(0 if exit_code == 0 else f"step {number} ended with {exit_code}")


def run(work: Callable[[], object], folder: Path, fatal: int) -> int:
    """Do the work in a process of its own and return how it ended."""
    sys.stdout.flush()
    child = os.fork()
    if child == 0:
        try:
            kill_before(fatal, str(folder))
            work()
        except BaseException:  # noqa: BLE001 - the copy of the parent must not go on
            sys.excepthook(*sys.exc_info())
            os._exit(1)
        os._exit(0)
    _, status = os.waitpid(child, 0)
    return os.waitstatus_to_exitcode(status)


def kill_before(fatal: int, folder: str) -> None:
    """Have this process end just before a change of a file below a folder, the fatal-th."""
    count_of_changes = 0

    def count(event: str, args: tuple[object, ...]) -> None:
        nonlocal count_of_changes
        if not (event in CHANGES or (event == "open" and isinstance(args[2], int) and args[2] & WRITING)):
            return
        if not any(isinstance(arg, (str, os.PathLike)) and os.fspath(arg).startswith(folder) for arg in args[:2]):
            return
        count_of_changes += 1
        if count_of_changes == fatal:
            os.write(1, f"{event} {args[0]}\n".encode())
            os.kill(os.getpid(), signal.SIGKILL)

    sys.addaudithook(count)


if __name__ == "__main__":
    main(*sys.argv[1:])
