"""A shell where a script runs: driven by a pipe, and at a terminal."""

from __future__ import annotations

import select
import shutil
import subprocess
import sys
import time
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from kiln.recipe.feedstock import Feedstock
from kiln.state.store.layout import ArtifactLayout
from tests.integration.matrix.helpers import CPU_311, SMALL, packages, usable, words
from tests.waiting import CEILING

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator
    from pathlib import Path

pytestmark = pytest.mark.sampled

# pty.spawn stands between this test and a terminal, and hands the exit code on.
AT_A_TERMINAL = "import os, pty, sys; sys.exit(os.waitstatus_to_exitcode(pty.spawn(sys.argv[1:])))"


@pytest.fixture
def small(tmp_path: Path) -> Path:
    """A copy of the small feedstock."""
    return shutil.copytree(SMALL, tmp_path / "small-feedstock")


def debug(root: Path, where: str, lines: str, *more: str) -> subprocess.CompletedProcess[str]:
    argv = words(root, CPU_311, "--container", where, "--debug", *more)
    return subprocess.run(argv, input=lines, text=True, capture_output=True, check=False, timeout=CEILING)


@pytest.mark.parametrize("where", ["none", "docker"])
def test_an_outputs_script_runs_by_hand_with_what_was_compiled(small: Path, where: str) -> None:
    lines = """
        test -x conda_build.sh && echo "in the work folder of $PKG_NAME, $BUILD_WITH_CONDA_DEBUG $BUILD_OUTPUT_ID"
        cat "$SRC_DIR/dist/small.txt"
        ./conda_build.sh >/dev/null 2>&1 && "$PREFIX/bin/small"
        exit 7
    """
    ended = debug(small, usable(where), lines, "--output-id", "small-1.2-*")
    assert ended.returncode == 7, ended.stderr
    assert ended.stdout.splitlines()[-3:] == [
        "in the work folder of small, 1 small-1.2-*",
        "compiled for CUDA None with a patched greeting",
        "compiled for CUDA None with a patched greeting, python 3.11",
    ]
    assert "run the script with ./conda_build.sh" in ended.stdout
    assert "- build libsmall" in ended.stderr
    assert packages(small) == set()
    assert ArtifactLayout.for_feedstock(Feedstock(root=small)).work_folder(CPU_311).is_dir(), (
        "the compile stays for the build"
    )


def test_an_unknown_output_is_refused_with_the_valid_ones(small: Path) -> None:
    ended = debug(small, "none", "", "--output-id", "smal")
    assert ended.returncode == 2
    assert "no output matches 'smal'" in ended.stderr
    assert "did you mean 'small'" in ended.stderr
    several = debug(small, "none", "", "--output-id", "*small*")
    assert "2 outputs match '*small*'" in several.stderr


@pytest.mark.parametrize("where", ["none", "docker"])
def test_the_terminal_is_handed_over(small: Path, where: str) -> None:
    """Ctrl-C ends what runs in the shell, not the shell and not kiln."""
    argv = (sys.executable, "-c", AT_A_TERMINAL, *words(small, CPU_311, "--container", usable(where), "--debug"))
    with (
        subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, bufsize=0) as process,
        killed_if_it_fails(process),
    ):
        assert process.stdin is not None

        def type_in(text: str) -> None:
            assert process.stdin is not None
            process.stdin.write(text.encode())

        read_until(process, "[debug compile] $ ")
        type_in("test -t 0 && sh -c 'cat greeting.txt; echo g\"\"o; exec sleep 1000'\n")  # one job, in front by then
        assert "a patched greeting" in read_until(process, "go\r\n")
        read_until(process, "[debug compile] $ ", nudge=lambda: type_in("\x03"))
        type_in("exit 5\n")
        process.stdin.close()
        read_until(process, None)
    assert process.returncode == 5


@contextmanager
def killed_if_it_fails(process: subprocess.Popen[bytes]) -> Iterator[None]:
    """End a process when the block fails: at a prompt it would wait for ever; its terminal goes, and what is at it."""
    try:
        yield
    except BaseException:
        process.kill()
        raise


def read_until(process: subprocess.Popen[bytes], text: str | None, *, nudge: Callable[[], None] = lambda: None) -> str:
    """Read from a terminal until a text comes, or to its end; ``nudge`` it before, and whenever it says nothing."""
    assert process.stdout is not None
    said, until = "", time.monotonic() + CEILING
    nudge()
    while text is None or text not in said:
        if not select.select([process.stdout], [], [], 2)[0]:
            assert time.monotonic() < until, f"never said {text!r}, but {said}"
            nudge()
            continue
        chunk = process.stdout.read(4096)
        if not chunk:
            assert text is None, f"never said {text!r}, but {said}"
            break
        said += chunk.decode("utf-8", "replace")
    return said
