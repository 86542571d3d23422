"""Files: written completely or not at all, hashed, checked for disk space, locked."""

from __future__ import annotations

import errno
import hashlib
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base import files
from kiln.base.errors import AlreadyRunning, DiskFull, KilnError, NotWritable, SystemFault
from kiln.base.system import files as system_files
from kiln.state.store.compile_cache import folder_digest


def names(folder: Path) -> list[str]:
    """Return the names in a folder."""
    return [path.name for path in folder.iterdir()]


def test_a_file_is_written_with_its_folders_and_nothing_else(tmp_path: Path) -> None:
    files.write_text(tmp_path / "a" / "b.txt", "grüße\n")
    assert (tmp_path / "a" / "b.txt").read_bytes() == "grüße\n".encode()
    assert names(tmp_path / "a") == ["b.txt"]


def test_a_failure_leaves_the_old_content_and_no_partial_file(tmp_path: Path) -> None:
    target = tmp_path / "file"
    target.write_text("old")

    def write_half() -> None:
        with files.atomic_replacement(target) as part:
            part.write_text("half")
            raise RuntimeError("in the middle")

    with pytest.raises(RuntimeError, match="in the middle"):
        write_half()
    assert target.read_text() == "old"
    assert names(tmp_path) == ["file"]


@pytest.mark.processes
def test_a_killed_writers_partial_file_is_removed(tmp_path: Path) -> None:
    code = (
        "import os, signal; from pathlib import Path; from kiln.base import files\n"
        f"with files.atomic_replacement(Path({str(tmp_path)!r}) / 'file') as part:\n"
        "    part.write_text('half'); os.kill(os.getpid(), signal.SIGKILL)"
    )
    subprocess.run([sys.executable, "-c", code], check=False)
    assert not (tmp_path / "file").exists()
    assert len(names(tmp_path)) == 1
    (tmp_path / "model.part").touch()
    files.remove_part_files(tmp_path)
    assert names(tmp_path) == ["model.part"], "another's file"


def test_new_files_have_the_permissions_of_the_users_mask(tmp_path: Path) -> None:
    (tmp_path / "usual").write_text("")
    files.write_text(tmp_path / "ours", "")
    assert (tmp_path / "ours").stat().st_mode == (tmp_path / "usual").stat().st_mode


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


@pytest.mark.parametrize("in_kernel", [True, False])
def test_a_copy_replaces_what_was_there_and_does_not_change_with_its_source(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, in_kernel: bool
) -> None:
    def refuse(*_: object) -> None:
        raise OSError(errno.EXDEV, "Invalid cross-device link")

    if not in_kernel:
        monkeypatch.setattr(system_files, "copy_content", refuse)
    source, target = tmp_path / "source", tmp_path / "out" / "target"
    source.write_bytes(b"content" * 100_000)
    source.chmod(0o640)
    files.write_text(target, "old")
    files.copy(source, target)
    assert names(target.parent) == ["target"]
    assert (target.stat().st_mode, target.stat().st_mtime_ns) == (source.stat().st_mode, source.stat().st_mtime_ns)
    source.write_bytes(b"changed")
    assert target.read_bytes() == b"content" * 100_000


@pytest.mark.parametrize(
    ("size", "text"),
    [(0, "0 B"), (999, "999 B"), (1000, "1.0 kB"), (340_400, "340 kB"), (999_900, "1.0 MB"), (3_400_000_000, "3.4 GB")],
)
def test_sizes_have_units(size: int, text: str) -> None:
    assert files.human_readable_size(size) == text


def test_too_little_space_is_an_error_with_numbers(tmp_path: Path) -> None:
    files.require_disk_space(tmp_path / "not" / "yet" / "there", 1, for_what="the rehearsal")
    with pytest.raises(DiskFull, match=r"the rehearsal needs 1000000 TB in ") as caught:
        files.require_disk_space(tmp_path, 10**18, for_what="the rehearsal")
    assert "are free there" in str(caught.value)


