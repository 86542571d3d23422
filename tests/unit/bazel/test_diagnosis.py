"""Every row of the table of causes finds its own examples, and nothing else does."""

from __future__ import annotations

import pytest

from kiln.bazel import diagnose, rows
from kiln.errors import DiskFull, KilnError, OutOfMemory

EXAMPLES = [(row.cause, example) for row in rows() for example in row.examples]


@pytest.mark.parametrize(("cause", "example"), EXAMPLES)
def test_an_example_is_known_by_its_own_row(cause: str, example: str) -> None:
    found = diagnose(f"INFO: Analyzed target //:wheel\n{example}\nFAILED: Build did NOT complete successfully")
    assert found is not None
    assert found.cause == cause


def test_a_row_says_what_to_try_and_where_it_is_from() -> None:
    assert all(row.hint and row.source and row.examples and issubclass(row.error, KilnError) for row in rows())
    assert len({row.cause for row in rows()}) == len(rows())


def test_memory_and_disk_are_told_by_errors_of_their_own() -> None:
    assert [getattr(diagnose(text), "error", None) for text in ("std::bad_alloc", "No space left on device")] == [
        OutOfMemory,
        DiskFull,
    ]


@pytest.mark.parametrize("text", ["", "bad.cc:1:21: error: 'nothing' was not declared in this scope", "killed time"])
def test_an_ordinary_error_has_no_known_cause(text: str) -> None:
    assert diagnose(text) is None
