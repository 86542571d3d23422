"""The entry point of ``kiln`` and ``python -m kiln``: the only maker of exit codes."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Sequence


def main(arguments: Sequence[str] | None = None) -> None:
    """Run one command and leave the process with its exit code."""
    if sys.version_info < (3, 10):  # noqa: UP036 - the environment has a newer one; somebody took another Python
        sys.exit("error: kiln needs Python 3.10 or newer\n  try: .venv/bin/python -m kiln")
    from kiln.cli import run

    code = run(sys.argv[1:] if arguments is None else arguments)
    leave(code)


def leave(code: int) -> None:
    """End the process; past a loaded py-rattler without the interpreter's own tear-down.

    Its runtime threads were seen to crash there after all work was done, which would turn a success into a failure.
    """
    for stream in filter(None, (sys.stdout, sys.stderr)):  # None when closed by whoever called
        try:
            stream.flush()
        except BrokenPipeError:
            code = code or 1
    if {"rattler", "rattler_build"} & sys.modules.keys():
        os._exit(code)
    sys.exit(code)


if __name__ == "__main__":
    main()