@pytest.mark.parametrize("number", [errno.ENOSPC, errno.EDQUOT])
def test_a_full_disk_has_its_own_error(number: int, tmp_path: Path) -> None:
    with pytest.raises(DiskFull, match=r"model\.bin"), files.full_disk_as_kiln_error(tmp_path):
        raise OSError(number, os.strerror(number), "model.bin")


def test_other_errors_pass(tmp_path: Path) -> None:
    with pytest.raises(PermissionError), files.full_disk_as_kiln_error(tmp_path):
        raise PermissionError(errno.EACCES, "denied")


def test_a_second_holder_is_refused_with_the_firsts_number(tmp_path: Path) -> None:
    lock = tmp_path / "artifacts" / ".lock"
    with (
        files.held_lock_file(lock),
        pytest.raises(AlreadyRunning, match=f"process {os.getpid()} holds"),
        files.held_lock_file(lock),
    ):
        pytest.fail("the lock was given twice")
    with files.held_lock_file(lock):
        assert lock.read_text() == f"{os.getpid()}\n"


@pytest.mark.processes
def test_a_lock_ends_with_its_process(tmp_path: Path) -> None:
    lock = tmp_path / "lock"
    code = (
        "import os, signal; from pathlib import Path; from kiln.base import files\n"
        f"with files.held_lock_file(Path({str(lock)!r})): os.kill(os.getpid(), signal.SIGKILL)"
    )
    assert subprocess.run([sys.executable, "-c", code], check=False).returncode == -9
    with files.held_lock_file(lock):
        assert lock.read_text() == f"{os.getpid()}\n"


def test_a_folder_is_changed_as_a_whole_and_a_failure_changes_nothing(tmp_path: Path) -> None:
    folder = tmp_path / "prefix"
    (folder / "conda-meta").mkdir(parents=True)
    (folder / "conda-meta/record.json").write_text("old")
    (folder / "kept").write_text("kept")
    (folder / "link").symlink_to("kept")

    def fail() -> None:
        with files.atomic_folder_change(folder) as part:
            (part / "conda-meta/record.json").write_text("half")
            (part / "kept").unlink()
            raise ZeroDivisionError

    with pytest.raises(ZeroDivisionError):
        fail()
    assert (folder / "conda-meta/record.json").read_text() == "old"
    with files.atomic_folder_change(folder) as part:
        (part / "conda-meta/record.json").write_text("new")
        assert (folder / "conda-meta/record.json").read_text() == "old", "until the end"
    assert (folder / "conda-meta/record.json").read_text() == "new"
    assert (folder / "link").readlink() == Path("kept")
    assert [path.name for path in tmp_path.iterdir()] == ["prefix"]


