"""Sources that kiln fetches: what the engine gets in their place, and what is refused before it starts."""

from __future__ import annotations

import dataclasses
import hashlib
import io
import os
import subprocess
import tarfile
import tracemalloc
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import (
    BuildFailed,
    DownloadFailed,
    HashMismatch,
    KilnError,
    LimitExceeded,
    MissingTool,
    RecipeFault,
)
from kiln.base.zstd import FAST, compressing_file
from kiln.build.engine import source_plan
from kiln.build.engine.recipe import source_entry as engine_entry
from kiln.build.engine.source_plan import SourceMirrors
from kiln.build.engine.sources import SourceFetcher, check_out_repository, folder_content_hash, unpack_source
from kiln.conda.rattler import limits
from kiln.recipe.rendered import Checkout, Source

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


DATA = b"some data"


HASHES = {name: hashlib.new(name, DATA).hexdigest() for name in ("md5", "sha1", "sha224", "sha256", "sha384", "sha512")}


SHA1 = {"sha1": HASHES["sha1"]}


@dataclasses.dataclass
class Fetch:
    """A recipe's folder with a source, a cache, and the lines of a log."""

    folder: Path
    origins: Mapping[str, Any] = dataclasses.field(default_factory=dict)
    lines: list[str] = dataclasses.field(default_factory=list)
    steps: int = 0

    @property
    def recipe(self) -> Path:
        return self.folder / "recipe"

    @property
    def cache(self) -> Path:
        return self.folder / "cache"

    def entries(self, *sources: Source) -> list[dict[str, Any]]:
        """Return the entries that the engine gets for sources."""
        self.steps += 1
        planned = [engine_entry(item, self.recipe) for item in sources if not item.linked]
        fetch = SourceFetcher(
            folder=self.folder / f"step-{self.steps}",
            origins=SourceMirrors(kept=self.cache, **self.origins),
            env={},
            on_line=self.lines.append,
        )
        recipe = fetch.recipe_with_fetched_sources(
            {"source": planned}, source_plan.sources_fetched_by_kiln(sources, self.recipe)
        )
        return list(recipe["source"])


@pytest.fixture
def fetch(tmp_path: Path) -> Fetch:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "a.bin").write_bytes(DATA)
    with zipfile.ZipFile(tmp_path / "recipe" / "a.zip", "w") as archive:
        archive.writestr("top/one.txt", "one\n")
    return Fetch(tmp_path)


@pytest.mark.parametrize("name", ["sha1", "sha224", "sha384", "sha512"])
def test_a_file_is_verified_and_kept_by_its_hash(fetch: Fetch, name: str) -> None:
    url = (fetch.recipe / "a.bin").as_uri()
    source = Source(url=(url,), hashes={name: HASHES[name].upper()}, folder="f", patches=("p",), file_name="b")
    (entry,) = fetch.entries(source)
    kept = fetch.cache / name / HASHES[name] / "b"
    assert entry == {
        "url": [kept.as_uri()],
        "sha256": HASHES["sha256"],
        "file_name": "b",
        "target_directory": "f",
        "patches": [str(fetch.recipe / "p")],
    }
    assert kept.read_bytes() == DATA
    (fetch.recipe / "a.bin").unlink()
    assert fetch.entries(source) == [entry]
    assert fetch.lines == [f"b: {url}", "b: fetched before"]


def test_a_kept_file_is_what_its_hash_says_whatever_its_name(fetch: Fetch) -> None:
    """An archive that its address does not name is downloaded; what it is called later makes no difference."""
    source = Source(url=((fetch.recipe / "a.bin").as_uri(),), hashes=SHA1, archive_name="a.tar.gz")
    assert fetch.entries(source) == fetch.entries(source)
    assert fetch.lines[-1] == "a.tar.gz: fetched before"


def test_the_strongest_hash_names_the_place_and_all_are_verified(fetch: Fetch) -> None:
    source = Source(url=("a.bin",), hashes={"sha1": HASHES["sha1"], "sha384": HASHES["sha384"]}, md5=HASHES["md5"])
    fetch.entries(source)
    assert (fetch.cache / "sha384" / HASHES["sha384"] / "a.bin").is_file()
    for changed in ({"md5": "0" * 32}, {"sha256": "0" * 64}, {"hashes": {**source.hashes, "sha1": "0" * 40}}):
        with pytest.raises(HashMismatch, match=r"a\.bin is not the recipe's source") as caught:
            fetch.entries(dataclasses.replace(source, **changed))
        assert "the recipe has 000000" in caught.value.why
        assert any("the recipe has 000000" in line for line in fetch.lines)


