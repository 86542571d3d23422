"""Questions of users and of this project, answered by the command: ``tests/fixtures/doctor_questions.ini``."""

from __future__ import annotations

import configparser
import shlex
from pathlib import Path

import pytest

from kiln.base.errors import IncompatibleVersions, UsageError
from kiln.cli import main

FILE = Path(__file__).parents[2] / "fixtures" / "doctor_questions.ini"
KEYS = {"source", "ask", "verdict", "failure", "error", "says", "never"}


def questions() -> dict[str, configparser.SectionProxy]:
    settings = configparser.ConfigParser(delimiters=("=",), comment_prefixes=("#",), interpolation=None)
    settings.read_string(FILE.read_text(encoding="utf-8"))
    return {name: section for name, section in settings.items() if name != settings.default_section}


QUESTIONS = questions()


def test_there_are_sixty_questions_and_each_has_one_answer() -> None:
    assert len(QUESTIONS) >= 60
    assert sum("source" in question for question in QUESTIONS.values()) >= 25
    for name, question in QUESTIONS.items():
        assert set(question) <= KEYS, name
        assert len({"verdict", "failure", "error"} & set(question)) == 1, name
        assert question.get("source", "https://").startswith("https://"), name


@pytest.mark.parametrize("name", QUESTIONS)
def test_the_answer_is_the_expected_one(name: str, capsys: pytest.CaptureFixture[str]) -> None:
    question = QUESTIONS[name]
    code = main.run(["doctor", *shlex.split(question["ask"])])
    captured = capsys.readouterr()
    answer = captured.out + captured.err
    if "verdict" in question:
        assert captured.out.startswith(f"{question['verdict']}: ")
        assert code == (IncompatibleVersions.exit_code if question["verdict"] == "cannot work" else 0)
    elif "failure" in question:
        assert (code, captured.out.startswith(question["failure"])) == (0, True)
    else:
        assert (code, captured.err.startswith(f"error: {question['error']}")) == (UsageError.exit_code, True)
    assert [line for line in question.get("says", "").splitlines() if line not in answer] == []
    assert [line for line in question.get("never", "").splitlines() if line in answer] == []
