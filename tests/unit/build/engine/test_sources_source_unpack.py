"""Archives of sources are unpacked whole, with their times and modes, and into their folder alone."""

from __future__ import annotations

import io
import os
import tarfile
import tracemalloc
import zipfile
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed, KilnError, LimitExceeded, MissingTool
from kiln.base.zstd import FAST, compressing_file
from kiln.build.engine.sources import unpack_source
from kiln.conda.rattler import limits

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

TIME = 1_000_000_000
Entry = tuple[str, bytes, bytes, str]  # a name, a type of tarfile's, the content, the target of a link
ENTRIES: tuple[Entry, ...] = (
    ("top/", tarfile.DIRTYPE, b"", ""),
    ("top/run.sh", tarfile.REGTYPE, b"#!/bin/sh\n", ""),
    ("top/link", tarfile.SYMTYPE, b"", "/etc/hostname"),
    ("top/same", tarfile.LNKTYPE, b"", "top/run.sh"),
)


def tar(path: Path, *entries: Entry, mode: str = "w:gz") -> Path:
    with tarfile.open(path, mode) as archive:  # type: ignore[call-overload]
        for name, kind, data, link in entries:
            member = tarfile.TarInfo(name)
            member.type, member.size, member.linkname, member.mtime, member.mode = kind, len(data), link, TIME, 0o2754
            archive.addfile(member, io.BytesIO(data))
    return path


def of_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w") as archive:
        for name, kind, data, link in ENTRIES:
            member = zipfile.ZipInfo(name, (2001, 9, 9, 1, 46, 40))
            kinds = {tarfile.SYMTYPE: 0o120777, tarfile.DIRTYPE: 0o40755}
            member.external_attr = kinds.get(kind, 0o100754) << 16
            archive.writestr(member, link if kind == tarfile.SYMTYPE else data)
    return path


def of_zstd(path: Path, *entries: Entry) -> Path:
    plain = tar(path.with_suffix(""), *(entries or ENTRIES), mode="w")
    with path.open("wb") as file, compressing_file(file, level=FAST) as packed:
        packed.write(plain.read_bytes())
    return path


MAKERS: dict[str, Callable[[Path], Path]] = {
    "a.tar.gz": lambda path: tar(path, *ENTRIES),
    "a.tar.xz": lambda path: tar(path, *ENTRIES, mode="w:xz"),
    "a.TAR.BZ2": lambda path: tar(path, *ENTRIES, mode="w:bz2"),
    "a.tar": lambda path: tar(path, *ENTRIES, mode="w"),
    "a.zip": of_zip,
    "a.tar.zst": of_zstd,
    # libarchive goes by the content, and so does conda-build
    "plain.tar.gz": lambda path: tar(path, *ENTRIES, mode="w"),
    "packed.zip": lambda path: tar(path, *ENTRIES),
    "zip.tar.xz": of_zip,
    "packed.tar.lzma": of_zstd,
}


@pytest.mark.parametrize("name", sorted(MAKERS))
@pytest.mark.parametrize("hoist", [True, False])
def test_an_archive(name: str, hoist: bool, tmp_path: Path) -> None:
    tree = unpack_source(MAKERS[name](tmp_path / name), name, tmp_path / "new", hoist=hoist, env={})
    assert tree == (tmp_path / "new" / "top" if hoist else tmp_path / "new")
    top = tmp_path / "new" / "top"
    status = (top / "run.sh").stat()
    assert (top / "run.sh").read_bytes() == b"#!/bin/sh\n"
    assert (status.st_mode & 0o7777, status.st_mtime) == (0o754, TIME)
    assert top.stat().st_mtime == TIME
    assert os.readlink(top / "link") == "/etc/hostname"  # noqa: PTH115 - as text
    if MAKERS[name] is not of_zip:
        assert (top / "same").samefile(top / "run.sh")


def test_several_entries_at_the_top_stay(tmp_path: Path) -> None:
    archive = tar(tmp_path / "a.tgz", *ENTRIES, ("other", tarfile.REGTYPE, b"", ""))
    tree = unpack_source(archive, "a.tgz", tmp_path / "new", hoist=True, env={})
    assert sorted(path.name for path in tree.iterdir()) == ["other", "top"]


def test_a_wheel_is_copied_and_unpacked_and_a_file_is_copied(tmp_path: Path) -> None:
    wheel = of_zip(tmp_path / "a.whl")
    tree = unpack_source(wheel, "a.whl", tmp_path / "wheel", hoist=True, env={})
    assert {path.name for path in tree.iterdir()} == {"a.whl", "top"}
    assert [path.name for path in unpack_source(wheel, "a.bin", tmp_path / "file", hoist=True, env={}).iterdir()] == [
        "a.bin"
    ]


OUT = ("link", tarfile.SYMTYPE, b"", "..")


