"""The command line tells its failures by exit codes and in words."""

from __future__ import annotations

import pytest

from kiln import cli
from kiln.errors import Interrupted, MissingTool, UsageError


def test_a_mistyped_command_names_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["bild"]) == UsageError.exit_code
    assert "did you mean 'build'" in capsys.readouterr().err


def test_an_unknown_option_is_a_usage_error(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["build", "--nonsense"]) == UsageError.exit_code
    assert "--nonsense" in capsys.readouterr().err


def test_a_mistyped_option_names_the_near_one(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["doctor", "--cudda", "12.5"]) == UsageError.exit_code
    assert "did you mean '--cuda'" in capsys.readouterr().err


@pytest.mark.parametrize("words", [[], ["--help"], ["--version"], ["build", "--help"]])
def test_help_succeeds(words: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(words) == 0
    assert "kiln" in capsys.readouterr().out


def test_help_names_the_program_that_was_called(capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["--called", "build-locally.py", "build", "--help"]) == 0
    assert capsys.readouterr().out.startswith("usage: build-locally.py [-h]")


def test_an_interrupt_has_its_own_exit_code(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def interrupted(_: object) -> int:
        raise KeyboardInterrupt

    monkeypatch.setattr(cli, "dispatch", interrupted)
    assert cli.run(["matrix"]) == Interrupted.exit_code
    assert "goes on from there" in capsys.readouterr().err


def test_a_missing_dependency_says_how_to_get_it(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def incomplete(_: object) -> int:
        raise ModuleNotFoundError("No module named 'jinja2'", name="jinja2")

    monkeypatch.setattr(cli, "dispatch", incomplete)
    assert cli.run(["matrix"]) == MissingTool.exit_code
    assert "build-locally.py" in capsys.readouterr().err


@pytest.mark.parametrize("name", cli.COMMANDS)
def test_each_command_has_a_module_that_offers_what_a_command_needs(name: str) -> None:
    _, command = cli.parser_for(name)
    assert callable(command.run)
