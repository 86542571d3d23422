"""Completion as a shell asks for it: a line and a place in it go in, words come out."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
CONFIGS = sorted(file.stem for file in (SMALL / ".ci_support").glob("*.yaml"))


def shell(script: str) -> str:
    """Run bash with kiln's completion loaded, and ``kiln`` being this Python's."""
    prepare = f'kiln() {{ "{sys.executable}" -m kiln "$@"; }}; cd "{ROOT}"; export PYTHONPATH="{ROOT}"'
    words = ("bash", "--norc", "-c", f"{prepare}\n{script}")
    return subprocess.run(words, capture_output=True, text=True, check=True).stdout


def completed(line: str, program: str = "kiln") -> list[str]:
    """Return what bash would offer at the end of a line."""
    asked = (
        'eval "$(kiln completion bash)"; '
        f"COMP_LINE='{line}'; COMP_POINT=${{#COMP_LINE}}; COMP_TYPE=9; COMP_WORDS=($COMP_LINE); "
        f"export -f kiln; _python_argcomplete {program}; printf '%s\\n' \"${{COMPREPLY[@]}}\""
    )
    return [word.strip() for word in shell(asked).splitlines() if word.strip()]


def test_commands_are_completed() -> None:
    assert completed("kiln re") == ["rerender", "render", "report", "rebuild"]


def test_options_of_a_command_are_completed() -> None:
    assert completed("kiln build --reb") == ["--rebuild"]


def test_configs_of_the_named_feedstock_are_completed() -> None:
    assert completed(f"kiln -C {SMALL} build linux_64_cuda_compiler_version12") == [
        name for name in CONFIGS if "12.9" in name or "version12" in name
    ]


@pytest.mark.parametrize("name", ["zsh", "fish"])
def test_other_shells_have_code_of_their_own(name: str) -> None:
    ended = subprocess.run(
        (sys.executable, "-m", "kiln", "completion", name), cwd=ROOT, capture_output=True, text=True, check=True
    )
    assert "kiln" in ended.stdout
