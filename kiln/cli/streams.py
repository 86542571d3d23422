"""Output streams that mask secrets, and escape control characters, in everything that the command line prints."""

from __future__ import annotations

import contextlib
import os
import sys
from pathlib import Path
from typing import IO, TYPE_CHECKING, Any, TextIO, cast

from kiln.base import masking, secret_forms
from kiln.base.patterns import escaped_for_terminal

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
    from types import TracebackType


class FilteredStream:
    """A text stream that passes all text through a function before it reaches the stream ``below``."""

    def __init__(self, below: IO[str], change: Callable[[str], str]) -> None:
        self.below, self.change = below, change

    def write(self, text: str) -> int:
        """Write a text and return its length."""
        with self._named():
            self.below.write(self.change(text))
        return len(text)

    def flush(self) -> None:
        """Write what is buffered."""
        with self._named():
            self.below.flush()

    @contextlib.contextmanager
    def _named(self) -> Iterator[None]:
        """Name the stream in an error: it is not the disk of the working folder that is full."""
        try:
            yield
        except OSError as error:
            error.filename = error.filename or self.below.name
            raise

    def writelines(self, lines: Iterable[str]) -> None:
        """Write several texts."""
        for line in lines:
            self.write(line)

    def __getattr__(self, name: str) -> Any:
        return getattr(self.below, name)


def unescaped_stream(stream: IO[str]) -> IO[str]:
    """Return the stream below, for views that move the cursor and escape other programs' text themselves."""
    is_escaping = getattr(stream, "change", None) is escaped_for_terminal
    return cast("FilteredStream", stream).below if is_escaping else stream


@contextlib.contextmanager
def escaped_output() -> Iterator[None]:
    """Escape control characters in everything printed in the block; recipes, channels and builds are untrusted."""
    with _filtered_output(escaped_for_terminal):
        yield


@contextlib.contextmanager
def masked_output(environment: Mapping[str, str], arguments: Sequence[str]) -> Iterator[None]:
    """Mask the secrets of an environment and of a command line in everything that the block prints."""
    masking.register_secrets(masking.secrets_of_environment(environment))
    masking.register_secrets(secret for word in arguments for secret in secret_forms.secrets_in_urls(word))
    hide_command_line_secrets(sys.orig_argv)
    with _filtered_output(lambda text: masking.current_mask().mask_secrets_only(text)):
        yield


@contextlib.contextmanager
def _filtered_output(change: Callable[[str], str]) -> Iterator[None]:
    """Pass all text through a function before standard output and standard error, where they exist."""
    streams = sys.stdout, sys.stderr
    sys.stdout, sys.stderr = (cast("TextIO", stream and FilteredStream(stream, change)) for stream in streams)
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
