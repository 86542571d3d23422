"""Untrusted output is escaped and fits into a line."""

from __future__ import annotations

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kiln.console.text import clock, fit, one_line, quantity


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("\x1b[31mred\x1b[0m and \x1b]0;title\x07plain", "red and plain"),
        ("\x1b[2J\x1b[1;1Hgone", "gone"),
        ("\x1bPq#0;2;0;0;0\x1b\\after a picture", "after a picture"),
        ("10 %\r 55 %\r100 %\r", "100 %"),
        ("a\tb", "a    b"),
        ("user\u202egnp.exe", "usergnp.exe"),
        ("bell\x07 and\x9b31m C1", "bell and31m C1"),
        ("lone \udc80 byte", "lone \ufffd byte"),
        ("  \r\n", ""),
    ],
)
def test_escapes_and_hidden_characters_are_removed(line: str, text: str) -> None:
    assert one_line(line) == text


@given(st.text())
def test_no_line_controls_the_terminal(line: str) -> None:
    text = one_line(line)
    assert not any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 for letter in text)
    text.encode()


def test_a_long_line_is_cut() -> None:
    assert len(one_line("x" * 10_000_000)) <= 4096


@given(st.text().map(one_line), st.integers(min_value=0, max_value=60))
def test_text_fits_exactly_with_wide_characters(text: str, width: int) -> None:
    assert cell_len(fit(text, width)) == width


def test_a_cut_is_marked() -> None:
    assert fit("日本語のログ", 6) == "日本 …"


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0:00"), (7.9, "0:07"), (725, "12:05"), (11525, "3:12:05")])
def test_a_clock_counts(seconds: float, text: str) -> None:
    assert clock(seconds) == text


def test_one_thing_is_singular() -> None:
    assert [quantity(number, "config") for number in (0, 1, 2, 1200)] == [
        "0 configs",
        "1 config",
        "2 configs",
        "1,200 configs",
    ]
