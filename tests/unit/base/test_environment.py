"""When an environment is used as it is, completed, or made anew."""

from __future__ import annotations

import json
import sys
from typing import TYPE_CHECKING

import pytest

from kiln.base.environment import (
    CURRENT,
    LOCK,
    MARKER,
    RUN,
    TEST,
    EnvironmentState,
    examine_environment,
    requirements_digest,
    write_environment_marker,
)

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A clone whose environment was made for a run, by the Python that runs the tests."""
    (tmp_path / "requirements").mkdir()
    for name in (RUN, TEST):
        (tmp_path / "requirements" / name).write_text(f"a lock called {name}\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    write_environment_marker(tmp_path / ".venv", {RUN: requirements_digest(tmp_path, RUN)})
    return tmp_path


def marker_of(root: Path) -> Path:
    return root / ".venv" / MARKER


def test_an_environment_that_fits_is_used_as_it_is(root: Path) -> None:
    assert examine_environment(root / ".venv", (RUN,)) == CURRENT


def test_a_clone_without_one_is_on_its_first_run(root: Path) -> None:
    marker_of(root).unlink()
    assert examine_environment(root / ".venv", (RUN,)) == EnvironmentState("first run", completable=False)


def test_what_failed_and_was_cleared_is_a_first_run_again(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / LOCK).touch()
    assert examine_environment(tmp_path / ".venv", (RUN,)) == EnvironmentState("first run", completable=False)


def test_a_lock_without_marker_is_what_a_killed_set_up_leaves(root: Path) -> None:
    marker_of(root).unlink()
    (root / ".venv" / LOCK).touch()
    assert examine_environment(root / ".venv", (RUN,)) == EnvironmentState(
        "the last set-up did not end", completable=False
    )


@pytest.mark.parametrize("text", ["", "{", "[]", "{}", '{"folder": 1}', "null", '{"folder": "", "locks": 3}', "\x00"])
def test_damaged_marker_is_reported(root: Path, text: str) -> None:
    marker_of(root).write_text(text)
    assert examine_environment(root / ".venv", (RUN,)) == EnvironmentState(
        "its marker file is damaged", completable=False
    )


def test_a_lock_that_changed_asks_for_a_new_environment(root: Path) -> None:
    (root / "requirements" / RUN).write_text("another\n")
    assert examine_environment(root / ".venv", (RUN,)) == EnvironmentState(
        "the list of packages changed", completable=False
    )


def test_the_tests_packages_are_added_to_an_environment_made_for_a_run(root: Path) -> None:
    assert examine_environment(root / ".venv", (RUN, TEST)) == EnvironmentState(
        "the packages of the tests are missing", completable=True
    )


def test_a_run_does_not_care_what_became_of_the_tests_lock(root: Path) -> None:
    write_environment_marker(root / ".venv", {name: requirements_digest(root, name) for name in (RUN, TEST)})
    (root / "requirements" / TEST).write_text("another\n")
    assert examine_environment(root / ".venv", (RUN,)) == CURRENT
    assert examine_environment(root / ".venv", (RUN, TEST)).reason == "the list of packages changed"


def test_a_clone_that_was_moved_makes_a_new_one(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    moved = root.rename(tmp_path_factory.mktemp("elsewhere") / "clone")
    assert examine_environment(moved / ".venv", (RUN,)) == EnvironmentState("the folder was moved", completable=False)


def test_an_interpreter_that_is_gone_asks_for_a_new_environment(root: Path) -> None:
    python = root / ".venv" / "bin" / "python"
    python.unlink()
    python.symlink_to(root / "no-python")
    assert examine_environment(root / ".venv", (RUN,)) == EnvironmentState(
        "its Python is missing or another one", completable=False
    )


@pytest.mark.processes
def test_a_patch_release_of_the_interpreter_changes_nothing(root: Path) -> None:
    rewrite(root, interpreter=["/elsewhere/python", 1, 1])
    assert examine_environment(root / ".venv", (RUN,)) == CURRENT


@pytest.mark.processes
def test_an_interpreter_that_cannot_use_the_packages_asks_for_a_new_environment(root: Path) -> None:
    rewrite(root, interpreter=["/elsewhere/python", 1, 1], abi="cpython-39-x86_64-linux-gnu")
    assert examine_environment(root / ".venv", (RUN,)).reason == "its Python is missing or another one"


def rewrite(root: Path, **changes: object) -> None:
    marker = json.loads(marker_of(root).read_text())
    marker_of(root).write_text(json.dumps({**marker, **changes}))
