"""The folder that one job hands on to the next: read only if it is whole, and unpacked only into its own folder."""

from __future__ import annotations

import hashlib
import io
import json
import os
import stat
import tarfile
from pathlib import Path

import pytest

from kiln.base.errors import BrokenHandover
from kiln.base.zstd import zstd
from kiln.conda.package_reader import LARGEST_HEADER
from kiln.state.store import handover
from kiln.state.store.handover import ChainLink, ChainState, HandoverArchive, HandoverRecord

BOUND = 10_000_000


def entry(data: bytes) -> str:
    """Return the name of a file in a compile cache."""
    digest = hashlib.sha256(data).hexdigest()
    return f"cas/{digest[:2]}/{digest}"


def action(number: int) -> str:
    return f"ac/{number:02x}/{number:064x}"


def put(folder: Path, name: str, data: bytes) -> Path:
    path = folder / name
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_bytes(data)
    return path


def a_record(archive: HandoverArchive | None) -> HandoverRecord:
    return HandoverRecord(
        version=handover.VERSION,
        config="a",
        sources="s",
        cache_key="k",
        in_container=True,
        state=ChainState.UNFINISHED,
        links=(ChainLink(seconds=2.5, actions=1, steps=("compile",)),),
        archive=archive,
    )


def archived(folder: Path, *members: tuple[tarfile.TarInfo, bytes]) -> HandoverArchive:
    """Write an archive as somebody else may have made it."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w") as tar:
        for member, content in members:
            member.size = len(content)
            tar.addfile(member, io.BytesIO(content))
    packed = zstd.compress(data.getvalue())
    digest = hashlib.sha256(packed).hexdigest()
    path = put(folder, f"made-{digest[:16]}.tar.zst", packed)
    return HandoverArchive(name=path.name, size=len(packed), unpacked=1000, files=len(members), sha256=digest)


def member(name: str, kind: bytes = tarfile.REGTYPE, link: str = "") -> tarfile.TarInfo:
    info = tarfile.TarInfo(name)
    info.type, info.linkname = kind, link
    return info


def test_what_is_packed_is_unpacked_with_links_modes_and_times(tmp_path: Path) -> None:
    cache, work = tmp_path / "cache", tmp_path / "work"
    put(cache, entry(b"object"), b"object")
    put(cache, action(1), b"result")
    put(cache, "cas/being-written", b"partial")
    program = put(work, "compile/bin/program", b"#!/bin/sh\n")
    program.chmod(0o4755)
    os.utime(program, (1000, 1000))
    (work / "compile" / "inside").symlink_to("bin/program")
    (work / "compile" / "outside").symlink_to("/etc/passwd")
    put(work, "compile/bazel/base/DO_NOT_BUILD_HERE", b"")
    put(work, "compile/bazel/base/external/large", b"of Bazel's own")
    entries, left_out = handover.newest_cache_entries(cache, BOUND)
    archive = handover.pack_archive(
        tmp_path / "dir", [*handover.work_folder_entries(work, {"compile", "missing"}), *entries]
    )[0]
    rejected = handover.unpack_archive(tmp_path / "dir", archive, tmp_path / "new", bound=BOUND)
    new = tmp_path / "new"
    names = sorted(path.relative_to(new).as_posix() for path in new.rglob("*") if not path.is_dir())
    assert names == sorted(
        [f"cache/{entry(b'object')}", f"cache/{action(1)}", "work/compile/bin/program", "work/compile/inside"]
    )
    assert (left_out, rejected, archive.files) == (0, 0, 4)
    unpacked = new / "work" / "compile" / "bin" / "program"
    assert (unpacked.stat().st_mode & 0o7777, unpacked.stat().st_mtime) == (0o755, 1000)
    assert (new / "work" / "compile" / "inside").read_bytes() == b"#!/bin/sh\n"


def test_a_cache_above_the_limit_hands_on_its_newest_entries(tmp_path: Path) -> None:
    for number in range(4):
        os.utime(put(tmp_path, action(number), bytes(100)), (number, number))
    entries, left_out = handover.newest_cache_entries(tmp_path, 250)
    assert [name for name, _ in entries] == [f"cache/{action(3)}", f"cache/{action(2)}"]
    assert left_out == 2


def test_the_record_survives_and_archives_that_it_does_not_name_are_removed(tmp_path: Path) -> None:
    old = put(tmp_path, "made-0123456789abcdef.tar.zst", b"")
    archive = handover.pack_archive(tmp_path, [("cache/" + action(1), put(tmp_path / "c", action(1), b"result"))])[0]
    assert old.exists()
    handover.write_handover_record(tmp_path, a_record(archive))
    assert not old.exists()
    assert handover.read_handover_record(tmp_path) == a_record(archive)
    assert handover.read_handover_record(tmp_path / "nothing") is None


@pytest.mark.parametrize(
    "text",
    [
        b"",
        b"[]",
        b"{}",
        b'{"version": 1}',
        b'{"version": 2}',
        b"\xff",
        b"[" * 100_000,
        b" " * (handover.LONGEST_RECORD + 1),
    ],
)
def test_an_invalid_record_is_refused(tmp_path: Path, text: bytes) -> None:
    (tmp_path / handover.RECORD).write_bytes(text)
    with pytest.raises(BrokenHandover, match="is invalid") as raised:
        handover.read_handover_record(tmp_path)
    assert raised.value.why
    assert "remove the folder" in raised.value.hint


def test_a_record_cannot_name_an_archive_elsewhere(tmp_path: Path) -> None:
    archive = HandoverArchive(name="../made-0123456789abcdef.tar.zst", size=1, unpacked=1, files=1, sha256="")
    handover.write_handover_record(tmp_path, a_record(archive))
    with pytest.raises(BrokenHandover, match="is invalid"):
        handover.read_handover_record(tmp_path)


@pytest.mark.parametrize(
    "harmful",
    [
        member("../out"),
        member("/out"),
        member("work/../../out"),
        member("other/file"),
        member("cache/ac/../../../out"),
        member("cache/notes.txt"),
        member("cache/" + action(1), tarfile.SYMTYPE, "../../../work/file"),
        member("work/link", tarfile.SYMTYPE, "/etc"),
        member("work/link", tarfile.SYMTYPE, "../cache"),
        member("work/hard", tarfile.LNKTYPE, "work/file"),
        member("work/pipe", tarfile.FIFOTYPE),
        member("work/device", tarfile.CHRTYPE),
        member("work/folder", tarfile.DIRTYPE),
    ],
    ids=lambda info: f"{info.name} {info.linkname}".strip(),
)
def test_a_path_that_leads_out_of_the_folder_is_refused(tmp_path: Path, harmful: tarfile.TarInfo) -> None:
    archive = archived(tmp_path / "dir", (harmful, b""))
    with pytest.raises(BrokenHandover, match="cannot be unpacked"):
        handover.unpack_archive(tmp_path / "dir", archive, tmp_path / "new", bound=BOUND)
    assert not (tmp_path / "out").exists()
    assert not [path for path in (tmp_path / "new").rglob("*") if path.is_file()]


def test_names_with_colons_and_backslashes_are_handed_on(tmp_path: Path) -> None:
    names = ["man3/File::Temp.3", "units/a\\x2db"]
    for name in names:
        put(tmp_path / "work" / "compile", name, b"content")
    archive = handover.pack_archive(tmp_path / "dir", handover.work_folder_entries(tmp_path / "work", {"compile"}))[0]
    handover.unpack_archive(tmp_path / "dir", archive, tmp_path / "new", bound=BOUND)
    assert all((tmp_path / "new" / "work" / "compile" / name).read_bytes() == b"content" for name in names)


def test_no_file_is_written_through_a_link_of_the_archive(tmp_path: Path) -> None:
    archive = archived(
        tmp_path / "dir", (member("work/here", tarfile.SYMTYPE, "there"), b""), (member("work/here/file"), b"content")
    )
    with pytest.raises(BrokenHandover):
        handover.unpack_archive(tmp_path / "dir", archive, tmp_path / "new", bound=BOUND)
    assert not (tmp_path / "new" / "work" / "there").exists()


UP = ("work/1/2/3/up", "../..")  # is work/1, so that two more steps up from it are above the work folder
ESCAPE = ("work/escape", "1/2/3/up/../..")  # is work/1 by its words


@pytest.mark.parametrize(
    "links",
    [(UP, ESCAPE), (UP, ESCAPE, ("work/escape/evil", "1/file")), (("work/a", "b"), ("work/a/c", "d"))],
    ids=["leads out by another link", "made outside through another link", "below a link"],
)
def test_no_link_leads_out_by_another_link(tmp_path: Path, links: tuple[tuple[str, str], ...]) -> None:
    file = (member("work/1/2/3/file"), b"content")
    made = ((member(name, tarfile.SYMTYPE, linked), b"") for name, linked in links)
    archive = archived(tmp_path / "dir", file, *made)
    with pytest.raises(BrokenHandover, match=r"leads out|below a link"):
        handover.unpack_archive(tmp_path / "dir", archive, tmp_path / "new", bound=BOUND)
    assert sorted(path.name for path in tmp_path.iterdir()) == ["dir", "new"]
    assert [path.name for path in (tmp_path / "new").iterdir()] == ["work"]


def test_a_link_that_leads_out_by_another_link_is_not_packed(tmp_path: Path) -> None:
    put(tmp_path, "work/1/2/3/file", b"content")
    (tmp_path / "work" / "1" / "2" / "3" / "up").symlink_to("../..")
    (tmp_path / "work" / "1" / "escape").symlink_to("2/3/up/../..")
    archive = handover.pack_archive(tmp_path / "dir", handover.work_folder_entries(tmp_path / "work", {"1"}))[0]
    handover.unpack_archive(tmp_path / "dir", archive, tmp_path / "new", bound=BOUND)
    names = sorted(path.name for path in (tmp_path / "new").rglob("*") if not path.is_dir() or path.is_symlink())
    assert names == ["file", "up"]


@pytest.mark.parametrize(
    "names",
    [("work/a", "work/a"), ("work/a", "work/a/b"), ("work/a/b", "work/a"), ("work/" + 300 * "a",)],
    ids=["twice", "a file as a folder", "a folder as a file", "too long"],
)
def test_names_that_no_folder_can_have_are_an_error_of_the_archive(tmp_path: Path, names: tuple[str, ...]) -> None:
    archive = archived(tmp_path / "dir", *((member(name), b"content") for name in names))
    with pytest.raises(BrokenHandover, match="cannot be unpacked"):
        handover.unpack_archive(tmp_path / "dir", archive, tmp_path / "new", bound=BOUND)


@pytest.mark.parametrize("kind", [tarfile.XHDTYPE, tarfile.GNUTYPE_LONGNAME])
def test_a_header_is_not_read_into_memory_whatever_its_size(tmp_path: Path, kind: bytes) -> None:
    archive = archived(tmp_path / "dir", (member("work/file", kind), bytes(LARGEST_HEADER + 1)))
    with pytest.raises(BrokenHandover, match="a header of"):
        handover.unpack_archive(tmp_path / "dir", archive, tmp_path / "new", bound=BOUND)


def test_headers_of_headers_without_end_are_an_error_of_the_archive(tmp_path: Path) -> None:
    headers = ((member("work/file", tarfile.GNUTYPE_LONGNAME), b"work/other\0") for _ in range(2000))
    archive = archived(tmp_path / "dir", *headers)
    with pytest.raises(BrokenHandover, match="cannot be unpacked"):
        handover.unpack_archive(tmp_path / "dir", archive, tmp_path / "new", bound=BOUND)


def test_an_entry_with_another_content_than_its_name_says_is_dropped(tmp_path: Path) -> None:
    archive = archived(tmp_path / "dir", (member("cache/" + entry(b"good")), b"evil"))
    rejected = handover.unpack_archive(tmp_path / "dir", archive, tmp_path / "new", bound=BOUND)
    assert rejected == 1
    assert not (tmp_path / "new" / "cache" / entry(b"good")).exists()


def test_an_archive_is_refused_that_is_damaged_missing_or_larger_than_it_says(tmp_path: Path) -> None:
    folder = tmp_path / "dir"
    archive = archived(folder, (member("work/zeros"), bytes(50_000)))
    with pytest.raises(BrokenHandover, match="too large: 50 kB"):
        handover.unpack_archive(folder, archive, tmp_path / "a", bound=40_000)
    (folder / archive.name).write_bytes(b"other")
    with pytest.raises(BrokenHandover, match="another hash"):
        handover.unpack_archive(folder, archive, tmp_path / "b", bound=BOUND)
    (folder / archive.name).unlink()
    with pytest.raises(BrokenHandover, match="is missing"):
        handover.unpack_archive(folder, archive, tmp_path / "c", bound=BOUND)


def test_what_cannot_be_read_is_left_out_and_named(tmp_path: Path) -> None:
    work, cache = tmp_path / "work", tmp_path / "cache"
    put(work, "1/kept", b"a file")
    os.mkfifo(work / "1" / "pipe")
    (work / "1" / "inside").symlink_to("kept")
    put(cache, action(1), b"result")
    os.mkfifo(cache / put(cache, action(2), b"").relative_to(cache).parent / f"{3:064x}")
    (cache / "ac" / "02" / f"{4:064x}").symlink_to("/etc/passwd")
    vanished = put(work, "1/vanished", b"soon gone")
    os.mknod(work / "1" / "socket", stat.S_IFSOCK | 0o600)
    entries = [*handover.work_folder_entries(work, {"1"}), *handover.newest_cache_entries(cache, BOUND)[0]]
    vanished.unlink()
    archive, unreadable = handover.pack_archive(tmp_path / "dir", entries)
    assert dict(unreadable) == {
        "work/1/pipe": "it is not a regular file",
        "work/1/socket": "it is not a regular file",
        "work/1/vanished": "No such file or directory",
        f"cache/ac/02/{3:064x}": "it is not a regular file",
        f"cache/ac/02/{4:064x}": "it is not a regular file",
    }
    assert archive.files == 4
    rejected = handover.unpack_archive(tmp_path / "dir", archive, tmp_path / "new", bound=BOUND)
    assert rejected == 0
    assert (tmp_path / "new" / "work" / "1" / "inside").read_bytes() == b"a file"


@pytest.mark.processes
@pytest.mark.skipif(not hasattr(os, "fork"), reason="there are no users without rights")
def test_files_and_folders_of_others_are_left_out_and_named(tmp_path: Path) -> None:
    work = tmp_path / "work"
    put(work, "1/kept", b"a file")
    put(work, "1/closed", b"").chmod(0)
    put(work, "1/folder/inside", b"")
    (work / "1" / "folder").chmod(0)
    tmp_path.chmod(0o755)
    handover.pack_archive(tmp_path / "dir", [])  # what is imported late may be closed to others, too
    reading, writing = os.pipe()
    child = os.fork()
    if child == 0:
        try:
            os.chdir(tmp_path)  # whose parents are closed to others
            if os.geteuid() == 0:
                os.chown("dir", 65534, 65534)
                os.setuid(65534)
            archive, failures = handover.pack_archive(Path("dir"), handover.work_folder_entries(Path("work"), {"1"}))
            os.write(writing, json.dumps([archive.files, failures]).encode())
        except OSError as error:
            os.write(writing, repr(error).encode())
        finally:
            os._exit(0)
    os.close(writing)
    with os.fdopen(reading, "rb") as pipe:
        answer = pipe.read()
    os.waitpid(child, 0)
    (work / "1" / "folder").chmod(0o700)
    unreadable = [["work/1/closed", "Permission denied"], ["work/1/folder", "the folder cannot be listed"]]
    assert json.loads(answer) == [1, unreadable]


def test_a_record_of_this_version_can_be_read_by_other_programs(tmp_path: Path) -> None:
    handover.write_handover_record(tmp_path, a_record(None))
    data = json.loads((tmp_path / handover.RECORD).read_text())
    assert (data["state"], data["links"][0]["steps"]) == ("unfinished", ["compile"])