@pytest.mark.parametrize(
    ("entries", "why"),
    [
        ([("../out", tarfile.REGTYPE, b"x", "")], "leads out"),
        ([("/out", tarfile.REGTYPE, b"x", "")], "leads out"),
        ([("a/../../out", tarfile.REGTYPE, b"x", "")], "leads out"),
        ([OUT, ("link/out", tarfile.REGTYPE, b"x", "")], "below a link"),
        ([OUT, ("link/out/", tarfile.DIRTYPE, b"", "")], "below a link"),
        ([("hard", tarfile.LNKTYPE, b"", "../secret")], "leads out"),
        ([OUT, ("hard", tarfile.LNKTYPE, b"", "link/secret")], "below a link"),
        ([("hard", tarfile.LNKTYPE, b"", "absent")], "not there"),
        ([("pipe", tarfile.FIFOTYPE, b"", "")], "a device or a pipe"),
        ([("x", tarfile.REGTYPE, b"", ""), ("x/y", tarfile.REGTYPE, b"", "")], "cannot be unpacked"),
        ([("x/", tarfile.DIRTYPE, b"", ""), ("x", tarfile.SYMTYPE, b"", "..")], "cannot be unpacked"),
        ([("x" * 300, tarfile.REGTYPE, b"", "")], "cannot be unpacked"),
    ],
)
@pytest.mark.parametrize("ending", ["tgz", "tar.xz", "tar.zst"])
def test_nothing_is_made_outside_of_the_folder(entries: list[Entry], why: str, ending: str, tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    archive = tmp_path / f"a.{ending}"
    if ending == "tar.zst":
        of_zstd(archive, *entries)
    else:
        tar(archive, *entries, mode="w:xz" if ending == "tar.xz" else "w:gz")
    with pytest.raises(BuildFailed, match=why) as caught:
        unpack_source(archive, archive.name, tmp_path / "new", hoist=True, env={})
    assert why in f"{caught.value.what} {caught.value.why}"
    assert {path.name for path in tmp_path.iterdir()} - {"a.tar"} == {archive.name, "new", "secret"}
    assert (tmp_path / "secret").stat().st_nlink == 1


def test_a_later_member_replaces_a_link_and_writes_not_through_it(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    archive = tar(tmp_path / "a.tgz", ("x", tarfile.SYMTYPE, b"", "../secret"), ("x", tarfile.REGTYPE, b"new", ""))
    tree = unpack_source(archive, "a.tgz", tmp_path / "new", hoist=True, env={})
    assert (tree / "x").read_text() == "new"
    assert (tmp_path / "secret").read_text() == "secret"


@pytest.mark.parametrize("name", ["a.tar.gz", "a.zip", "a.tar.zst", "a.tar.lzma"])
def test_a_damaged_archive(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"\x1f\x8b\x08no archive")
    with pytest.raises(BuildFailed, match=f"{name} cannot be unpacked"):
        unpack_source(tmp_path / name, name, tmp_path / "new", hoist=True, env={})


@pytest.mark.parametrize("name", ["a.rpm", "a.deb", "a.7z", "a.tar.z"])
def test_the_package_of_a_missing_program_is_named(name: str, tmp_path: Path) -> None:
    (tmp_path / name).write_bytes(b"")
    with pytest.raises(MissingTool, match="bsdtar"):
        unpack_source(tmp_path / name, name, tmp_path / "new", hoist=True, env={"PATH": str(tmp_path)})


@pytest.mark.processes
@pytest.mark.parametrize(
    ("member", "why"),
    [
        (("top/pipe", tarfile.FIFOTYPE, b"", ""), "is a device or a pipe"),
        (("../a", tarfile.REGTYPE, b"x", ""), "leads out of the archive's folder"),
        (("large", tarfile.REGTYPE, bytes(1 << 20), ""), "more than the limit of unpacked"),
    ],
)
def test_what_bsdtar_reads_has_the_rules_of_all_archives(member: Entry, why: str, tmp_path: Path) -> None:
    """A program in the place of bsdtar writes an archive to its standard output, as bsdtar does of an RPM."""
    written = tar(tmp_path / "a.tar", member)
    (tmp_path / "bsdtar").write_text(f"#!/bin/sh\nzcat {written} 2>/dev/null || cat {written}\n")
    (tmp_path / "bsdtar").chmod(0o755)
    (tmp_path / "a.rpm").write_bytes(b"")
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    with limits.override_limits(limits.Limits(unpacked=1_000_000, files=8)), pytest.raises(KilnError) as caught:
        unpack_source(tmp_path / "a.rpm", "a.rpm", tmp_path / "new", hoist=True, env=env)
    assert why in f"{caught.value.what} {caught.value.why}"


@pytest.mark.processes
def test_bsdtar_says_what_is_wrong(tmp_path: Path) -> None:
    (tmp_path / "bsdtar").write_text("#!/bin/sh\necho 'not a package' >&2; exit 1\n")
    (tmp_path / "bsdtar").chmod(0o755)
    (tmp_path / "a.rpm").write_bytes(b"")
    with pytest.raises(BuildFailed, match=r"a\.rpm cannot be unpacked") as caught:
        unpack_source(
            tmp_path / "a.rpm", "a.rpm", tmp_path / "new", hoist=True, env={"PATH": f"{tmp_path}:/usr/bin:/bin"}
        )
    assert caught.value.why == "not a package"


def test_members_of_a_zip_file_without_a_date(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w") as archive:
        archive.writestr(zipfile.ZipInfo("top/a", (1980, 0, 0, 0, 0, 0)), b"x")
    tree = unpack_source(tmp_path / "a.zip", "a.zip", tmp_path / "new", hoist=True, env={})
    assert ((tree / "a").read_bytes(), (tree / "a").stat().st_mtime) == (b"x", 315532800)


def test_a_time_that_no_file_can_have(tmp_path: Path) -> None:
    with tarfile.open(tmp_path / "a.tar", "w", format=tarfile.PAX_FORMAT) as archive:
        member = tarfile.TarInfo("a")
        member.pax_headers = {"mtime": "1e300"}
        archive.addfile(member, io.BytesIO())
    with pytest.raises(BuildFailed, match=r"a\.tar cannot be unpacked"):
        unpack_source(tmp_path / "a.tar", "a.tar", tmp_path / "new", hoist=True, env={})


def test_a_link_in_a_zip_file_is_not_read_beyond_what_a_link_can_be(tmp_path: Path) -> None:
    with zipfile.ZipFile(tmp_path / "a.zip", "w", zipfile.ZIP_DEFLATED) as archive:
        member = zipfile.ZipInfo("a")
        member.external_attr, member.compress_type = 0o120777 << 16, zipfile.ZIP_DEFLATED
        archive.writestr(member, b"x" * (64 << 20))
    tracemalloc.start()
    try:
        with pytest.raises(BuildFailed, match=r"a\.zip cannot be unpacked"):
            unpack_source(tmp_path / "a.zip", "a.zip", tmp_path / "new", hoist=True, env={})
        assert tracemalloc.get_traced_memory()[1] < 32 << 20
    finally:
        tracemalloc.stop()


def test_holes_of_a_sparse_file_take_no_space(tmp_path: Path) -> None:
    size, data = 64 << 20, b"x" * 1000
    plain = tmp_path / "plain"
    with plain.open("wb") as written:
        written.seek(size)
        written.write(data)
        written.truncate(2 * size)
    with tarfile.open(tmp_path / "a.tar.gz", "w:gz", compresslevel=1) as archive:
        archive.add(plain, "top/sparse")
    file = unpack_source(tmp_path / "a.tar.gz", "a.tar.gz", tmp_path / "tree", hoist=True, env={}) / "sparse"
    assert (file.stat().st_size, file.stat().st_blocks < 10_000) == (2 * size, True)
    with file.open("rb") as opened:
        opened.seek(size - 1)
        assert opened.read(len(data) + 2) == b"\0" + data + b"\0"


def bomb_of_zip(path: Path) -> Path:
    with zipfile.ZipFile(path, "w", zipfile.ZIP_DEFLATED) as archive:
        archive.writestr("a", b"A" * 2_000_000)
    return path


BOMBS: dict[str, Callable[[Path], Path]] = {
    "a.tar.xz": lambda path: tar(path, ("a", tarfile.REGTYPE, b"A" * 2_000_000, ""), mode="w:xz"),
    "a.tar.gz": lambda path: tar(path, *((str(n), tarfile.REGTYPE, b"A" * 400_000, "") for n in range(5))),
    "a.zip": bomb_of_zip,
    "many.tar.bz2": lambda path: tar(path, *((str(n), tarfile.REGTYPE, b"", "") for n in range(9)), mode="w:bz2"),
}


@pytest.mark.parametrize("name", BOMBS)
def test_an_archive_unpacks_no_more_than_the_limits_allow(name: str, tmp_path: Path) -> None:
    archive = BOMBS[name](tmp_path / name)
    most = limits.Limits(unpacked=1_000_000, files=8)
    with limits.override_limits(most), pytest.raises(LimitExceeded, match="is not unpacked") as caught:
        unpack_source(archive, name, tmp_path / "new", hoist=True, env={})
    assert caught.value.hint.endswith(f"{'files' if name.startswith('many') else 'unpacked'}=...'")
    assert sum(path.stat().st_size for path in (tmp_path / "new").iterdir()) <= most.unpacked
    unpack_source(archive, name, tmp_path / "again", hoist=True, env={})
