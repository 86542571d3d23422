"""The entry point of ``kiln`` and ``python -m kiln``, which sets the exit code."""

from __future__ import annotations

import gc
import io
import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


# Objects between two searches for reference cycles: what a command imports and reads has nearly none, and with Python's
# 700 the searches take up to a twentieth of its time. For the cycles of 50,000 objects there is memory.
COLLECTED_AFTER = (50_000, 20, 20)


def main(arguments: Sequence[str] | None = None) -> None:
    """Run a command and exit with its code."""
    if sys.version_info < (3, 10):  # noqa: UP036 - the user may run another Python than the environment's
        sys.exit("error: kiln needs Python 3.10 or newer\n  try: .venv/bin/python -m kiln")
    if sys.platform == "win32":
        sys.stderr.write("error: kiln runs on Linux and macOS: on Windows, run it in WSL (wsl --install)\n")
        sys.exit(33)  # UnsupportedPlatform's; kiln's own modules cannot be imported there
    gc.set_threshold(*COLLECTED_AFTER)
    if "_ARGCOMPLETE" in os.environ:  # a shell requests completions, see kiln.cli.completion
        from kiln.cli.completion import answer_completion_request

        answer_completion_request()
    open_closed_streams()
    for stream in (sys.stdout, sys.stderr):
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")  # of signs that the locale's encoding lacks
    from kiln.base.system import user
    from kiln.cli.main import run
    from kiln.cli.streams import print_masked_traceback

    sys.excepthook = print_masked_traceback
    user.add_missing_home_variables()
    code = run(sys.argv[1:] if arguments is None else arguments)
    flush_and_exit(code)


def open_closed_streams() -> None:
    """Lead standard streams that the caller has closed to nowhere: their numbers would be those of other files."""
    for number, name, mode in ((0, "stdin", "r"), (1, "stdout", "w"), (2, "stderr", "w")):
        try:
            os.fstat(number)
        except OSError:
            os.open(os.devnull, os.O_RDWR)  # which gets the lowest number that is free
        if getattr(sys, name) is None:
            setattr(sys, name, open(number, mode, encoding="utf-8", closefd=False))  # noqa: SIM115


def flush_and_exit(code: int) -> None:
    """Exit the process; if py-rattler is loaded, skip the interpreter's shutdown.

    Its runtime threads sometimes crash during shutdown, which would turn a success into a failure.
    """
    try:
        sys.stdout.flush()
        sys.stderr.flush()
    except OSError:  # the reader has gone: the interpreter's shutdown would say so, and exit with 120
        os._exit(code)
    if {"rattler", "rattler_build"} & sys.modules.keys():
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