@pytest.mark.parametrize("text", ["../../../../etc", "12", "g" * 40, "0" * 41])
def test_an_invalid_hash_makes_no_path(fetch: Fetch, text: str) -> None:
    with pytest.raises(RecipeFault, match="source/sha1 is") as caught:
        fetch.entries(Source(url=("a.bin",), hashes={"sha1": text}))
    assert caught.value.why == "a sha1 has 40 hexadecimal digits"
    assert not fetch.cache.exists()


@pytest.mark.parametrize("name", ["../a.zip", "..", "/etc/a.zip"])
def test_a_name_leads_nowhere(fetch: Fetch, name: str) -> None:
    with pytest.raises(RecipeFault, match="source/fn"):
        fetch.entries(Source(url=("a.bin",), hashes=SHA1, archive_name=name))


def test_of_several_addresses_the_first_with_the_hash_counts(fetch: Fetch) -> None:
    (fetch.recipe / "other").write_bytes(b"other")
    source = Source(url=("absent", "other", "a.bin"), hashes=SHA1, file_name="a.bin")
    assert fetch.entries(source)[0]["sha256"] == HASHES["sha256"]
    with pytest.raises(HashMismatch, match="not the recipe's source"):
        fetch.entries(dataclasses.replace(source, url=("absent", "other"), hashes={"sha1": "0" * 40}))
    with pytest.raises(DownloadFailed, match=r"a\.bin cannot be downloaded") as caught:
        fetch.entries(dataclasses.replace(source, url=("absent", "gone"), hashes={"sha1": "0" * 40}))
    assert caught.value.why.count("no such file") == 2
    assert "--mirror" in caught.value.hint


def test_what_the_engine_verifies_stays_its_job(fetch: Fetch) -> None:
    sources = (Source(url=("https://a.org/a.zip",), sha256="0" * 64), Source(path="a.bin"), Source(git_url="../g"))
    by_engine = Source(url=("a.zip",), hashes=SHA1, content_hashes={"sha256": "0"}, no_hoist=True, by_engine=True)
    assert source_plan.sources_fetched_by_kiln((*sources, by_engine), fetch.recipe) == ()
    entries = [engine_entry(source, fetch.recipe) for source in sources]
    assert fetch.entries(*sources) == entries
    assert not fetch.cache.exists()


def test_an_archive_without_its_top_folder_removed(fetch: Fetch) -> None:
    first, entry = fetch.entries(Source(path="a.bin"), Source(url=("a.zip",), no_hoist=True, folder="f"))
    assert "a.bin" in first["path"]
    assert (entry["use_gitignore"], entry["target_directory"]) == (False, "f")
    assert (Path(entry["path"]) / "top" / "one.txt").read_text() == "one\n"
    assert not fetch.cache.exists()  # it has no hash


def test_a_file_with_the_name_of_an_archive(fetch: Fetch) -> None:
    (fetch.recipe / "download").write_bytes((fetch.recipe / "a.zip").read_bytes())
    (entry,) = fetch.entries(Source(url=("download",), archive_name="a.zip"))
    assert entry["url"][0].endswith("/a.zip")
    assert "file_name" not in entry


def test_content_is_verified(fetch: Fetch) -> None:
    tree = fetch.folder / "tree"
    tree.mkdir()
    (tree / "one.txt").write_text("one\n")
    hashes = {"sha256": folder_content_hash(tree, "sha256"), "sha512": folder_content_hash(tree, "sha512")}
    archive = Source(url=("a.zip",), content_hashes=hashes)
    (entry,) = fetch.entries(archive)
    assert (Path(entry["path"]) / "one.txt").is_file()
    (fetch.recipe / "src").mkdir()
    (fetch.recipe / "src" / "one.txt").write_text("one\r\n")
    link = Source(path="src", linked=True, folder="l", content_hashes=hashes)
    plain = Source(path="src", content_hashes=hashes)
    file = Source(path="src/one.txt", content_hashes=hashes)
    assert fetch.entries(link, plain, file) == [engine_entry(plain, fetch.recipe), engine_entry(file, fetch.recipe)]
    for source in (archive, link, plain, file):
        wrong = dataclasses.replace(source, content_hashes={**hashes, "sha512": "0" * 128})
        with pytest.raises(HashMismatch, match="is not the recipe's") as caught:
            fetch.entries(wrong)
        assert hashes["sha512"] in caught.value.why


