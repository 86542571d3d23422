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
    DownloadPace,
    count_text,
    elapsed_text,
    fit_to_width,
    hanging_indent_lines,
    received_text,
    table,
    table_with_whole_names,
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


@pytest.mark.parametrize("width", range(30, 92))
def test_the_rule_of_a_table_is_as_long_as_its_titles(width: int) -> None:
    rule = table_with_whole_names(TITLES, ROWS, right=(3,), width=width).splitlines()[1].split()
    assert all(len(part) >= len(title) for part, title in zip(rule, TITLES, strict=True))


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


@pytest.mark.parametrize(
    ("done", "total", "left", "text"),
    [
        (0, 614_000_000, None, "0 B of 614 MB"),
        (120_000_000, 600_000_000, 40.0, "120 MB of 600 MB, 12 MB/s, about 40 s left"),
        (120_000_000, 600_000_000, 400.0, "120 MB of 600 MB, 1.2 MB/s, about 6 min 40 s left"),
        (600_000_000, 600_000_000, 0.0, "600 MB of 600 MB"),
        (7_000_000, None, None, "7.0 MB"),
        (1, 10**14, 5e-324, "1 B of 100 TB, about 1 s left"),
    ],
)
def test_a_download_is_told_by_what_is_known_of_it(done: int, total: int | None, left: float | None, text: str) -> None:
    assert received_text(done, total, left) == text


def test_a_download_is_reported_now_and_then_by_its_recent_rate(monkeypatch: pytest.MonkeyPatch) -> None:
    told: list[tuple[int, int | None, float | None]] = []
    pace, clock = DownloadPace(lambda *report: told.append(report)), [0.0]
    monkeypatch.setattr("kiln.base.text.time.monotonic", lambda: clock[0])
    for tenth in range(21):  # the first second is fast, from a cache
        clock[0] = tenth / 10
        pace.received(tenth * 100 if tenth < 11 else 1000 + (tenth - 10) * 10, 2000)
    assert [(done, left and round(left, 3)) for done, _, left in told] == [
        (0, None),
        (500, 1.5),
        (1000, 1.0),
        (1050, 1.357),
        (1100, 1.636),
    ]
    for second in range(3, 60):
        clock[0] = float(second)
        pace.received(1100 + second, 2000)
    assert told[-1][2] == 841.0, "what was fast half a minute ago is forgotten"
    pace.received(2000, 2000)
    pace.received(0, 500)
    assert told[-2:] == [(2000, 2000, 0.0), (0, 500, None)], "the end is due, and another download begins anew"


def test_a_steps_download_has_a_line_for_each_tenth_without_a_terminal(monkeypatch: pytest.MonkeyPatch) -> None:
    clock, steps = [0.0], CommandStepsView(stream := io.StringIO(), animated=False)
    monkeypatch.setattr("kiln.base.text.time.monotonic", lambda: clock[0])
    with steps.step("install") as step:
        for size in (9_000_000, 40_000_000):  # the first one is over at once
            for done in (0, size) if size < 10_000_000 else range(0, size + 1, 1_000_000):
                step.show_received(done, size)
                clock[0] += 0.5 if size > 10_000_000 else 0.0
    lines = stream.getvalue().splitlines()
    assert lines[1] == "         4.0 MB of 40 MB, 2.0 MB/s, about 18 s left"
    assert lines[-2] == "         40 MB of 40 MB"
    assert len(lines) == 1 + 10 + 1
