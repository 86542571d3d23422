"""Scripts are handed over to a loop that runs them, and come back with their output and their exit code."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed
from kiln.build.executor import environment as executor_environment

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.processes


@pytest.fixture
def queue(tmp_path: Path) -> Iterator[Path]:
    """A queue with its loop at work, whose environment has a word that no script should see."""
    folder = tmp_path / "a queue"
    environment = {**os.environ, "LOOPS_OWN": "1"}
    with (
        executor_environment.shared_script_queue(folder) as close,
        subprocess.Popen(executor_environment.script_loop_command(folder), env=environment) as loop,
    ):
        yield folder
        close()
        assert loop.wait() == 0


def bash(queue: Path, script: Path, *words: str, **variables: str) -> subprocess.CompletedProcess[str]:
    value = executor_environment.environment_with_queue_shell(queue, {"PATH": os.environ["PATH"], **variables})
    argv = (str(queue / "bin" / "bash"), *words, str(script))
    return subprocess.run(argv, env=value, cwd=script.parent, text=True, capture_output=True, check=False)


def test_a_recipes_script_runs_in_the_loop_as_it_would_have_here(queue: Path, tmp_path: Path) -> None:
    script = tmp_path / "conda_build.sh"
    script.write_text(
        'echo "$KILN_APART,$LOOPS_OWN,$MINE,$PWD"; echo error >&2; bash run_test.sh; false; echo not here'
    )
    (tmp_path / "run_test.sh").write_text("echo one within another")
    ended = bash(queue, script, "-e", MINE="it's\n'mine'")
    assert ended.stdout == f"1,,it's\n'mine',{tmp_path}\nerror\none within another\n"
    assert ended.returncode == 1
    assert executor_environment.isolated_script_count(queue) == 1
    executor_environment.require_isolated_script_run(queue, 0, "compile")


def test_other_scripts_run_here(queue: Path, tmp_path: Path) -> None:
    script = tmp_path / "other.sh"
    script.write_text('echo "here${KILN_APART:-}"; exit 4')
    ended = bash(queue, script)
    assert (ended.stdout, ended.returncode) == ("here\n", 4)
    with pytest.raises(BuildFailed, match="build small ran its script outside the container without the network"):
        executor_environment.require_isolated_script_run(queue, 0, "build small")


def test_a_background_process_of_a_script_does_not_delay_the_engine(queue: Path, tmp_path: Path) -> None:
    script = tmp_path / "run_test.sh"
    script.write_text("sleep 600 & echo $!")
    ended = bash(queue, script)
    assert ended.returncode == 0
    os.kill(int(ended.stdout), 9)


def test_a_script_fails_when_its_container_has_ended(tmp_path: Path) -> None:
    script = tmp_path / "conda_build.sh"
    script.touch()
    with executor_environment.shared_script_queue(tmp_path / "queue") as close:
        close()
    ended = bash(tmp_path / "queue", script)
    assert ended.returncode == 1
    assert "the container in which scripts run without the network has ended" in ended.stderr


@pytest.mark.parametrize(
    ("step", "granted", "expected"),
    [
        ("compile", ("compile",), True),
        ("build small", ("compile", "build *"), True),
        ("test small", ("build *",), False),
        ("compile", (), False),
    ],
)
def test_the_network_is_granted_by_names_and_patterns(step: str, granted: tuple[str, ...], expected: bool) -> None:
    assert executor_environment.is_network_granted(step, granted) is expected
