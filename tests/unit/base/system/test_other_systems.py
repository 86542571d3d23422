"""The parts for other systems that need nothing of theirs, loaded as they are imported there."""

from __future__ import annotations

import importlib.util
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.system import files as system_files
from kiln.base.system.processes import is_process_running
from tests import waiting

if TYPE_CHECKING:
    from types import ModuleType

ROOT = Path(__file__).parents[4]


def loaded(name: str, system: str, monkeypatch: pytest.MonkeyPatch) -> ModuleType:
    """Return another copy of a module, as it is on a system."""
    spec = importlib.util.spec_from_file_location(f"{name}_{system}", ROOT / "kiln" / "base" / "system" / f"{name}.py")
    assert spec is not None
    assert spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    with monkeypatch.context() as patch:
        patch.setattr(sys, "platform", system)
        patch.setitem(sys.modules, spec.name, module)  # where dataclasses look up its types
        spec.loader.exec_module(module)
    return module


@pytest.mark.processes
def test_on_macos_a_process_ends_with_its_parent(tmp_path: Path) -> None:
    code = """
import importlib.util, os, signal, sys, time
sys.platform = "darwin"
spec = importlib.util.spec_from_file_location("there", sys.argv[1])
module = importlib.util.module_from_spec(spec)
spec.loader.exec_module(module)
sys.platform = "linux"
child = os.fork()
if child:
    os.read(0, 1)
    print(child, flush=True)
    os._exit(0)
module.die_with_parent(signal.SIGTERM)
os.write(os.open(sys.argv[2], os.O_WRONLY | os.O_CREAT), b"x")
time.sleep(600)
"""
    module = ROOT / "kiln" / "base" / "system" / "processes.py"
    ready = tmp_path / "ready"
    process = subprocess.Popen(
        (sys.executable, "-c", code, str(module), str(ready)), stdin=subprocess.PIPE, stdout=subprocess.PIPE
    )
    waiting.until(ready.exists, "the child runs", process)
    output, _ = process.communicate(b"x", timeout=60)
    waiting.until(lambda: not is_process_running(int(output)), "it ends with its parent")


def test_on_macos_numbers_of_this_process_are_plausible(monkeypatch: pytest.MonkeyPatch) -> None:
    usage = loaded("machine", "darwin", monkeypatch)
    assert usage.core_count() >= 1
    assert usage.machine_memory() > 1 << 20
    assert usage.private_memory() > 1 << 10
    assert usage.bytes_written() >= 0


def test_space_is_reserved_where_the_system_cannot_allocate(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    files = loaded("files", "darwin", monkeypatch)
    with (tmp_path / "reserve").open("wb") as file:
        files.reserve_space(file.fileno(), 3 << 20)
    assert (tmp_path / "reserve").stat().st_blocks * 512 >= 3 << 20
    with files.temporary_file_with_content(b"content") as path:
        assert path.read_bytes() == b"content"
        assert not str(path).startswith("/proc")
    assert not path.exists()


def test_a_link_and_a_pipe_are_not_opened(tmp_path: Path) -> None:
    (tmp_path / "file").write_bytes(b"x")
    (tmp_path / "link").symlink_to("file")
    os.mkfifo(tmp_path / "pipe")
    with os.fdopen(system_files.open_regular_file(tmp_path / "file"), "rb") as file:
        assert file.read() == b"x"
    for name in ("link", "pipe", "missing"):
        with pytest.raises(OSError, match=name):
            system_files.open_regular_file(tmp_path / name)
