"""Scripts of recipes become shell lines, whatever runs them."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import pytest

from kiln.build.engine.scripts import lines_without_shell_trace, script_run_lines
from kiln.recipe.rendered import Script

RECIPE = Path("/recipe folder")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (Script(), ()),
        (Script(lines=("make", "make install")), ("make", "make install")),
        (Script(file="build.sh"), ("bash -e '/recipe folder/build.sh'",)),
        (Script(file="build"), ("bash -e '/recipe folder/build'",)),
        (Script(file="build.py"), ("python '/recipe folder/build.py'",)),
        (Script(file="BUILD.R"), ("Rscript '/recipe folder/BUILD.R'",)),
        (Script(file="build.sh", interpreter="nu"), ("nu '/recipe folder/build.sh'",)),
        (Script(lines=("make",), interpreter="bash"), ("make",)),
        (Script(lines=("make",), environment={"B": "it's", "A": "1"}), ("export A=1", "export B='it'\"'\"'s'", "make")),
        (Script(lines=("make",), folder="share/a b"), ("cd \"$PREFIX\"/'share/a b'", "make")),
        (Script(lines=("make",), folder="/opt"), ("cd /opt", "make")),
    ],
)
def test_the_lines_of_a_script(script: Script, expected: tuple[str, ...]) -> None:
    assert script_run_lines(script, RECIPE) == expected


@pytest.mark.processes
def test_lines_of_another_interpreter_run_as_they_are(tmp_path: Path) -> None:
    text = "import sys\nprint('$HOME `ls` \\'', sys.version_info[0])"
    lines = script_run_lines(Script(lines=(text,), interpreter="python"), RECIPE)
    (tmp_path / "python").symlink_to(sys.executable)
    ended = subprocess.run(
        ("bash", "-ec", "\n".join(lines)),
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        text=True,
        capture_output=True,
        check=True,
    )
    assert ended.stdout == "$HOME `ls` ' 3\n"
    assert [path.name for path in tmp_path.iterdir()] == ["python"], "the file of the script is removed"


@pytest.mark.processes
@pytest.mark.parametrize("options", ["-ex", "-e"])
def test_lines_of_kilns_own_leave_no_trace_and_do_not_change_the_scripts(options: str) -> None:
    script = Script(lines=("print(1)",), interpreter="python", program=f"{sys.executable} -")
    lines = (
        *lines_without_shell_trace(("kiln=1",)),
        "echo recipe",
        *lines_without_shell_trace(("test $kiln = 1", "echo untraced >&2")),
        "true last",
    )
    ended = subprocess.run(("bash", options, "-c", "\n".join(lines)), text=True, capture_output=True, check=True)
    traced = ["+ echo recipe", "+ true last"] if "x" in options else []
    assert [line for line in ended.stderr.splitlines() if line != "untraced"] == traced
    heredoc, command, removal = script_run_lines(script, RECIPE)
    assert (heredoc.split("\n")[1][:5], command, removal.split("\n")[1]) == (
        "cat >",
        f"{sys.executable} - .kiln-script",
        "rm .kiln-script",
    )
    assert lines_without_shell_trace(()) == ()
