"""A lock next to a folder that is being made: its holder is alone, and removes the files of killed processes."""

from __future__ import annotations

import contextlib
import errno
import fcntl
import os
import subprocess
import sys
import time
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import files, locks
from kiln.base.errors import AlreadyRunning
from tests import waiting

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

LOCK = ".prefix.part.lock"

PART = ".prefix.1-0123abcd.part"

HOLD = """
import os, signal, sys
from pathlib import Path
from kiln.base import files, locks as folder_lock
path = Path(sys.argv[1])
with folder_lock.exclusive_folder_lock(path) as lock, files.atomic_replacement(path) as part:
    (part / "half").mkdir(parents=True)
    if sys.argv[2] == "fork" and os.fork() == 0:
        print("child", flush=True)
        sys.stdin.read()
        os._exit(0)
    if sys.argv[2] != "fork":
        print("held", flush=True)
        sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


def names(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return sorted(path.name for path in folder.iterdir())


@contextlib.contextmanager
def holder(path: Path, how: str = "") -> Iterator[subprocess.Popen[str]]:
    """Have a process that holds the lock and has a part, until its input is closed; then it is killed."""
    argv = (sys.executable, "-c", HOLD, str(path), how)
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        assert process.stdout.readline()
        yield process


def test_nothing_stays_beside_the_folder(tmp_path: Path) -> None:
    path = tmp_path / "new" / "prefix"
    with locks.exclusive_folder_lock(path), files.atomic_replacement(path) as part:
        part.mkdir()
        assert names(path.parent) == sorted([part.name, LOCK])
    assert names(path.parent) == ["prefix"]


def test_parts_of_that_folder_alone_are_removed(tmp_path: Path) -> None:
    others = [
        ".prefix.two.1-0123abcd.part",
        ".other.1-0123abcd.part",
        ".prefix.part",
        "prefix.1-0123abcd.part",
        ".prefix.mine.part",
    ]
    for name in (PART, f"{PART}.refused", *others):
        (tmp_path / name / "deep").mkdir(parents=True)
    with locks.exclusive_folder_lock(tmp_path / "prefix"):
        assert names(tmp_path) == sorted([*others, LOCK])


def test_one_at_a_time(tmp_path: Path) -> None:
    path = tmp_path / "prefix"
    with locks.exclusive_folder_lock(path), files.atomic_replacement(path) as part:
        part.mkdir()
        with (
            pytest.raises(AlreadyRunning, match=f"process {os.getpid()} holds .*{LOCK}"),
            locks.exclusive_folder_lock(path),
        ):
            pytest.fail("the lock was given twice")
        locks.remove_leftovers_of_killed_processes(path)
        assert names(tmp_path) == sorted([part.name, LOCK]), "what the holder makes is left alone"
    with locks.exclusive_folder_lock(path):
        pass


@pytest.mark.processes
def test_what_a_killed_process_left_is_removed_by_the_next(tmp_path: Path) -> None:
    path = tmp_path / "prefix"
    with holder(path) as process:
        with pytest.raises(AlreadyRunning, match=f"process {process.pid} holds"), locks.exclusive_folder_lock(path):
            pytest.fail("the lock was given twice")
        assert len(files.part_files_beside(path)) == 1
    assert len(names(tmp_path)) == 2, "its part, and its lock file"
    with locks.exclusive_folder_lock(path):
        assert names(tmp_path) == [LOCK]
    assert names(tmp_path) == []


@pytest.mark.processes
def test_the_lock_lasts_as_long_as_a_process_that_has_its_descriptor(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The next one waits for the rest of a killed process, and neither gives up before nor sweeps under its hands."""
    path = tmp_path / "prefix"
    with holder(path, "fork") as process:
        process.wait()
        with monkeypatch.context() as patch:
            patch.setattr(locks, "ENDING", 0.0)
            with pytest.raises(AlreadyRunning, match=f"process {process.pid} holds"), locks.exclusive_folder_lock(path):
                pytest.fail("the lock was given twice")
        assert len(files.part_files_beside(path)) == 1
        monkeypatch.setattr(locks, "ENDING", waiting.CEILING)
        monkeypatch.setattr(time, "sleep", lambda _: process.stdin and process.stdin.close())
        with locks.exclusive_folder_lock(path):
            assert names(tmp_path) == [LOCK]


