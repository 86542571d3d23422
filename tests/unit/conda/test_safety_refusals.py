"""A failure of the installer becomes the error that says what to do."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.base.errors import BrokenPackage, DownloadFailed, HashMismatch, LimitExceeded
from kiln.conda.safety import installation_error, too_large_package_error, unsafe_package_error

if TYPE_CHECKING:
    from pathlib import Path

    from rattler import RepoDataRecord


@dataclass(frozen=True, kw_only=True)
class Record:
    """The fields of a record that messages use."""

    url: str
    file_name: str = "app-1-0.conda"
    channel: str = "https://host/channel"
    sha256: bytes = bytes.fromhex("ab" * 32)
    md5: bytes | None = None
    size: int | None = None


def record(**fields: Any) -> RepoDataRecord:
    return cast("RepoDataRecord", Record(**{"url": "https://host/channel/noarch/app-1-0.conda", **fields}))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("failed to fetch app-1-0.conda\nCaused by: connection refused", DownloadFailed),
        ("failed to fetch app-1-0.conda\nCaused by: invalid zip archive", BrokenPackage),
        (
            f"failed to fetch app-1-0.conda\nhash mismatch of it, expected {'ab' * 32}, got {'cd' * 32}",
            HashMismatch,
        ),
        ("failed to link app-1-0.conda\nCaused by: no such file", BrokenPackage),
    ],
)
def test_each_failure_of_the_installer_has_its_error(text: str, kind: type[Exception]) -> None:
    error = installation_error(Exception(text), [record()])
    assert type(error) is kind
    assert "app-1-0.conda" in error.what


def test_a_damaged_package_in_a_folder_is_not_a_failure_of_the_network(tmp_path: Path) -> None:
    file = tmp_path / "app-1-0.conda"
    file.write_text("half")
    error = installation_error(Exception("failed to fetch app-1-0.conda"), [record(url=file.as_uri())])
    assert type(error) is BrokenPackage


def test_a_download_beyond_the_size_in_the_index_is_another_package_and_else_beyond_the_limit() -> None:
    assert type(too_large_package_error(record(size=1000), 1000)) is HashMismatch
    error = too_large_package_error(record(), 10**6)
    assert type(error) is LimitExceeded
    assert "KILN_LIMITS='package=2MB'" in error.hint


def test_a_message_lists_the_first_paths_and_counts_the_others() -> None:
    error = unsafe_package_error("app", [f"../{number}" for number in range(8)])
    assert "'../4' and 3 more" in error.why
    assert "../5" not in error.why
