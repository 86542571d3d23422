"""Whose workers a sweep of everything takes, and the question before it."""

from __future__ import annotations

import io
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.cli import main
from kiln.cli.fleet.teardown import confirm_termination, workers_of_user

if TYPE_CHECKING:
    from pathlib import Path

WORKERS = [
    {"account_user": user, "run": "one", "name": f"kiln-one-{number}", "type": "compute-8", "state": "running"}
    for number, user in enumerate(("ann", "bob", ""), 1)
]


class Terminal(io.StringIO):
    """Standard input of a person who answers."""

    def isatty(self) -> bool:
        return True


@pytest.mark.parametrize(
    ("answer", "agreed"), [("y\n", True), ("Yes\n", True), ("\n", False), ("no\n", False), ("", False)]
)
def test_everybodys_workers_are_shown_before_anyone_is_asked(
    answer: str, agreed: bool, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setattr("sys.stdin", Terminal(answer))
    assert confirm_termination(WORKERS) is agreed
    output = capsys.readouterr().err
    assert [line.split()[0] for line in output.splitlines()[2:5]] == ["unknown", "ann", "bob"]
    assert "Terminate these 3 workers of 3 users? [y/N]" in output


def test_where_nobody_answers_it_is_an_error_and_without_workers_there_is_no_question(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr("sys.stdin", io.StringIO("y\n"))
    with pytest.raises(UsageError, match="these 2 workers of 2 users"):
        confirm_termination(workers_of_user("bob", WORKERS))
    assert confirm_termination([])


def test_the_timer_sweeps_for_the_same_user(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "meta.yaml").write_text("package: {name: a, version: 1}\n")
    argv = ["-C", str(tmp_path), "fleet", "sweep", "--provider", "aws", "--user", "ann", "--print-timer"]
    assert main.run(argv) == 0
    assert "fleet sweep --provider aws --user ann\n" in capsys.readouterr().out
    argv = ["-C", str(tmp_path), "fleet", "sweep", "--provider", "slurm", "--user", "ann"]
    assert main.run(argv) == UsageError.exit_code
    assert "--user is not for Slurm" in capsys.readouterr().err


@pytest.mark.parametrize("more", [(), ("--all", "--yes"), ("--print-timer",)])
def test_an_empty_name_does_not_stand_for_everybody(
    tmp_path: Path, more: tuple[str, ...], capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "meta.yaml").write_text("package: {name: a, version: 1}\n")
    argv = ["-C", str(tmp_path), "fleet", "sweep", "--provider", "aws", "--user", "", *more]
    assert main.run(argv) == UsageError.exit_code
    assert "--user needs a name" in capsys.readouterr().err
