"""What is written on the command line is read, and what is nothing of the kind is refused."""

from __future__ import annotations

import pytest

from kiln.cli import wishes
from kiln.errors import UsageError


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("-C", "/f", "build", "--all"), "kiln -C /f build --all"),
        (
            ("--called", "build-locally.py", "-C", "/f", "build", "--python", "/p/python", "--filter", "*a b*"),
            "build-locally.py --filter '*a b*'",
        ),
        (("--called", "build-locally.py", "-C", "/f", "build", "--python", "/p"), "build-locally.py"),
    ],
)
def test_a_run_remembers_its_command_as_it_was_typed(words: tuple[str, ...], expected: str) -> None:
    assert wishes.typed(words) == expected


@pytest.mark.parametrize(
    ("text", "expected"),
    [("16GB", 16 * 10**9), ("1.5 gb", 15 * 10**8), ("500MiB", 500 << 20), ("42", 42), ("2T", 2 * 10**12)],
)
def test_sizes_are_read(text: str, expected: int) -> None:
    assert wishes.size(text) == expected


@pytest.mark.parametrize("text", ["", "GB", "-1GB", "1XB", "1e3"])
def test_what_is_no_size_is_refused(text: str) -> None:
    with pytest.raises(UsageError, match="is no size"):
        wishes.size(text)


@pytest.mark.parametrize("url", ["https://u:p@cache.example.org/tf", "http://10.0.0.1:8080", "grpcs://cache:9092"])
def test_the_address_of_a_remote_cache_is_taken_as_it_is(url: str) -> None:
    assert wishes.remote_cache(url) == url
    assert wishes.remote_cache("") is None


@pytest.mark.parametrize("url", ["cache.example.org", "ftp://u:secret@cache", "https://", "http://a b"])
def test_what_is_no_address_of_a_cache_is_refused_without_a_word_of_it(url: str) -> None:
    with pytest.raises(UsageError) as told:
        wishes.remote_cache(url)
    assert "secret" not in str(told.value)
