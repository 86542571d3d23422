"""Everything that the command line prints passes the mask for secrets."""

from __future__ import annotations

import io
import sys
from typing import TYPE_CHECKING

from kiln.base import masking
from kiln.base.secret_forms import MASKED
from kiln.cli.streams import FilteredStream, escaped_output, masked_output, print_masked_traceback, unescaped_stream

if TYPE_CHECKING:
    import pytest

SECRET = "correct-horse-battery-7"


def test_secrets_of_the_environment_and_of_arguments_are_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    monkeypatch.setattr(sys, "orig_argv", [])
    with masked_output({"MY_TOKEN": SECRET}, ["--from", "https://me:other-Secret-9@host/x"]):
        print(f"before {SECRET} after other-Secret-9")
        sys.stdout.writelines([SECRET, "\n"])
    assert stream.getvalue() == f"before {MASKED} after {MASKED}\n{MASKED}\n"
    assert sys.stdout is stream


def test_a_filtered_stream_is_otherwise_the_stream_below() -> None:
    stream = FilteredStream(io.StringIO("text"), str.upper)
    assert stream.write("abc") == 3
    assert stream.closed is False


def test_control_characters_are_escaped_except_for_views(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "stdout", stream := io.StringIO())
    with escaped_output():
        print("a\x1b[2Jb\u202ec")
        sys.stdout.writelines(["d\x1b[2Je"])
        assert unescaped_stream(sys.stdout) is stream
    assert "\x1b" not in stream.getvalue()
    assert "\u202e" not in stream.getvalue()


def test_a_traceback_is_masked(monkeypatch: pytest.MonkeyPatch) -> None:
    masking.register_secrets([SECRET])
    monkeypatch.setattr(sys, "stderr", stream := io.StringIO())
    error = RuntimeError(SECRET)
    print_masked_traceback(RuntimeError, error, None)
    assert "RuntimeError: " in stream.getvalue()
    assert SECRET not in stream.getvalue()
