"""A download is tried again where that may help, and only there."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kiln.builder.engine_calls import ATTEMPTS, persistent
from kiln.errors import DownloadFailed
from kiln.job.messages import StepReporter

if TYPE_CHECKING:
    from collections.abc import Iterator

    import pytest


def outcome(monkeypatch: pytest.MonkeyPatch, *errors: str) -> int:
    """Return how often a function was called that fails with the errors, one after another, and then succeeds."""
    monkeypatch.setattr(time, "sleep", lambda _: None)
    remaining: Iterator[str] = iter(errors)
    calls = []

    def do() -> None:
        calls.append(1)
        if why := next(remaining, ""):
            raise DownloadFailed("a could not be built", why=why)

    with StepReporter().step("build") as display:
        try:
            persistent(do, display)
        except DownloadFailed:
            return -len(calls)
    return len(calls)


def test_a_fault_that_may_pass_is_tried_again(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(monkeypatch, "error sending request for url (u)") == 2
    assert outcome(monkeypatch, *["connection reset"] * ATTEMPTS) == -ATTEMPTS


def test_a_file_that_the_server_lacks_is_asked_for_once(monkeypatch: pytest.MonkeyPatch) -> None:
    assert outcome(monkeypatch, "Failed to fetch from u: HTTP status client error (404 Not Found) for url (u)") == -1
