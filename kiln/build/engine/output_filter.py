"""Run a recipe's script for the engine, and pass its output on as text that the engine can read.

The engine stops reading at the first byte that is not UTF-8: the script then waits for ever once the pipe is full, and
what it says later is lost. It keeps whole lines in memory, and waits for every process that has the pipe open. So its
shell is this program: ``python script_output_filter.py SHELL WORD...`` starts the shell and writes what comes, with
other bytes replaced. A long line goes through the engine in parts, each with a mark at its end; `joined_parts`
undoes that, so that masking and people see the line as it was.

It runs by its path, with the standard library alone: a script starts in 20 ms.
"""

from __future__ import annotations

import codecs
import math
import os
import select
import subprocess
import sys
import time
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

PART = 1 << 13  # characters of a line that the engine gets at once
# Invisible characters that no program prints in this order: at the end of a part, and after a quote at a line's end,
# since the engine takes off the quotes around a line, and ends with a panic at one that is a single quote.
CONTINUED, QUOTED = "\u2060\u2063\u2060", "\u2060\u2064\u2060"
_CHUNK = 1 << 20  # bytes: the largest pipe of an ordinary user
# The lines around a script's output, which say when its time begins and ends.
BEGUN, ENDED = "the script begins", "the script ended after"
_AFTER_END = 1.0  # seconds in which the output of processes that a script leaves behind is still read


class LineParts:
    """Divides output into lines that the engine can read: UTF-8, of a bounded length."""

    def __init__(self) -> None:
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._rest = ""

    def feed(self, chunk: bytes, *, final: bool = False) -> str:
        """Return what of the output so far can be passed on; the ``final`` call ends the last line."""
        *lines, self._rest = (self._rest + self._decoder.decode(chunk, final)).split("\n")
        if final and self._rest:
            lines, self._rest = [*lines, self._rest], ""
        text = "".join(f"{_divided(line)}\n" for line in lines).replace('"\n', f'"{QUOTED}\n')
        whole = max(len(self._rest) - 1, 0) // PART * PART  # something is left, for the end of the line
        text += "".join(f"{self._rest[at : at + PART]}{CONTINUED}\n" for at in range(0, whole, PART))
        self._rest = self._rest[whole:]
        return text


def _divided(line: str) -> str:
    if len(line) <= PART:
        return line
    return f"{CONTINUED}\n".join(line[at : at + PART] for at in range(0, len(line), PART))


def joined_parts(text: str) -> str:
    """Return lines that end in line breaks with the parts of a long line joined again."""
    return text.replace(f"{CONTINUED}\n", "").replace(f"{QUOTED}\n", "\n")


def main(words: list[str]) -> int:
    """Run the shell to its end, and return its exit code; one that a signal ended has the code that shells give it."""
    start = time.monotonic()
    _write(f"{BEGUN}\n")
    process = subprocess.Popen(words, stdout=subprocess.PIPE, stderr=subprocess.STDOUT)
    assert process.stdout is not None, "a pipe was requested"
    parts = LineParts()
    for chunk in _chunks(process, process.stdout.fileno()):
        _write(parts.feed(chunk))
    _write(parts.feed(b"", final=True))
    code = process.wait()
    if code == 0:  # the last words of a script that fails are its own
        _write(f"{ENDED} {time.monotonic() - start:.1f} s\n")
    return code if code >= 0 else 128 - code


def _chunks(process: subprocess.Popen[bytes], pipe: int) -> Iterator[bytes]:
    """Yield the output until it ends, or until the shell has ended and those who keep it open had their time."""
    until = math.inf
    while time.monotonic() < until:
        if until == math.inf and process.poll() is not None:  # before the read, which so takes all that it has written
            until = time.monotonic() + _AFTER_END
        if select.select([pipe], [], [], 0.1)[0]:
            if not (chunk := os.read(pipe, _CHUNK)):
                return
            yield chunk


def _write(text: str) -> None:
    data = text.encode()
    while data:
        data = data[os.write(1, data) :]


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
