"""Values of options are converted, and invalid ones refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.cli import arguments

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16GB", 16 * 10**9), ("1.5 gb", 15 * 10**8), ("500MiB", 500 << 20), ("42", 42), ("2T", 2 * 10**12)],
)
def test_sizes_are_converted_to_bytes(text: str, expected: int) -> None:
    assert arguments.parse_size(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB", "1e3"])
def test_an_invalid_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="invalid size"):
        arguments.parse_size(text)


@pytest.mark.parametrize("url", ["https://u:p@cache.example.org/tf", "http://10.0.0.1:8080", "grpcs://cache:9092"])
def test_the_url_of_a_remote_cache_is_unchanged(url: str) -> None:
    assert arguments.parse_remote_cache_url(url) == url
    assert arguments.parse_remote_cache_url("") is arguments.parse_mirror_url("") is None


@pytest.mark.parametrize("url", ["cache.example.org", "ftp://u:secret@cache", "https://", "http://a b"])
def test_an_invalid_url_of_a_remote_cache_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(UsageError) as error:
        arguments.parse_remote_cache_url(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("url", ["grpcs://u:p@executor.example.org:443/projects/one", "grpc://10.0.0.1:8980"])
def test_the_url_of_a_remote_executor_is_unchanged(url: str) -> None:
    assert arguments.parse_remote_executor_url(url) == url
    assert arguments.parse_remote_executor_url("") is None


@pytest.mark.parametrize("url", ["executor", "https://u:secret@executor", "grpcs://", "grpcs://a/b?secret"])
def test_an_invalid_url_of_a_remote_executor_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(UsageError, match="invalid URL of a remote executor") as error:
        arguments.parse_remote_executor_url(url)
    assert "secret" not in str(error.value)


@pytest.mark.parametrize("text", ["0", "-1", "1.5", "many"])
def test_an_invalid_number_of_jobs_is_refused(text: str) -> None:
    assert arguments.parse_positive_number("64") == 64
    with pytest.raises(UsageError, match="invalid number"):
        arguments.parse_positive_number(text)


@pytest.mark.parametrize("url", ["ftp://host/x", "https://user:pass@host/x", "host", "https://"])
def test_an_invalid_mirror_is_refused_without_quoting_it(url: str) -> None:
    with pytest.raises(UsageError, match="invalid URL of a mirror") as error:
        arguments.parse_mirror_url(url)
    assert "pass" not in error.value.what


def test_minutes_are_converted_to_seconds() -> None:
    assert arguments.parse_minutes_as_seconds("1.5") == 90
    with pytest.raises(UsageError, match="invalid number of minutes 'soon'"):
        arguments.parse_minutes_as_seconds("soon")


def test_a_folder_must_exist_and_is_absolute(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    assert arguments.parse_existing_folder(str(tmp_path)) == tmp_path
    (tmp_path / "downloads").mkdir()
    monkeypatch.chdir(tmp_path)
    assert arguments.parse_existing_folder("downloads") == tmp_path / "downloads"
    with pytest.raises(UsageError, match="folder not found"):
        arguments.parse_existing_folder(str(tmp_path / "absent"))


def test_a_channel_in_a_folder_becomes_a_url(tmp_path: Path) -> None:
    assert arguments.parse_channel(str(tmp_path)) == tmp_path.as_uri()
    assert arguments.parse_channel("conda-forge") == "conda-forge"
    assert arguments.parse_channel("https://example.org/x") == "https://example.org/x"


@pytest.mark.parametrize("name", ["", " ", "/no/such/folder", "./nothing-here"])
def test_a_missing_channel_is_refused(name: str) -> None:
    with pytest.raises(UsageError, match="channel not found"):
        arguments.parse_channel(name)


def test_a_folder_that_is_made_later_may_be_missing_but_not_a_file(tmp_path: Path) -> None:
    assert arguments.parse_folder_path(str(tmp_path / "later")) == tmp_path / "later"
    (tmp_path / "file").touch()
    with pytest.raises(UsageError, match="not a folder"):
        arguments.parse_folder_path(str(tmp_path / "file"))


@pytest.mark.parametrize(
    ("text", "expected"),
    [
        ("5h30m", arguments.Budget(seconds=19_800.0)),
        ("90m", arguments.Budget(seconds=5400.0)),
        ("1.5h", arguments.Budget(seconds=5400.0)),
        ("45s", arguments.Budget(seconds=45.0)),
        ("1h 5min 2s", arguments.Budget(seconds=3902.0)),
        ("500 actions", arguments.Budget(actions=500)),
        ("1 action", arguments.Budget(actions=1)),
    ],
)
def test_a_budget_is_a_time_or_a_number_of_actions(text: str, expected: arguments.Budget) -> None:
    assert arguments.parse_budget(text) == expected


@pytest.mark.parametrize("text", ["", "5", "0s", "0 actions", "h", "5h30", "-1h", "many actions", "1s1h"])
def test_an_invalid_budget_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="invalid budget"):
        arguments.parse_budget(text)
