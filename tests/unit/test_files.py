"""Files: whole or not at all, known by their hash, with room to write them, by one process at a time."""

from __future__ import annotations

import errno
import hashlib
import os
import subprocess
import sys
from pathlib import Path

import pytest

from kiln import files
from kiln.errors import AlreadyRunning, DiskFull


def names(folder: Path) -> list[str]:
    """What lies in a folder."""
    return [path.name for path in folder.iterdir()]


def test_a_file_is_written_with_its_folders_and_nothing_else(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a" / "b.txt", "grüße\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "grüße\n".encode()
    assert names(tmp_path / "a") == ["b.txt"]


def test_a_failure_leaves_the_old_content_and_no_rest(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def write_half() -> None:
        with files.replacing(target) as part:
            part.write_text("half")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        write_half()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["file"]


def test_the_new_content_is_not_there_before_the_end(tmp_path: Path) -> None:
    with files.replacing(tmp_path / "file") as part:
        part.write_text("new")
        assert not (tmp_path / "file").exists()
    assert (tmp_path / "file").read_text() == "new"


def test_a_folder_is_put_in_place_as_a_whole(tmp_path: Path) -> None:
    with files.replacing(tmp_path / "tree") as part:
        (part / "sub").mkdir(parents=True)
    assert (tmp_path / "tree" / "sub").is_dir()
    assert names(tmp_path) == ["tree"]


@pytest.mark.processes
def test_a_killed_writer_leaves_a_rest_that_is_found_and_removed(tmp_path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from kiln import files\n"
        f"with files.replacing(Path({str(tmp_path)!r}) / 'file') as part:\n"
        "    part.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert not (tmp_path / "file").exists()
    assert len(names(tmp_path)) == 1
    files.remove_leftovers(tmp_path)
    assert names(tmp_path) == []


def test_other_files_are_no_leftovers(tmp_path: Path) -> None:
    for name in ("file", ".hidden", "model.part"):
        (tmp_path / name).write_text(name)
    files.remove_leftovers(tmp_path)
    assert sorted(names(tmp_path)) == [".hidden", "file", "model.part"]


def test_new_files_have_the_permissions_of_the_users_mask(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")
    files.write_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


def test_sha256_is_that_of_the_content(tmp_path: Path) -> None:
    data = b"x" * (3 << 20)
    (tmp_path / "file").write_bytes(data)
    assert files.sha256(tmp_path / "file") == hashlib.sha256(data).hexdigest()


def test_a_link_replaces_what_was_there_and_can_be_repeated(tmp_path: Path) -> None:
    source, target = tmp_path / "source", tmp_path / "out" / "target"
    source.write_text("content")
    files.write_text(target, "old")
    for _ in range(2):
        files.link_or_copy(source, target)
        assert target.samefile(source)
        assert names(target.parent) == ["target"]


def test_where_links_cannot_be_made_the_file_is_copied(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    monkeypatch.setattr(os, "link", refuse)
    (tmp_path / "source").write_text("content")
    files.link_or_copy(tmp_path / "source", tmp_path / "target")
    assert (tmp_path / "target").read_text() == "content"
    assert not (tmp_path / "target").samefile(tmp_path / "source")


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (340_400, "340 kB"), (999_900, "1.0 MB"), (3_400_000_000, "3.4 GB")],
)
def test_sizes_are_told_for_people(size: int, text: str) -> None:
    assert files.size_text(size) == text


def test_enough_room_is_silent_and_too_little_is_told_with_numbers(tmp_path: Path) -> None:
    files.require_room(tmp_path / "not" / "yet" / "there", 1, for_what="the rehearsal")
    with pytest.raises(DiskFull, match=r"the rehearsal needs 1000000 TB in ") as caught:
        files.require_room(tmp_path, 10**18, for_what="the rehearsal")
    assert "are free there" in str(caught.value)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_its_own_error(number: int, tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match=r"model\.bin"), files.no_room_as_disk_full(tmp_path):
        raise OSError(number, os.strerror(number), "model.bin")


def test_a_device_without_room_is_a_full_disk(tmp_path: Path) -> None:
    with (
        pytest.raises(DiskFull, match="No space left"),
        files.no_room_as_disk_full(tmp_path),
        Path("/dev/full").open("wb", buffering=0) as full,
    ):
        full.write(b"x")


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), files.no_room_as_disk_full(tmp_path):
        raise PermissionError(errno.EACCES, "denied")


def test_a_second_holder_is_refused_and_told_who_holds_the_lock(tmp_path: Path) -> None:
    lock = tmp_path / "artifacts" / ".lock"
    with files.locked(lock), pytest.raises(AlreadyRunning, match=f"process {os.getpid()} holds"), files.locked(lock):
        pytest.fail("the lock was given twice")
    with files.locked(lock):
        assert lock.read_text() == f"{os.getpid()}\n"


@pytest.mark.processes
def test_a_lock_goes_with_the_process_that_held_it(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = (
        "import os, signal; from pathlib import Path; from kiln import files\n"
        f"with files.locked(Path({str(lock)!r})): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with files.locked(lock):
        assert lock.read_text() == f"{os.getpid()}\n"


def test_a_folder_is_changed_as_a_whole_and_a_failure_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "prefix"
    (folder / "conda-meta").mkdir(parents=True)
    (folder / "conda-meta/record.json").write_text("old")
    (folder / "kept").write_text("kept")
    (folder / "link").symlink_to("kept")

    def fail() -> None:
        with files.changing(folder) as part:
            (part / "conda-meta/record.json").write_text("half")
            (part / "kept").unlink()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (folder / "conda-meta/record.json").read_text() == "old"
    with files.changing(folder) as part:
        (part / "conda-meta/record.json").write_text("new")
        assert (folder / "conda-meta/record.json").read_text() == "old", "until the end"
    assert (folder / "conda-meta/record.json").read_text() == "new"
    assert (folder / "link").readlink() == Path("kept")
    assert [path.name for path in tmp_path.iterdir()] == ["prefix"]
