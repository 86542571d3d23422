"""A shell's unfinished line gets the parser of its command."""

from __future__ import annotations

import argparse
from typing import TYPE_CHECKING, Any

import pytest

from kiln.cli import completion, main
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path


def commands_of(parser: argparse.ArgumentParser) -> dict[str, Any]:
    (commands,) = (action for action in parser._actions if isinstance(action, argparse._SubParsersAction))
    return dict(commands.choices)


def test_the_parser_knows_all_commands_and_the_arguments_of_the_typed_one() -> None:
    commands = commands_of(completion.parser_for_command_line("kiln build --reb"))
    assert commands.keys() == main.COMMANDS.keys()
    assert "--rebuild" in commands["build"]._option_string_actions
    assert "--diff" not in commands["matrix"]._option_string_actions


def test_the_entry_script_has_the_arguments_of_build() -> None:
    assert "--rehearse" in completion.parser_for_command_line("./build-locally.py --re")._option_string_actions


@pytest.mark.parametrize("quote", ["", "'", '"'])
def test_configs_are_those_of_the_named_feedstock(tmp_path: Path, quote: str) -> None:
    configs = {"linux_64_b": "", "linux_64_a": ""}
    feedstock = builders.feedstock(tmp_path / "f", "package:\n  name: a\n  version: '1'\n", configs=configs)
    build = commands_of(completion.parser_for_command_line(f"kiln -C {feedstock.root} build {quote}linux"))["build"]
    (configs,) = (action for action in build._actions if action.dest == "configs")
    assert configs.completer() == ["linux_64_a", "linux_64_b"]


def test_a_folder_without_a_feedstock_has_no_configs(tmp_path: Path) -> None:
    build = commands_of(completion.parser_for_command_line(f"kiln -C {tmp_path} build "))["build"]
    (configs,) = (action for action in build._actions if action.dest == "configs")
    assert configs.completer() == []
