"""An engine's messages decide the error that is raised."""

from __future__ import annotations

import pytest

from kiln.base.errors import BuildFailed, DiskFull, DownloadFailed, HashMismatch, KilnError, SolveFailed, TestsFailed
from kiln.build.engine.failures import (
    ABSENT,
    NETWORK,
    classify_failure,
    is_permanent_download_failure,
    readable_engine_message,
)


@pytest.mark.parametrize(
    ("reason", "tail", "error"),
    [
        ("Script failed with status 2", "gcc: error", BuildFailed),
        ("Script failed with status 2", "cp: No space left on device", DiskFull),
        ("IO error: No space left on device (os error 28)", "", DiskFull),
        ("error sending request for url (https://c/noarch/repodata.json)", "", DownloadFailed),
        ("Script failed with status 1", "curl: connection refused", BuildFailed),
        ("PyRattlerBuildError: Failed to resolve dependencies", "Specs: nosuch", SolveFailed),
        ("PyRattlerBuildError: Failed to resolve dependencies", "Retry attempt #2. Sleeping 3 s", DownloadFailed),
        ("PyRattlerBuildError: Failed to download from URL: Request failed after 3 retries", "", DownloadFailed),
        ("PyRattlerBuildError: Script failed to execute", "Retry attempt #2", BuildFailed),
        ('PyRattlerBuildError: sha256 checksum validation failed for "/x/v1.tar.gz"', "", HashMismatch),
        (
            "Failed to download from URL",
            "Failed to fetch from file:///x: sha256 checksum validation failed",
            HashMismatch,
        ),
        ("Script failed with status 1", "sha256 checksum validation failed", BuildFailed),
        ("failed package content tests: No match for lib glob", "", TestsFailed),
        ("Cannot solve the request because of: No candidates were found for x", "", SolveFailed),
    ],
)
def test_a_failure_has_its_classify_failure(reason: str, tail: str, error: type[KilnError]) -> None:
    assert classify_failure(reason, tail).error is error


@pytest.mark.parametrize(
    ("reason", "tail", "said"),
    [
        (
            "PyRattlerBuildError: Script failed to execute",
            "no luck\nScript failed with status 3",
            "its script ended with exit code 3",
        ),
        ("PyRattlerBuildError: Script failed to execute", "killed", "Script failed to execute"),
        ("PyRattlerBuildError: Failed to resolve dependencies", "", "Failed to resolve dependencies"),
        ("the engine ended with exit code -9", "", "the engine ended with exit code -9"),
    ],
)
def test_an_engines_message_is_shown_without_its_exceptions_name(reason: str, tail: str, said: str) -> None:
    assert readable_engine_message(reason, tail) == said


@pytest.mark.parametrize(
    ("messages", "final"),
    [
        ("Failed to fetch from u: HTTP status client error (404 Not Found) for url (u)", True),
        ("Failed to fetch from u: HTTP status client error (403 Forbidden) for url (u)", True),
        ("Failed to fetch from u: HTTP status client error (429 Too Many Requests) for url (u)", False),
        ("Failed to fetch from u: HTTP status client error (408 Request Timeout) for url (u)", False),
        ("Failed to fetch from u: HTTP status server error (503 Service Unavailable) for url (u)", False),
        ("Failed to fetch from a: HTTP status client error (404 Not Found)\nFailed to fetch from b: dns error", False),
        ("Script failed with status 404", False),
        ("", False),
    ],
)
def test_an_answer_that_would_not_change_is_told_from_a_fault_that_may_pass(messages: str, final: bool) -> None:
    assert is_permanent_download_failure(messages) == final
    if messages.startswith("Failed"):
        assert classify_failure(messages, "") is (ABSENT if final else NETWORK)


def test_missing_license_files_are_a_fault_of_the_recipe_that_is_named() -> None:
    assert "about/license_file" in classify_failure("PyRattlerBuildError: No license files were copied", "").hint
    assert classify_failure("Script failed with status 2", "No license files were copied").hint == ""