@pytest.mark.processes
def test_links_are_made_and_made_again_and_over_nothing(tmp_path: Path) -> None:
    recipe, work = tmp_path / "recipe", tmp_path / "work"
    work.mkdir()
    sources = (Source(path="a"), Source(path="../a b", linked=True, folder="deep/x y"))
    script = "\n".join(source_plan.symlink_sources_lines(sources, recipe))
    for _ in range(2):  # a script of --debug runs again
        subprocess.run(("bash", "-c", script), cwd=work, check=True)
        assert (work / "deep" / "x y").readlink() == tmp_path / "a b"
    (work / "deep" / "x y").unlink()
    (work / "deep" / "x y").mkdir()
    ended = subprocess.run(("bash", "-c", f"{script}\necho went on"), cwd=work, capture_output=True, check=False)
    assert (ended.returncode, ended.stdout) == (1, b"")


@pytest.mark.parametrize("program", ["hg", "svn", "git"])
@pytest.mark.parametrize("field", ["url", "revision", "user"])
def test_a_value_of_a_recipe_is_no_option(program: str, field: str, tmp_path: Path) -> None:
    checkout = dataclasses.replace(Checkout(program=program, url="https://a.org"), **{field: "--config=x"})  # type: ignore[arg-type]
    with pytest.raises(RecipeFault, match="is an option"):
        check_out_repository(checkout, tmp_path / "new", env={})


@pytest.mark.processes
@pytest.mark.parametrize("revision", ["docs", "absent", "1" * 40])
def test_a_revision_is_no_file_of_the_repository(revision: str, tmp_path: Path) -> None:
    (tmp_path / "docs").write_text("text")
    git = ("git", "-C", str(tmp_path), "-c", "user.name=a", "-c", "user.email=a@example.org")
    for words in (("init", "-q"), ("add", "docs"), ("commit", "-qm", "first")):
        subprocess.run((*git, *words), check=True)
    with pytest.raises(RecipeFault, match=f"has no revision '{revision}'"):
        check_out_repository(
            Checkout(program="git", url=str(tmp_path), revision=revision), tmp_path / "new", env=dict(os.environ)
        )


@pytest.mark.processes
def test_a_password_is_in_no_argument(tmp_path: Path) -> None:
    """A program in the place of Subversion writes its arguments and its input."""
    (tmp_path / "svn").write_text('#!/bin/sh\n[ "$1" = info ] || { echo "$@" >args; cat >input; mkdir new; }\necho 7\n')
    (tmp_path / "svn").chmod(0o755)
    checkout = Checkout(program="svn", url="https://a.org", user="me", password="swordfish", externals=False)
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin"}
    assert check_out_repository(checkout, tmp_path / "new", env=env) == "7"
    arguments = (tmp_path / "args").read_text().split()
    assert (tmp_path / "input").read_text() == "swordfish"
    assert "swordfish" not in repr(checkout)
    assert {"--password-from-stdin", "--ignore-externals", "--non-interactive"} <= set(arguments)
    assert arguments[-3:] == ["--", "https://a.org", str(tmp_path / "new")]
    assert "swordfish" not in arguments


@pytest.mark.processes
def test_names_of_files_are_utf8(tmp_path: Path) -> None:
    """A program in the place of Subversion fails where that cannot write a name such as é."""
    (tmp_path / "svn").write_text('#!/bin/sh\n[ "$(locale charmap)" = UTF-8 ] || exit 1\necho 7\n')
    (tmp_path / "svn").chmod(0o755)
    (tmp_path / "new").mkdir()
    env = {"PATH": f"{tmp_path}:/usr/bin:/bin", "LC_ALL": "C"}
    assert check_out_repository(Checkout(program="svn", url="https://a.org"), tmp_path / "new", env=env) == "7"


