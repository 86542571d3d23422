"""The command line selects the configs to build; a menu opens only on a terminal."""

from __future__ import annotations

import argparse
import io
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UnknownConfig, UnsupportedPlatform, UsageError
from kiln.cli import options as cli_options
from kiln.cli.arguments import add_arguments
from kiln.recipe.feedstock import Feedstock
from kiln.state.results import ConfigState

if TYPE_CHECKING:
    from pathlib import Path


class Terminal(io.StringIO):
    def isatty(self) -> bool:
        return True


@pytest.fixture
def feedstock(tmp_path: Path) -> Feedstock:
    (tmp_path / ".ci_support").mkdir()
    for name in ("a11", "a12", "b11"):
        (tmp_path / ".ci_support" / f"{name}.yaml").write_text("target_platform:\n- linux-64\n")
    return Feedstock(root=tmp_path)


def options(*words: str) -> argparse.Namespace:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parser.parse_args(words)


@pytest.mark.parametrize(
    ("words", "expected"),
    [
        (("a11",), ("a11",)),
        (("a11.yaml", ".ci_support/a12.yaml", "a11"), ("a11", "a12")),
        (("--all",), ("a11", "a12", "b11")),
        (("--all", "--filter", "*11"), ("a11", "b11")),
        (("--filter", "b*"), ("b11",)),
        (("a11", "b11", "--filter", "b*"), ("b11",)),
    ],
)
def test_named_and_filtered_configs_are_selected(
    feedstock: Feedstock, words: tuple[str, ...], expected: tuple[str, ...]
) -> None:
    assert cli_options.selected_configs(feedstock, options(*words)) == expected


def test_configs_that_this_machine_cannot_build_are_left_out_with_one_line_unless_they_are_named(
    feedstock: Feedstock, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("w11", "w12"):
        (feedstock.config_folder / f"{name}.yaml").write_text("target_platform:\n- win-64\n")
    assert cli_options.selected_configs(feedstock, options("--all")) == ("a11", "a12", "b11")
    assert capsys.readouterr().err == ("left out: 2 configs for win-64, which this machine (linux-64) cannot build\n")
    with pytest.raises(UnsupportedPlatform, match="w12 cannot be built on this machine"):
        cli_options.selected_configs(feedstock, options("--filter", "w*"))
    assert cli_options.selected_configs(feedstock, options("w11")) == ("w11",)  # refused by the run's plan


def test_without_a_terminal_a_config_must_be_named(feedstock: Feedstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("1\n"))
    with pytest.raises(UsageError, match="no config selected, 3 are available"):
        cli_options.selected_configs(feedstock, options())


def test_a_menu_selects_a_config_by_number(feedstock: Feedstock, monkeypatch: pytest.MonkeyPatch) -> None:
    terminal = Terminal()
    monkeypatch.setattr("sys.stderr", terminal)
    monkeypatch.setattr("sys.stdin", Terminal("2\n"))
    assert cli_options.selected_configs(feedstock, options("--filter", "*11")) == ("b11",)
    assert "1. a11\n2. b11\n" in terminal.getvalue()


def test_an_empty_line_selects_the_default(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("\n"))
    assert cli_options.prompt_for_config(("a", "b"), "b") == "b"
    assert capsys.readouterr().err.endswith("number [2]> ")


@pytest.mark.parametrize("answer", ["", "0\n", "3\n", "x\n", "-1\n"])
def test_an_answer_outside_the_menu_is_refused(answer: str, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO(answer))
    with pytest.raises(UsageError, match="expected a number from 1 to 2"):
        cli_options.prompt_for_config(("a", "b"), "a")


def test_a_pattern_without_matches_is_an_error(feedstock: Feedstock) -> None:
    with pytest.raises(UnknownConfig, match="no config matches 'x'"):
        cli_options.selected_configs(feedstock, options("--all", "--filter", "x"))
    with pytest.raises(UnknownConfig, match="no config of a11 matches"):
        cli_options.selected_configs(feedstock, options("a11", "--filter", "b*"))


def test_failed_configs_include_interrupted_ones() -> None:
    states = {
        "a": ConfigState.FAILED,
        "b": ConfigState.DONE,
        "c": ConfigState.INTERRUPTED,
        "d": ConfigState.CACHED,
        "e": ConfigState.OUT_OF_MEMORY,
        "f": ConfigState.DISK_FULL,
    }
    assert cli_options.failed_configs(("a", "b", "c", "d", "e", "f", "never"), states) == ("a", "c", "e", "f")
