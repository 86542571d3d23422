"""FIFOs, sockets and devices in a prefix end a build with their names, before the engine opens one of them."""

from __future__ import annotations

import json
import os
import stat
import subprocess
from typing import TYPE_CHECKING

import pytest

from kiln.base import process_table
from kiln.base.errors import BuildFailed
from kiln.build.engine import failures, worker
from kiln.build.engine.failures import ENGINE_FOLDER

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def prefix(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a prefix with a file, a folder, and links to special files, which are not special files themselves."""
    prefix = tmp_path / ENGINE_FOLDER / "rattler-build_app" / "host_env_placehold"
    (prefix / "bin").mkdir(parents=True)
    (prefix / "bin" / "app").touch()
    (prefix / "null").symlink_to(os.devnull)
    monkeypatch.setenv("PREFIX", str(prefix))
    return prefix


def run(folder: Path) -> subprocess.CompletedProcess[str]:
    """Run the line after a script, as the engine does: traced, and until a command fails."""
    script = "\n".join(("set -xe", *failures.refuse_special_files_lines(folder), "{ echo after; } 2>/dev/null"))
    return subprocess.run(["bash", "-c", script], capture_output=True, text=True, check=False)


@pytest.mark.processes
def test_a_prefix_without_special_files_passes_without_a_trace(prefix: Path, tmp_path: Path) -> None:
    ended = run(tmp_path)
    assert (ended.returncode, ended.stdout, ended.stderr) == (0, "after\n", "")
    assert failures.special_files_that_ended_script(tmp_path) == () == failures.find_special_files([prefix])


@pytest.mark.processes
def test_special_files_end_the_script_and_are_named(prefix: Path, tmp_path: Path) -> None:
    os.mkfifo(prefix / "bin" / "two\nlines")
    os.mknod(prefix / "a socket", stat.S_IFSOCK | 0o600)
    named = ("a socket (socket)", "bin/two\nlines (FIFO)")
    ended = run(tmp_path)
    assert (ended.returncode, ended.stdout) == (1, "")
    assert failures.special_files_that_ended_script(tmp_path) == named
    assert failures.find_special_files([prefix]) == named


def test_the_engines_error_is_replaced_by_the_files_for_which_the_script_ended(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    (tmp_path / failures.LIST).write_bytes(b"p pipe\0")
    job = {"folder": str(tmp_path), "parent": os.getppid(), "result": str(tmp_path / "result.json")}
    (tmp_path / "job.json").write_text(json.dumps(job))  # what is missing in it is the engine's failure here
    monkeypatch.setattr(os, "_exit", lambda _: None)
    monkeypatch.setattr(process_table, "die_with_parent", lambda **_: None)
    worker.main(str(tmp_path / "job.json"))
    reason = json.loads((tmp_path / "result.json").read_text())["error"]
    assert reason == "the script left in its prefix what no package can contain: pipe (FIFO)"
    kind = failures.classify_failure(reason.replace("pipe", "failed to download"), "")
    assert kind.error is BuildFailed, "the name of a file is not the engine's message"
    assert "when it runs" in kind.hint


def test_of_many_files_a_few_are_named() -> None:
    text = failures.message_naming_files(failures.SPECIAL_TEXT, [f"{number} (FIFO)" for number in range(7)])
    assert text.endswith("4 (FIFO) and 2 more")
