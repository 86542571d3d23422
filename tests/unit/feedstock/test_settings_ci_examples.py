"""The examples of the page about CI are valid, and agree with kiln's exit codes and options."""

from __future__ import annotations

import re
from pathlib import Path
from typing import Any

import pytest
import yaml

from kiln.base.errors import BudgetSpent
from kiln.cli import main
from kiln.feedstock import settings

PAGE = (Path(__file__).parents[3] / "docs" / "how-to" / "build-in-ci.md").read_text()
EXAMPLES: list[tuple[str, str]] = re.findall(r"```(yaml|sh)\n(.*?)```", PAGE, re.DOTALL)


def test_the_commands_of_the_page_have_options_of_kiln() -> None:
    commands = [line for line in PAGE.splitlines() if "build-locally.py" in line and "--handover" in line]
    assert len(commands) >= 5
    parser, _ = main.command_parser_and_module("build")
    for line in commands:
        words = line.partition("build-locally.py")[2].partition("||")[0].replace('"', "").split()
        options = parser.parse_args(words)
        assert options.budget.seconds in {2.5 * 3600, 5.5 * 3600}
        assert options.handover.name == "handover"


def test_the_settings_of_the_page_are_kilns() -> None:
    sections: list[Any] = [yaml.safe_load(text) for kind, text in EXAMPLES if kind == "yaml"]
    names = [f"kiln.{name}" for section in sections for name in (section.get("kiln") or {})]
    assert len(names) >= 6
    assert set(names) <= settings.setting_definitions().keys()


@pytest.mark.parametrize("example", [text for kind, text in EXAMPLES if "--handover" in text and "CONFIG" in text])
def test_each_example_knows_the_exit_code_of_an_unfinished_build(example: str) -> None:
    if "code" in example:
        assert str(BudgetSpent.exit_code) in example


def test_each_job_of_gitlab_and_azure_continues_the_one_before() -> None:
    parsed = [yaml.safe_load(text) for kind, text in EXAMPLES if kind == "yaml"]
    (gitlab,) = [text for text in parsed if ".job" in text]
    assert gitlab[".job"]["allow_failure"] == {"exit_codes": BudgetSpent.exit_code}
    assert [gitlab[f"build-{number}"].get("needs") for number in (1, 2, 3)] == [None, ["build-1"], ["build-2"]]
    assert gitlab["build-3"]["allow_failure"] is False
    (azure,) = [text for text in parsed if "jobs" in text]
    first, second = azure["jobs"]
    assert second["dependsOn"] == first["job"]
    assert f"dependencies.{first['job']}.outputs['{first['steps'][0]['name']}.unfinished']" in second["condition"]
