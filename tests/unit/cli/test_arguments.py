"""Values of options are converted, and invalid ones refused."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.cli import arguments

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


CACHE, EXECUTOR, MIRROR = (
    arguments.parse_remote_cache_url,
    arguments.parse_remote_executor_url,
    arguments.parse_mirror_url,
)
Budget = arguments.Budget


@pytest.mark.parametrize(
    ("parse", "text", "value"),
    [
        *((arguments.parse_size, text, size) for text, size in (("16GB", 16 * 10**9), ("1.5 gb", 15 * 10**8))),
        *((arguments.parse_size, text, size) for text, size in (("500MiB", 500 << 20), ("42", 42), ("2T", 2 * 10**12))),
        *(
            (CACHE, url, url)
            for url in ("https://u:p@cache.example.org/tf", "http://10.0.0.1:8080", "grpcs://cache:9092")
        ),
        *(
            (EXECUTOR, url, url)
            for url in ("grpcs://u:p@executor.example.org:443/projects/one", "grpc://10.0.0.1:8980")
        ),
        *((parse, "", None) for parse in (CACHE, EXECUTOR)),
        (arguments.parse_positive_number, "64", 64),
        (arguments.parse_minutes_as_seconds, "1.5", 90),
        *((arguments.parse_budget, text, Budget(seconds=5400.0)) for text in ("90m", "1.5h", "1h30m")),
        (arguments.parse_budget, "45s", Budget(seconds=45.0)),
        (arguments.parse_budget, "1h 5min 2s", Budget(seconds=3902.0)),
        (arguments.parse_budget, "500 actions", Budget(actions=500)),
        (arguments.parse_budget, "1 action", Budget(actions=1)),
    ],
)
def test_a_text_is_converted(parse: Callable[[str], object], text: str, value: object) -> None:
    assert parse(text) == value


@pytest.mark.parametrize(
    ("parse", "words", "texts"),
    [
        (arguments.parse_size, "invalid size", ("", "GB", "-1GB", "1XB", "1e3")),
        (
            CACHE,
            "invalid URL of a remote cache",
            ("cache.example.org", "ftp://u:secret@cache", "https://", "http://a b"),
        ),
        (
            EXECUTOR,
            "invalid URL of a remote executor",
            ("executor", "https://u:secret@e", "grpcs://", "grpcs://a/b?secret"),
        ),
        (MIRROR, "invalid URL of a mirror", ("ftp://host/x", "https://user:secret@host/x", "host", "https://")),
        (arguments.parse_positive_number, "invalid number", ("0", "-1", "1.5", "many")),
        (arguments.parse_minutes_as_seconds, "invalid number of minutes 'soon'", ("soon",)),
        (
            arguments.parse_budget,
            "invalid budget",
            ("", "5", "0s", "0 actions", "h", "5h30", "-1h", "many actions", "1s1h"),
        ),
    ],
)
def test_an_invalid_text_is_refused_without_quoting_a_secret(
    parse: Callable[[str], object], words: str, texts: tuple[str, ...]
) -> None:
    for text in texts:
        with pytest.raises(UsageError, match=words) as error:
            parse(text)
        assert "secret" not in str(error.value)


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
