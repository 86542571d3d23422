"""The watcher is a shell script: it hands on what the program does, and adds its figures."""

from __future__ import annotations

import subprocess

import pytest

from kiln.container.container import HELD, KILLS, is_memory_figure_line, split_output_peak_and_kills, watched_command


@pytest.mark.processes
@pytest.mark.parametrize("code", [0, 3, 137])
def test_the_programs_output_and_exit_code_are_handed_on(code: int) -> None:
    argv = watched_command(("bash", "-c", 'echo "$1"; exit "$2"', "me", "two  words * $HOME", str(code)))
    result = subprocess.run(argv, capture_output=True, text=True, check=False, timeout=60)
    tail, _, _ = split_output_peak_and_kills(result.stdout)
    assert (result.returncode, tail, result.stderr) == (code, "two  words * $HOME", "")


@pytest.mark.processes
def test_a_program_that_is_not_there_has_the_shells_exit_code() -> None:
    result = subprocess.run(
        watched_command(("nothing-of-this-name",)), capture_output=True, text=True, check=False, timeout=60
    )
    assert result.returncode == 127
    assert "nothing-of-this-name" in result.stderr


def test_figures_are_removed_from_the_tail() -> None:
    assert split_output_peak_and_kills(f"one\ntwo\n{HELD} 123456\n{KILLS} 2") == ("one\ntwo", 123456, 2)
    assert split_output_peak_and_kills("one") == ("one", None, 0)


def test_a_line_that_only_resembles_a_figure_is_the_programs() -> None:
    assert is_memory_figure_line(f"{HELD} 1")
    assert not is_memory_figure_line(f"{HELD} much")
    assert not is_memory_figure_line(f"echo {HELD} 1")
