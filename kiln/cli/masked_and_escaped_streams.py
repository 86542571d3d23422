"""Output streams that mask secrets, and escape control characters, in everything that the command line prints."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from kiln import masking
from kiln.name_rules import escaped_for_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType


class MaskedStream:
    """A text stream that masks secrets in what is written to the stream below."""

    def __init__(self, below: IO[str]) -> None:
        self._below = below

    def write(self, text: str) -> int:
        """Write a text and return its length."""
        self._below.write(masking.current_mask().mask_secrets_only(text))
        return len(text)

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self._below, name)


class EscapingStream:
    """A text stream that escapes characters which could move, hide or reorder text on a terminal."""

    def __init__(self, stream: IO[str]) -> None:
        self.unchanged = stream

    def write(self, text: str) -> int:
        """Write text."""
        return self.unchanged.write(escaped_for_terminal(text))

    def __getattr__(self, name: str) -> Any:
        return getattr(self.unchanged, name)


def unescaped_stream(stream: IO[str]) -> IO[str]:
    """Return the stream below, for views that move the cursor and escape other programs' text themselves."""
    return cast("IO[str]", getattr(stream, "unchanged", stream))


@contextlib.contextmanager
def escaped_output() -> Iterator[None]:
    """Escape control characters in everything printed in the block; recipes, channels and builds are untrusted."""
    with _replaced_output(EscapingStream):
        yield


@contextlib.contextmanager
def masked_output(environment: Mapping[str, str], arguments: Sequence[str]) -> Iterator[None]:
    """Mask the secrets of an environment and of a command line in everything that the block prints."""
    masking.register_secrets(masking.secrets_of_environment(environment))
    masking.register_secrets(secret for word in arguments for secret in masking.secrets_in_urls(word))
    hide_command_line_secrets(sys.orig_argv)
    with _replaced_output(MaskedStream):
        yield


@contextlib.contextmanager
def _replaced_output(kind: Callable[[IO[str]], MaskedStream | EscapingStream]) -> Iterator[None]:
    """Put a stream of a kind before standard output and standard error, where they exist."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", stream and kind(stream)) for stream in streams)
    try:
        yield
    finally:
        sys.stdout, sys.stderr = streams


def hide_command_line_secrets(words: Sequence[str]) -> None:
    """Overwrite the credentials in this process's own command line, which every user of the machine can read.

    The kernel shows the memory of the words (proc_pid_cmdline(5)), which Python has already read.
    """
    hidden = [masking.masked(word) for word in words]
    if hidden == list(words):
        return
    original = b"".join(os.fsencode(word) + b"\0" for word in words)
    replacement = b"".join(os.fsencode(word) + b"\0" for word in hidden)
    with contextlib.suppress(OSError, ValueError, IndexError), Path("/proc/self/stat").open("rb") as status:
        start = int(status.read().rpartition(b")")[2].split()[45])  # arg_start, field 48
        with Path("/proc/self/mem").open("r+b", buffering=0) as memory:
            memory.seek(start)
            if memory.read(len(original)) == original:
                memory.seek(start)
                memory.write(replacement.ljust(len(original), b"\0")[: len(original)])


def print_masked_traceback(kind: type[BaseException], error: BaseException, where: TracebackType | None) -> None:
    """Print an unexpected exception with secrets masked; a `sys.excepthook`."""
    import traceback

    text = "".join(traceback.format_exception(kind, error, where))
    if sys.stderr is not None:
        sys.stderr.write(masking.masked(text))
