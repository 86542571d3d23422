"""Untrusted output is escaped and fits into a line."""

from __future__ import annotations

import io
import re

import pytest
from hypothesis import given
from hypothesis import strategies as st
from rich.cells import cell_len

from kiln.base.text import (
    CommandStepsView,
    count_text,
    elapsed_text,
    fit_to_width,
    hanging_indent_lines,
    table,
    unindented_terminal_line,
    wrapped_lines,
)


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
    assert unindented_terminal_line(line) == text


@given(st.text())
def test_no_line_controls_the_terminal(line: str) -> None:
    text = unindented_terminal_line(line)
    assert not any(ord(letter) < 32 or 0x7F <= ord(letter) < 0xA0 for letter in text)
    text.encode()


def test_a_long_line_is_cut() -> None:
    assert len(unindented_terminal_line("x" * 10_000_000)) <= 4096


@given(st.text().map(unindented_terminal_line), st.integers(min_value=0, max_value=60))
def test_text_fits_exactly_with_wide_characters(text: str, width: int) -> None:
    assert cell_len(fit_to_width(text, width)) == width


def test_a_cut_is_marked() -> None:
    assert fit_to_width("日本語のログ", 6) == "日本 …"


@pytest.mark.parametrize(("seconds", "text"), [(-1, "0:00"), (7.9, "0:07"), (725, "12:05"), (11525, "3:12:05")])
def test_a_clock_counts(seconds: float, text: str) -> None:
    assert elapsed_text(seconds) == text


def test_one_thing_is_singular() -> None:
    assert [count_text(number, "config") for number in (0, 1, 2, 1200)] == [
        "0 configs",
        "1 config",
        "2 configs",
        "1,200 configs",
    ]


ROWS = [
    ("libtensorflow_framework", "2.21.0", "cpu_py311h1e30c0c_0", "196 MB", "48.5 s", "11 passed", "34.5 s"),
    ("a", "1", "0", "3 kB", "cached", "", ""),
]

TITLES = ("package", "version", "build string", "size", "built", "tests", "tested")


@pytest.mark.parametrize("width", range(70, 92))
def test_a_table_keeps_to_the_terminals_width_and_loses_no_text(width: int) -> None:
    lines = table(TITLES, ROWS, right=(3,), width=width).splitlines()
    assert max(map(len, lines)) <= width
    edges = [match.span() for match in re.finditer("-+", lines[1])]
    first = [line for line in lines[2:] if not line.startswith("a ")]
    assert tuple("".join(line[start:end].strip() for line in first) for start, end in edges) == ROWS[0]
    assert lines[-1].split() == ["a", "1", "0", "3", "kB", "cached"]


def test_a_table_that_cannot_fit_is_left_to_the_terminal() -> None:
    assert table(TITLES, ROWS, width=30) == table(TITLES, ROWS)


@pytest.mark.parametrize(
    ("text", "lines"),
    [
        ("", [""]),
        ("abc", ["abc"]),
        ("libtensorflow_framework", ["libtensorflow_", "framework"]),
        ("one two three four", ["one two three", "four"]),
        ("x" * 33, ["x" * 15, "x" * 15, "xxx"]),
    ],
)
def test_text_is_broken_where_a_reader_would(text: str, lines: list[str]) -> None:
    assert wrapped_lines(text, 15) == lines


def test_a_line_is_folded_under_its_own_indentation() -> None:
    line = "    host  " + " ".join(["numpy"] * 8)
    assert hanging_indent_lines(line, 30) == [
        "    host  numpy numpy numpy",
        "      numpy numpy numpy numpy",
        "      numpy",
    ]
    assert hanging_indent_lines(line, None) == hanging_indent_lines(line, 200) == [line]
    assert hanging_indent_lines("        x " * 3, 12) == ["        x " * 3]  # there is no room


def test_a_step_is_printed_before_it_runs_and_timed_after() -> None:
    stream = io.StringIO()
    steps = CommandStepsView(stream, animated=False)
    with steps.step("pack it") as step:
        assert stream.getvalue() == "- pack it\n"
        step.note("two files")
    lines = stream.getvalue().splitlines()
    assert lines[1].split()[0] == "done"
    assert lines[2].strip() == "two files"


def test_a_failed_step_is_printed_and_raises() -> None:
    steps = CommandStepsView(stream := io.StringIO(), animated=False)
    with pytest.raises(RuntimeError, match="no"), steps.step("pack it"):
        raise RuntimeError("no")
    assert "failed" in stream.getvalue()


def test_a_terminal_sees_no_markup_of_untrusted_output() -> None:
    steps = CommandStepsView(stream := io.StringIO(), animated=True)
    with steps.step("pack it [bold]") as step:
        step.show_output_line("[/nonsense] \x1b[31m")
    assert "pack it [bold]" in stream.getvalue()


def test_without_color_a_terminal_sees_signs_alone() -> None:
    steps = CommandStepsView(stream := io.StringIO(), animated=True, color=False)
    with steps.step("pack it"):
        pass
    assert "✓ pack it" in stream.getvalue()
    assert "[32m" not in stream.getvalue()
