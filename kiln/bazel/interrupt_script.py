"""Stop the Bazel of a script in time: the shell lines that wait for a file, and then interrupt Bazel's client.

They run wherever the script runs, on a host or in a container of its own, so nothing else needs to reach into it. An
interrupted client has its server end the running actions and keep the finished ones; the script's own ``shutdown`` is
not interrupted. Source: https://bazel.build/run/scripts, on Ctrl-C and exit code 8.
"""

from __future__ import annotations

import shlex
from pathlib import Path

NAME = "stop"  # of the file, in the config's folder

# A process of its own, in no job table: a script's `wait` does not wait for it, and it holds none of its files open.
# The fields of a process's stat after its name are its state and its parent; a name may contain anything.
_LINES = Path(__file__).with_name("interrupt.sh.in")


def interrupt_bazel_lines(file: Path) -> str:
    """Return the lines, for the beginning of a script in bash."""
    return _LINES.read_text(encoding="utf-8").format(file=shlex.quote(str(file)))
