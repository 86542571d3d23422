"""Tests of kills and races fail at once: a second run would hide what they look for."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from tests.integration.conftest import pytest_collection_modifyitems as collected

INTEGRATION = Path(__file__).parents[1] / "integration"
OF_KILLS_OR_RACES = re.compile(
    r"_kill|_dies?_|_interrupt|ctrl_c|lost_its_lease|_two_(?:publishers|writers|runs|of)_|two_at_once"
)
WHOLE = "\npytestmark = pytest.mark.once\n"
DECORATED = re.compile(r"^((?:@.*\n(?:[ )\]].*\n)*)*)def (test_\w+)", re.MULTILINE)


def unmarked(text: str) -> list[str]:
    """Return the tests of kills and races in a module that would be run again."""
    tests = [(name, marks) for marks, name in DECORATED.findall(text) if OF_KILLS_OR_RACES.search(name)]
    return [name for name, marks in tests if "@pytest.mark.once\n" not in marks and WHOLE not in text]


def test_every_test_of_kills_and_races_runs_once() -> None:
    modules = sorted(INTEGRATION.rglob("test_*.py"))
    assert {module.stem: names for module in modules if (names := unmarked(module.read_text()))} == {}
    assert unmarked("def test_a_killed_run() -> None:\n") == ["test_a_killed_run"]
    assert unmarked("@pytest.mark.x(\n    1\n)\n@pytest.mark.once\ndef test_a_killed_run() -> None:\n") == []


def test_only_tests_that_are_not_marked_are_run_again(request: pytest.FixtureRequest) -> None:
    usual, marked = (pytest.Function.from_parent(request.node.parent, name=request.node.name) for _ in range(2))
    for item in (usual, marked):
        item.path = INTEGRATION / "test_pairs.py"
    marked.add_marker(pytest.mark.once)
    collected([usual, marked])
    flaky = usual.get_closest_marker("flaky")
    assert flaky is not None
    assert flaky.kwargs == {"reruns": 1}
    assert marked.get_closest_marker("flaky") is None
