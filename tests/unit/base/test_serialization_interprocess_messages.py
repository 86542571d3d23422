"""Messages between processes are JSON objects, one a line."""

from __future__ import annotations

import io
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.base import serialization

VALUES = st.recursive(st.none() | st.booleans() | st.integers() | st.text(), st.lists, max_leaves=5)


@given(st.dictionaries(st.text(), VALUES))
def test_a_message_is_one_line_and_is_decoded_as_it_was(message: dict[str, Any]) -> None:
    line = serialization.encode(message)
    assert line.splitlines() == [line]
    assert serialization.decode(line) == message
    assert serialization.decode(line.encode()) == message


@pytest.mark.parametrize("line", ["", "gcc -c a.c", "[1]", '"text"', "{", "null", b"\xff"])
def test_other_lines_are_not_messages(line: str | bytes) -> None:
    assert serialization.decode(line) is None


def test_lines_of_several_threads_are_whole() -> None:
    stream = io.StringIO()
    lines = [f"{number:03d} " + "x" * 500 for number in range(200)]
    with ThreadPoolExecutor(8) as pool:
        list(pool.map(lambda line: serialization.write_line(stream, line), lines))
    assert sorted(stream.getvalue().splitlines()) == lines