def test_a_lock_file_that_its_holder_removes_meanwhile_is_made_anew(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Between opening and locking, the holder before may end; a lock on its removed file would keep nobody out."""
    lock, real = tmp_path / LOCK, fcntl.flock
    left = [1]

    def flock(descriptor: int, operation: int) -> None:
        if left:
            left.pop()
            lock.unlink()
        real(descriptor, operation)

    monkeypatch.setattr(fcntl, "flock", flock)
    with locks.exclusive_folder_lock(tmp_path / "prefix") as descriptor:
        assert os.path.samestat(os.fstat(descriptor), lock.stat())


@pytest.mark.parametrize("code", [errno.ENOLCK, errno.ENOSYS, errno.EOPNOTSUPP])
def test_where_a_file_system_has_no_locks_nothing_is_removed(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, code: int
) -> None:
    def flock(*_: Any) -> None:
        raise OSError(code, os.strerror(code))

    monkeypatch.setattr(fcntl, "flock", flock)
    (tmp_path / PART).mkdir()
    with locks.exclusive_folder_lock(tmp_path / "prefix"):
        assert (tmp_path / PART).exists(), "it may be a living process's"
    assert names(tmp_path) == [PART]


def test_a_link_or_a_second_name_in_the_place_of_the_lock_file_harms_nobody(tmp_path: Path) -> None:
    victim, lock = tmp_path / "victim", tmp_path / LOCK
    victim.write_text("content")
    lock.symlink_to(victim)
    with pytest.raises(OSError, match="symbolic links") as caught, locks.exclusive_folder_lock(tmp_path / "prefix"):
        pytest.fail("a link was followed")
    assert str(caught.value.filename) == str(lock)
    lock.unlink()
    lock.hardlink_to(victim)
    with locks.exclusive_folder_lock(tmp_path / "prefix"):
        pass
    assert victim.read_text() == "content"


def test_what_cannot_be_removed_hinders_nobody(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(path: Path) -> None:
        raise PermissionError(errno.EPERM, "Operation not permitted", str(path))

    monkeypatch.setattr(files, "remove", refuse)
    (tmp_path / PART).mkdir()
    with locks.exclusive_folder_lock(tmp_path / "prefix"):
        pass
    assert names(tmp_path) == [PART]


def test_a_lock_file_of_another_user_is_locked_by_reading(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    lock, real = tmp_path / LOCK, os.open
    lock.write_text("1\n")

    def opened(path: Any, flags: int, *more: int, **others: Any) -> int:
        if flags & os.O_RDWR:
            raise PermissionError(errno.EACCES, "Permission denied", str(path))
        return real(path, flags, *more, **others)

    monkeypatch.setattr(os, "open", opened)
    (tmp_path / PART).mkdir()
    with locks.exclusive_folder_lock(tmp_path / "prefix"):
        assert names(tmp_path) == [LOCK]
        with pytest.raises(AlreadyRunning), locks.exclusive_folder_lock(tmp_path / "prefix"):
            pytest.fail("the lock was given twice")


def test_leftovers_of_a_finished_folder_are_removed_without_a_trace(tmp_path: Path) -> None:
    path = tmp_path / "prefix"
    path.mkdir()
    for name in (PART, LOCK):
        (tmp_path / name).touch()
        locks.remove_leftovers_of_killed_processes(path)
        assert names(tmp_path) == ["prefix"]
    locks.remove_leftovers_of_killed_processes(tmp_path / "nowhere" / "prefix")
    assert names(tmp_path) == ["prefix"]


UNFINISHED = """
import os, signal, sys
from pathlib import Path
from kiln.base import locks as folder_lock
with folder_lock.temporary_folder(Path(sys.argv[1]), ".fetch-") as folder:
    (folder / "part").touch()
    print(folder.name, flush=True)
    sys.stdin.read()
    os.kill(os.getpid(), signal.SIGKILL)
"""


@pytest.mark.processes
def test_unfinished_folders_of_killed_processes_are_removed_and_of_others_not(tmp_path: Path) -> None:
    (tmp_path / ".fetch-file").touch()
    (tmp_path / ".fetch-link").symlink_to(tmp_path)
    argv = (sys.executable, "-c", UNFINISHED, str(tmp_path))
    with subprocess.Popen(argv, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        other = process.stdout.readline().strip()
        with locks.temporary_folder(tmp_path, ".fetch-") as own:
            assert {own.name, other} <= set(names(tmp_path))
        assert (tmp_path / other / "part").is_file()
        process.communicate("")
    assert other in names(tmp_path)
    with locks.temporary_folder(tmp_path, ".fetch-"):
        assert other not in names(tmp_path)
    assert names(tmp_path) == [".fetch-file", ".fetch-link"]
