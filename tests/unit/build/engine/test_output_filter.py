"""What scripts print reaches the engine as lines that it can read, and people as it was."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from typing import TYPE_CHECKING

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.build.engine import output_filter
from kiln.build.engine.output_filter import PART, LineParts, joined_parts
from kiln.build.engine.run import filter_script_output

if TYPE_CHECKING:
    from pathlib import Path

OUTPUTS = {
    "latin-1": (b"caf\xe9\nlast\n", "caf\ufffd\nlast\n"),
    "nul": (b"a\0b\n\0", "a\0b\n\0\n"),
    "no newline": (b"a\nb", "a\nb\n"),
    "cut character": (b"x\xe2\x82", "x\ufffd\n"),
    "surrogates": (b"\xed\xa0\x80\n", "\ufffd" * 3 + "\n"),
    "carriage returns": (b"1%\r2%\r\n", "1%\r2%\r\n"),
    "quotes": (b'"\n"a"\n""\n"', '"\n"a"\n""\n"\n'),
    "long": (b"x" * (3 * PART + 5) + b"\ny\n", "x" * (3 * PART + 5) + "\ny\n"),
    "long, of whole parts": (b"x" * (2 * PART), "x" * (2 * PART) + "\n"),
    "separators": ("a\x85b\u2028c\x1cd\n".encode(), "a\x85b\u2028c\x1cd\n"),
    "nothing": (b"", ""),
}


def passed_on(data: bytes, size: int) -> str:
    parts = LineParts()
    chunks = [data[at : at + size] for at in range(0, len(data), size)]
    return "".join([*map(parts.feed, chunks), parts.feed(b"", final=True)])


@pytest.mark.parametrize("size", [1, 2, 7, 1 << 20])
@pytest.mark.parametrize("kind", OUTPUTS)
def test_output_is_text_in_bounded_lines_and_stays_what_it_was(kind: str, size: int) -> None:
    data, expected = OUTPUTS[kind]
    text = passed_on(data, size)
    assert joined_parts(text) == expected
    assert all(len(line) <= PART + len(output_filter.CONTINUED) for line in text.split("\n"))
    assert '"' not in [line[-1:] for line in text.split("\n")]


@given(st.lists(st.binary(max_size=40), max_size=8))
def test_bytes_in_any_chunks_lose_no_line(chunks: list[bytes]) -> None:
    parts = LineParts()
    text = "".join([*map(parts.feed, chunks), parts.feed(b"", final=True)])
    whole = b"".join(chunks).decode("utf-8", "replace")
    assert joined_parts(text) == whole + ("\n" if whole and not whole.endswith("\n") else "")


def shell(folder: Path, line: str, name: str = "shell") -> subprocess.CompletedProcess[bytes]:
    """Run a line as the engine runs a script: by the name ``bash``, on the PATH that it gets."""
    script, environment = filtered(folder / name, line)
    words = (f"{folder / name}/shell/bash", "-e", script)
    return subprocess.run(words, env=environment, capture_output=True, check=False, timeout=60)


def filtered(step: Path, *lines: str) -> tuple[Path, dict[str, str]]:
    """Write a script where the engine has it in a step's folder; return it with the environment that it gets."""
    recipe, environment = filter_script_output(
        {"build": {"script": {"content": list(lines)}}}, {"PATH": "/usr/bin:/bin"}, step
    )
    work = step / "output" / "bld" / "rattler-build_a" / "work"
    work.mkdir(parents=True)
    content = recipe["build"]["script"]["content"]
    assert str(step) not in "".join(content), "packages contain the recipe"
    (work / "conda_build.sh").write_text("\n".join(["echo begin >&2", "(", *content, ")"]))
    return work / "conda_build.sh", {**environment, "SRC_DIR": str(work)}


@pytest.mark.processes
@pytest.mark.parametrize(("line", "code"), [("exit 7", 7), ("kill -9 $$", 137), ("exec >&- 2>&-; exit 3", 3)])
def test_the_exit_code_is_the_scripts(line: str, code: int, tmp_path: Path) -> None:
    assert shell(tmp_path, line).returncode == code


@pytest.mark.processes
@pytest.mark.parametrize("name", ["plain", "a b", "it's[*]"])
def test_both_streams_are_one_in_order_and_the_path_is_as_before(name: str, tmp_path: Path) -> None:
    ended = shell(tmp_path, "echo 1; echo 2 >&2; echo 3; echo $PATH; type -p bash", name)
    *lines, last = ended.stdout.decode().splitlines()
    assert lines == [output_filter.BEGUN, "begin", "1", "2", "3", "/usr/bin:/bin", "/usr/bin/bash"]
    assert last.startswith(output_filter.ENDED)


@pytest.mark.processes
def test_a_script_that_another_bash_runs_starts_itself_again_through_the_filter(tmp_path: Path) -> None:
    script, environment = filtered(tmp_path, "printf 'caf\\351\\n'; env | grep -c KILN_ || true", "exit 3")
    ended = subprocess.run(("/bin/bash", "-e", script), env=environment, capture_output=True, check=False)
    assert (ended.stdout.decode().splitlines(), ended.returncode) == (
        [output_filter.BEGUN, "begin", "caf\ufffd", "0"],
        3,
    )


@pytest.mark.processes
def test_a_process_that_is_left_behind_keeps_nobody_waiting(tmp_path: Path) -> None:
    start = time.monotonic()
    ended = shell(tmp_path, "{ sleep 300; } & echo $!; { while :; do echo; done; } & echo $!; echo last")
    assert time.monotonic() - start < 60
    for line in ended.stdout.decode().split():
        if line.isdigit():
            os.kill(int(line), signal.SIGKILL)
    assert b"last\n" in ended.stdout


@pytest.mark.processes
def test_memory_is_bounded_by_an_endless_line() -> None:
    program = f"import resource; resource.setrlimit(resource.RLIMIT_AS, (150 << 20,) * 2); import runpy, sys; \
sys.argv = ['', 'sh', '-c', 'head -c 30000000 /dev/zero']; \
runpy.run_path({output_filter.__file__!r}, run_name='__main__')"
    ended = subprocess.run((sys.executable, "-c", program), capture_output=True, check=True)
    assert ended.stdout.count(b"\0") == 30_000_000
