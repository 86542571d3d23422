"""Dataclasses are converted to JSON values and back, and invalid values are refused."""

from __future__ import annotations

import io
import json
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from enum import Enum
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.base import serialization
from kiln.base.serialization import from_json_values, to_json

if TYPE_CHECKING:
    from collections.abc import Mapping


class Color(Enum):
    RED = "red"


@dataclass(frozen=True, kw_only=True)
class Inner:
    name: str
    size: int = 0


@dataclass(frozen=True, kw_only=True)
class Outer:
    inner: Inner
    color: Color
    path: Path | None
    seconds: float
    items: tuple[Inner, ...] = ()
    pair: tuple[str, int] = ("a", 1)
    table: Mapping[str, tuple[str, ...]] | None = None
    extra: Any = None


NAMES = (Inner, Color)

VALUE = Outer(
    inner=Inner(name="n", size=3),
    color=Color.RED,
    path=Path("/x"),
    seconds=1.5,
    items=(Inner(name="a"), Inner(name="b")),
    pair=("z", 2),
    table={"k": ("1", "2")},
    extra={"free": [1, None]},
)


def test_a_value_is_the_same_after_a_round_trip() -> None:
    data = json.loads(json.dumps(to_json(VALUE)))
    assert data["color"] == "red"
    assert data["items"] == [{"name": "a", "size": 0}, {"name": "b", "size": 0}]
    assert from_json_values(Outer, data, NAMES) == VALUE


@pytest.mark.parametrize(
    "changes",
    [
        {"inner": {"name": 1}},
        {"inner": {"name": "n", "size": "3"}},
        {"inner": {"name": "n", "size": True}},
        {"inner": {"name": "n", "unknown": 1}},
        {"inner": {}},
        {"inner": []},
        {"color": "blue"},
        {"path": 3},
        {"seconds": "1"},
        {"seconds": False},
        {"items": "ab"},
        {"items": {}},
        {"pair": ["z"]},
        {"table": {"k": "12"}},
        {"unknown": 1},
    ],
)
def test_a_value_of_another_type_is_refused(changes: dict[str, Any]) -> None:
    with pytest.raises((TypeError, ValueError)):
        from_json_values(Outer, {**to_json(VALUE), **changes}, NAMES)


def test_defaults_fill_missing_fields_and_whole_numbers_are_floats() -> None:
    value = from_json_values(Outer, {"inner": {"name": "n"}, "color": "red", "path": None, "seconds": 2}, NAMES)
    assert value == Outer(inner=Inner(name="n"), color=Color.RED, path=None, seconds=2.0)
    assert isinstance(value.seconds, float)


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