def test_a_place_below_a_folder_is_refused_past_a_link_on_the_way(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "root", tmp_path / "elsewhere"
    (root / "own").mkdir(parents=True)
    elsewhere.mkdir()
    (root / "away").symlink_to(elsewhere)
    (root / "near").symlink_to("own")
    assert files.safe_path_inside(root / "own" / "new", root) == root / "own" / "new"
    assert files.safe_path_inside(root / "near" / "new", root, links=True) == root / "near" / "new"
    for path, links in (("away/new", False), ("away", True), ("near/new", False), ("own/../../elsewhere", True)):
        with pytest.raises(NotWritable, match=r"is a link.*\n.*it leads to|leads out of"):
            files.safe_path_inside(root / path, root, links=links)


def test_a_folder_may_itself_be_reached_by_a_link(tmp_path: Path) -> None:
    (tmp_path / "real").mkdir()
    (tmp_path / "link").symlink_to("real")
    assert files.safe_path_inside(tmp_path / "link" / "new", tmp_path / "link") == tmp_path / "link" / "new"


@pytest.mark.parametrize(
    ("number", "kind"),
    [(errno.EROFS, NotWritable), (errno.EPERM, NotWritable), (errno.EDQUOT, DiskFull), (errno.EISDIR, SystemFault)],
)
def test_what_the_system_refuses_is_a_failure_that_names_the_file(number: int, kind: type[KilnError]) -> None:
    result = files.os_error_as_kiln_error(OSError(number, os.strerror(number), "/a/file"))
    assert isinstance(result, kind)
    assert "/a/file" in result.what


def test_reserved_space_has_no_name_and_is_freed(tmp_path: Path) -> None:
    reserve = files.ReservedDiskSpace(tmp_path / "new", 1 << 16)
    assert names(tmp_path / "new") == []
    reserve.release()


@pytest.mark.processes
def test_folders_that_their_owner_may_not_change_are_removed_and_no_link_followed(tmp_path: Path) -> None:
    """As Go leaves its modules; root may do without, so it is run as one that may not."""
    locked, outside = tmp_path / "work" / "locked" / "inner", tmp_path / "outside"
    locked.mkdir(parents=True)
    (locked / "file").touch()
    outside.mkdir(mode=0o500)
    (locked / "link").symlink_to(outside)
    locked.chmod(0o500)
    locked.parent.chmod(0)
    code = "import pathlib, sys; from kiln.base import files; files.remove(pathlib.Path(sys.argv[1]))"
    rights = ("setpriv", "--bounding-set=-all", "--inh-caps=-all") if os.getuid() == 0 else ()
    words = (*rights, sys.executable, "-c", code, str(tmp_path / "work"))
    ended = subprocess.run(words, capture_output=True, text=True, check=False)
    assert (ended.returncode, ended.stderr) == (0, "")
    assert not (tmp_path / "work").exists()
    assert outside.stat().st_mode & 0o777 == 0o500


@pytest.mark.parametrize("size", [1, 7, 1000])
def test_the_parts_of_a_file_are_its_content(tmp_path: Path, size: int) -> None:
    content = bytes(range(256)) * 3
    (tmp_path / "file").write_bytes(content)
    with (tmp_path / "file").open("rb") as file:
        parts = list(files.read_chunks(file, size))
    assert b"".join(parts) == content
    assert all(len(part) <= size for part in parts)
    with (tmp_path / "file").open("rb") as file:
        assert files.open_file_sha256(file) == files.sha256(tmp_path / "file") == hashlib.sha256(content).hexdigest()


def test_an_empty_file_is_created_in_one_step_and_not_through_a_link(tmp_path: Path) -> None:
    mark = tmp_path / "new" / "mark"
    files.create_empty_file(mark)
    files.create_empty_file(mark)
    assert [path.name for path in mark.parent.iterdir()] == ["mark"]
    link = tmp_path / "link"
    link.symlink_to(tmp_path / "target")
    with pytest.raises(OSError, match="symbolic links"):
        files.create_empty_file(link)
    assert not (tmp_path / "target").exists()


@pytest.mark.parametrize(("depth", "name"), [(1050, "d"), (30, "d" * 200), (1050, "d" * 20)])
def test_folders_of_any_depth_are_measured_copied_hashed_and_removed(tmp_path: Path, depth: int, name: str) -> None:
    """Deeper than Python's stack, than the longest path, and than the open files of a process."""
    top = tmp_path / "top"
    top.mkdir()
    place = os.open(top, os.O_RDONLY)
    for _ in range(depth):
        os.mkdir(name, dir_fd=place)
        inner = os.open(name, os.O_RDONLY, dir_fd=place)
        os.close(place)
        place = inner
    os.close(os.open("file", os.O_CREAT, dir_fd=place))
    os.close(place)
    is_short = depth * (len(name) + 1) < 4000
    assert len([folder for folder, _, _ in files.walk(top)]) > 15
    assert files.size_on_disk(top) >= 0
    assert folder_digest(top)
    if is_short:
        files.copy_tree(top, tmp_path / "copy", shutil.copy2)
        assert [path.name for path in files.files_below(tmp_path / "copy")] == ["file"]
        files.remove(tmp_path / "copy")
    files.remove(top)
    assert names(tmp_path) == []