@pytest.mark.processes
def test_a_repository_that_cannot_be_read(tmp_path: Path) -> None:
    (tmp_path / "hg").write_text("#!/bin/sh\necho 'abort: connection refused'; exit 255\n")
    (tmp_path / "hg").chmod(0o755)
    with pytest.raises(DownloadFailed, match=r"https://a\.org cannot be checked out") as caught:
        check_out_repository(
            Checkout(program="hg", url="https://a.org"), tmp_path / "new", env={"PATH": f"{tmp_path}:/bin"}
        )
    assert caught.value.why == "abort: connection refused"


@pytest.mark.processes
def test_mercurial_reads_no_settings_of_a_repository_which_may_name_programs(tmp_path: Path) -> None:
    (tmp_path / "hg").write_text('#!/bin/sh\necho "skips ${HGRCSKIPREPO-nothing}"; exit 255\n')
    (tmp_path / "hg").chmod(0o755)
    with pytest.raises(DownloadFailed, match="skips 1"):
        check_out_repository(
            Checkout(program="hg", url="../a"), tmp_path / "new", env={"PATH": f"{tmp_path}:/bin", "HGRCSKIPREPO": ""}
        )


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


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """A folder with text, with other bytes, with a link and an empty folder."""
    folder = tmp_path / "tree"
    (folder / "b" / "deep").mkdir(parents=True)
    (folder / "b" / "deep" / "x").write_bytes(b"one\r\ntwo\rthree\n")
    (folder / "b.bin").write_bytes(b"text\r\n\xff")
    (folder / "a").symlink_to("b/nowhere")
    (folder / "b" / "empty").mkdir()
    return folder


# The order is that of the paths as text, in which "b.bin" comes before "b/deep".
PARTS = (b"aLb/nowhere-", b"bD-", b"b.binFtext\r\n\xff-", b"b/deepD-", b"b/deep/xFone\ntwo\nthree\n-", b"b/emptyD-")


@pytest.mark.parametrize("algorithm", ["sha256", "sha384", "sha512"])
def test_the_bytes_of_a_hash(tree: Path, algorithm: str) -> None:
    assert folder_content_hash(tree, algorithm) == hashlib.new(algorithm, b"".join(PARTS)).hexdigest()


@pytest.mark.parametrize(
    ("skip", "without"),
    [(("b/deep/",), (3, 4)), (("b.bin", "a"), (0, 2)), (("b/deep",), (3,)), (("b/empty/",), (5,)), (("deep/",), ())],
)
def test_skipped_paths(tree: Path, skip: tuple[str, ...], without: tuple[int, ...]) -> None:
    parts = (part for number, part in enumerate(PARTS) if number not in without)
    assert folder_content_hash(tree, "sha256", skip) == hashlib.sha256(b"".join(parts)).hexdigest()


def test_a_backslash_counts_as_a_slash(tmp_path: Path) -> None:
    (tmp_path / "a\\x2db.mount").write_bytes(b"1")  # as systemd names its files
    (tmp_path / "link").symlink_to("a\\x2db.mount")
    parts = b"a/x2db.mountF1-linkLa/x2db.mount-"
    assert folder_content_hash(tmp_path, "sha256") == hashlib.sha256(parts).hexdigest()


def test_text_longer_than_a_part_is_whole(tmp_path: Path) -> None:
    (tmp_path / "long").write_bytes("é\r\n".encode() * 800_000)
    expected = hashlib.sha256(b"longF" + "é\n".encode() * 800_000 + b"-").hexdigest()
    assert folder_content_hash(tmp_path, "sha256") == expected


def test_a_pipe_has_no_hash(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "pipe")
    with pytest.raises(BuildFailed, match="'pipe' is not a file"):
        folder_content_hash(tmp_path, "sha256")


def test_a_folder_of_downloads_has_the_file(fetch: Fetch) -> None:
    fetch.origins = {"folder": fetch.recipe}
    (entry,) = fetch.entries(Source(url=("https://sources.invalid/x/a.bin",), hashes=SHA1))
    assert entry["sha256"] == HASHES["sha256"]
