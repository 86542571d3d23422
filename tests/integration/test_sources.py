"""Sources: their own address, a folder, a mirror, each kind that kiln fetches; the refusal of other content."""

from __future__ import annotations

import gzip
import hashlib
import http.server
import io
import os
import re
import shutil
import subprocess
import tarfile
import threading
import zipfile
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import DownloadFailed, HashMismatch, RecipeFault
from kiln.build.engine.sources import folder_content_hash
from kiln.conda import package_reader
from tests import builders, warm

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
CONFIG = min(file.stem for file in (SMALL / ".ci_support").glob("*None*.yaml"))
# A name that no resolver knows (RFC 6761): what is not elsewhere is nowhere.
URL = "https://sources.invalid/small/archive/v1.2.tar.gz"


@pytest.fixture
def release(tmp_path: Path) -> bytes:
    """The small feedstock's sources as a release archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        tar.add(SMALL / "recipe" / "src", arcname="small-1.2")
    return data.getvalue()


@pytest.fixture
def small(tmp_path: Path, release: bytes) -> Path:
    """The small feedstock, whose sources are an archive at an address, with its hash, and patched as before."""
    root = Path(shutil.copytree(SMALL, tmp_path / "small-feedstock"))
    recipe = root / "recipe" / "meta.yaml"
    text = recipe.read_text()
    assert "  path: src\n" in text
    sha256 = hashlib.sha256(release).hexdigest()
    recipe.write_text(text.replace("  path: src\n", f"  url: {URL}\n  sha256: {sha256}\n"))
    shutil.rmtree(root / "recipe" / "src")
    return root


@pytest.fixture
def mirror(tmp_path: Path, release: bytes) -> Iterator[str]:
    """A web server that has the archive under its address."""
    file = tmp_path / "mirror" / URL.removeprefix("https://")
    file.parent.mkdir(parents=True)
    file.write_bytes(release)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "mirror"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def build_small(root: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return warm.kiln("-C", str(root), "build", CONFIG, "--container", "none", *more)


def made(root: Path) -> set[str]:
    return {file.name.split("-1.2-")[0] for file in (root / "build_artifacts").glob("linux-64/*.conda")}


@pytest.mark.slow("a feedstock is built")
def test_sources_come_from_a_folder_and_are_patched(small: Path, release: bytes, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "v1.2.tar.gz").write_bytes(release)
    ended = build_small(small, "--distdir", str(tmp_path / "downloads"))
    assert ended.returncode == 0, ended.stderr
    assert made(small) == {"libsmall", "small"}  # its test reads what the patch has changed


@pytest.mark.slow("a feedstock is built")
def test_sources_come_from_a_mirror(small: Path, mirror: str) -> None:
    ended = build_small(small, "--mirror", mirror)
    assert ended.returncode == 0, ended.stderr
    assert made(small) == {"libsmall", "small"}


@pytest.mark.slow("a feedstock is built")
def test_sources_with_another_hash_end_the_build_before_anything_runs(small: Path, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "v1.2.tar.gz").write_bytes(b"something else")
    ended = build_small(small, "--distdir", str(tmp_path / "downloads"))
    assert ended.returncode == HashMismatch.exit_code, ended.stderr
    assert "the sha256 of v1.2.tar.gz is " in ended.stderr
    assert f"it came from {(tmp_path / 'downloads' / 'v1.2.tar.gz').as_uri()}" in ended.stderr
    (log,) = (small / "build_artifacts" / "logs").glob("*/*.log")
    assert "build.sh" not in log.read_text()
    assert made(small) == set()


@pytest.mark.slow("a feedstock is built")
def test_a_mirror_with_a_password_is_refused(small: Path) -> None:
    ended = build_small(small, "--mirror", "https://user:secret@mirror.example.org")
    assert ended.returncode == 2
    assert "secret" not in ended.stderr


HEAD = "package:\n  name: keys\n  version: '1'\n"
SCRIPT = "build:\n  script:\n    - mkdir -p $PREFIX/share\n    - cp -a . $PREFIX/share/work\n"
# The records of a checkout, which have times and places, and an engine's own files.
OTHERS = re.compile(
    r"(\.hg|\.svn|\.git)/|\.source_info\.json$|(conda_build|build_env|build_env_setup)\.(sh|log)$"
    r"|metadata_conda_debug\.yaml$"
)
FILES = {"one.txt": b"one\n", "sub/two.sh": b"#!/bin/sh\r\n", "sub/binary": b"\xff\x00\r\n"}
HASHES = {name: getattr(hashlib, name) for name in ("sha1", "sha224", "sha384", "sha512", "sha256", "md5")}


def tarball(path: Path, *, top: str = "app-1/") -> Path:
    """Write an archive with a link, a program and old times."""
    path.parent.mkdir(parents=True, exist_ok=True)
    with tarfile.open(path, "w:gz") as tar:
        for name, data in FILES.items():
            member = tarfile.TarInfo(top + name)
            member.size, member.mtime, member.mode = len(data), 1_000_000_000, 0o755 if name.endswith("sh") else 0o644
            tar.addfile(member, io.BytesIO(data))
        link = tarfile.TarInfo(f"{top}link")
        link.type, link.linkname = tarfile.SYMTYPE, "sub/two.sh"
        tar.addfile(link)
    return path


def build(folder: Path, source: str, files: Mapping[str, str]) -> subprocess.CompletedProcess[str]:
    feedstock = builders.feedstock(folder / "feedstock", HEAD + source + SCRIPT, files=files)
    words = ("-C", str(feedstock.root))
    warm.kiln(*words, "rerender", "--no-pinning", check=True)
    return warm.kiln(*words, "build", "--all", "--container", "none")


def work(folder: Path, source: str, files: Mapping[str, str] | None = None) -> Work:
    ended = build(folder, source, files or {})
    assert ended.returncode == 0, ended.stdout + ended.stderr
    (package,) = (folder / "feedstock" / "build_artifacts").glob("*/keys-*.conda")
    return Work.of(package)


class Work(dict[str, tuple[bytes, bool, str]]):
    """The content, the executable bit and the link of each file in the work directory of a build."""

    @classmethod
    def of(cls, package: Path) -> Work:
        found, top = cls(), "share/work/"
        with package_reader.open_package_members(package) as members:
            for member, content in members:
                name = member.name.removeprefix(top)
                if member.name.startswith(top) and not member.isdir() and not OTHERS.search(name):
                    data = b"" if content is None else content.read()
                    found[name] = (data, bool(member.mode & 0o100) and not member.issym(), member.linkname)
        return found


def refused(folder: Path, source: str, code: int, files: Mapping[str, str] | None = None) -> str:
    ended = build(folder, source, files or {})
    assert ended.returncode == code, ended.stdout + ended.stderr
    assert not list((folder / "feedstock" / "build_artifacts").glob("*/keys-*.conda"))
    return ended.stderr


def entries(urls: Mapping[str, str]) -> str:
    """Return a source section of files in folders of their own, by the folders, each with further lines."""
    return "source:\n" + "".join(f"  - folder: {folder}\n{lines}" for folder, lines in urls.items())


@pytest.mark.slow("a feedstock is built for each kind of source")
def test_files_and_hashes(tmp_path: Path) -> None:
    archive = tarball(tmp_path / "up" / "app-1.tar.gz")
    data = archive.read_bytes()
    shutil.copy(archive, tmp_path / "up" / "download")
    (tmp_path / "up" / "data.bin").write_bytes(b"data")
    with zipfile.ZipFile(tmp_path / "up" / "app-1-py3-none-any.whl", "w") as wheel:
        wheel.writestr("module.py", "old\n")
    patch = "--- a/module.py\n+++ b/module.py\n@@ -1 +1 @@\n-old\n+new\n"
    sources = {
        name: f"    url: {archive.as_uri()}\n    {name}: {do(data).hexdigest()}\n" for name, do in HASHES.items()
    }
    up = (tmp_path / "up").as_uri()
    sources |= {
        "all": f"    url: {up}/app-1.tar.gz\n"
        + "".join(f"    {n}: {do(data).hexdigest()}\n" for n, do in HASHES.items()),
        "named": f"    url: {up}/download\n    fn: app-1.tar.gz\n    sha1: {HASHES['sha1'](data).hexdigest()}\n",
        "plain": f"    url: {up}/data.bin\n    sha512: {HASHES['sha512'](b'data').hexdigest()}\n",
        "renamed": f"    url: {up}/data.bin\n    fn: other\n    sha384: {HASHES['sha384'](b'data').hexdigest()}\n",
        "wheel": f"    url: {up}/app-1-py3-none-any.whl\n    patches:\n      - new.patch\n",
    }
    found = work(tmp_path, entries(sources), {"recipe/new.patch": patch})
    for folder in (*HASHES, "all", "named"):
        assert found[f"{folder}/sub/two.sh"] == (FILES["sub/two.sh"], True, "")
        assert found[f"{folder}/link"][2] == "sub/two.sh"
    assert found["plain/data.bin"][0] == found["renamed/other"][0] == b"data"
    assert found["wheel/module.py"][0] == b"new\n"
    assert "wheel/app-1-py3-none-any.whl" in found


@pytest.mark.slow("a feedstock is built for each kind of source")
def test_a_kept_file_is_used_again_and_verified(tmp_path: Path) -> None:
    archive = tarball(tmp_path / "up" / "app-1.tar.gz")
    sha1 = HASHES["sha1"](archive.read_bytes()).hexdigest()
    source = f"source:\n  url: {archive.as_uri()}\n  sha1: {sha1}\n"
    work(tmp_path, source)
    cache = tmp_path / "feedstock" / "build_artifacts" / "cache" / "sources"
    kept = cache / "sha1" / sha1 / "app-1.tar.gz"
    assert kept.read_bytes() == archive.read_bytes()
    data = archive.read_bytes()
    archive.unlink()
    assert "folder/one.txt" in work(tmp_path, source + "  folder: folder\n")
    archive.write_bytes(data)
    kept.write_bytes(b"\x1f\x8b something else")
    assert "other/one.txt" in work(tmp_path, source + "  folder: other\n")
    assert kept.read_bytes() == data
    archive.write_bytes(b"\x1f\x8b something else")
    message = refused(tmp_path / "again", source, HashMismatch.exit_code)
    assert f"the recipe has {sha1}" in message
    assert "app-1.tar.gz is not the recipe's source" in message


@pytest.mark.slow("a feedstock is built for each kind of source")
def test_a_source_that_cannot_be_reached(tmp_path: Path) -> None:
    source = f"source:\n  url: https://sources.invalid/a/app-1.tar.gz\n  sha1: {'0' * 40}\n"
    message = refused(tmp_path, source, DownloadFailed.exit_code)
    assert "app-1.tar.gz cannot be downloaded" in message
    assert "sources.invalid cannot be reached" in message


def unpacked(folder: Path, *, top: str = "") -> Path:
    with tarfile.open(tarball(folder / "a.tar.gz", top=top)) as tar:
        tar.extraction_filter = getattr(tarfile, "tar_filter", None)  # which Debian 12's Python 3.11.2 has not
        tar.extractall(folder / "tree")
    return folder / "tree"


@pytest.mark.slow("a feedstock is built for each kind of source")
def test_content_hashes(tmp_path: Path) -> None:
    archive = tarball(tmp_path / "up" / "app-1.tar.gz")
    tree = unpacked(tmp_path / "tree")
    keys = ("content_sha256", "content_sha384", "content_sha512")
    lines = "".join(f"    {key}: {folder_content_hash(tree, key.removeprefix('content_'))}\n" for key in keys)
    local = {f"recipe/src/{name}": data.decode("latin-1") for name, data in FILES.items() if name == "one.txt"}
    (tmp_path / "small").mkdir()
    (tmp_path / "small" / "one.txt").write_bytes(FILES["one.txt"])
    skipped = "    content_hash_skip:\n      - sub/\n      - link\n"
    small = folder_content_hash(tmp_path / "small", "sha256")
    sources = {
        "archive": f"    url: {archive.as_uri()}\n{lines}",
        "part": f"    url: {archive.as_uri()}\n    content_sha256: {small}\n{skipped}",
        "local": f"    path: src\n    content_sha256: {small}\n",
    }
    found = work(tmp_path, entries(sources), local)
    assert found["part/sub/binary"][0] == FILES["sub/binary"]
    wrong = f"source:\n  url: {archive.as_uri()}\n  content_sha256: {small}\n"
    message = refused(tmp_path / "wrong", wrong, HashMismatch.exit_code)
    assert f"content_sha256 is {folder_content_hash(tree, 'sha256')}" in message


@pytest.mark.slow("a feedstock is built for each kind of source")
def test_links_and_tops(tmp_path: Path) -> None:
    archive = tarball(tmp_path / "up" / "app-1.tar.gz")
    patch = "--- a/one.txt\n+++ b/one.txt\n@@ -1 +1 @@\n-one\n+new\n"
    lines = f"    url: {archive.as_uri()}\n    no_hoist: true\n"
    sources = {
        "top": lines,
        "patched": f"{lines}    patches:\n      - new.patch\n",
        "deep/er": "    path: src\n    path_via_symlink: true\n",
    }
    files = {"recipe/src/one": "1", "recipe/new.patch": patch.replace("one.txt", "app-1/one.txt")}
    found = work(tmp_path, entries(sources), files)
    assert found["deep/er"][2].endswith("feedstock/recipe/src")
    assert found["top/app-1/sub/two.sh"] == (FILES["sub/two.sh"], True, "")
    assert found["patched/app-1/one.txt"][0] == b"new\n"


@pytest.mark.slow("a feedstock is built for each kind of source")
def test_a_link_is_not_made_over_files(tmp_path: Path) -> None:
    sources = {".": "    path: all\n", "data": "    path: src\n    path_via_symlink: true\n"}
    ended = build(tmp_path, entries(sources), {"recipe/all/data/x": "", "recipe/src/y": ""})
    assert ended.returncode != 0
    assert not (tmp_path / "feedstock" / "recipe" / "src" / "x").exists()


def run(folder: Path, *lines: Iterable[str]) -> None:
    for words in lines:
        subprocess.run(tuple(words), cwd=folder, check=True, capture_output=True, env=os.environ | {"HGPLAIN": "1"})


@pytest.mark.slow("a feedstock is built for each kind of source")
@pytest.mark.needs("hg")
def test_mercurial(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    commit = ("hg", "commit", "--addremove", "--user", "a", "--message", "m")
    (repository / "one.txt").write_text("one\n")
    run(repository, ("hg", "init"), commit, ("hg", "tag", "--user", "a", "v1"))
    (repository / "later.txt").write_text("later\n")
    run(repository, commit)
    patch = "--- a/one.txt\n+++ b/one.txt\n@@ -1 +1 @@\n-one\n+new\n"
    url = f"    hg_url: {repository.as_uri()}\n"
    sources = {"tip": url, "tagged": f"{url}    hg_tag: v1\n    patches:\n      - new.patch\n"}
    found = work(tmp_path, entries(sources), {"recipe/new.patch": patch})
    assert "tip/later.txt" in found
    assert "tagged/later.txt" not in found
    assert found["tagged/one.txt"][0] == b"new\n"
    message = refused(tmp_path / "none", f"source:\n{url}    hg_tag: v9\n", RecipeFault.exit_code)
    assert "has no revision 'v9'" in message
    option = f"source:\n{url}    hg_tag: --config=alias.update=!touch {tmp_path}/ran\n"
    assert "is an option" in refused(tmp_path / "option", option, RecipeFault.exit_code)
    assert not (tmp_path / "ran").exists()


@pytest.mark.slow("a feedstock is built for each kind of source")
@pytest.mark.needs("svn", "svnadmin")
def test_subversion(tmp_path: Path) -> None:
    run(tmp_path, ("svnadmin", "create", "server"))
    url, copy = (tmp_path / "server").as_uri(), tmp_path / "copy"
    run(tmp_path, ("svn", "checkout", url, "copy"))
    (copy / "one.txt").write_text("one\n")
    run(copy, ("svn", "add", "one.txt"), ("svn", "commit", "-m", "m"))
    (copy / "later.txt").write_text("later\n")
    run(copy, ("svn", "add", "later.txt"), ("svn", "mkdir", "lib"), ("svn", "commit", "-m", "m"), ("svn", "update"))
    run(copy, ("svn", "propset", "svn:externals", "^/lib external", "."), ("svn", "commit", "-m", "m"))
    lines = f"    svn_url: {url}\n"
    sources = {
        "head": lines,
        "first": f"{lines}    svn_rev: 1\n",
        "alone": f"{lines}    svn_ignore_externals: true\n    content_hash_skip:\n      - .svn/\n",
        "user": f"{lines}    svn_username: me\n    svn_password: swordfish-7\n",
    }
    sources["alone"] += f"    content_sha256: {small_hash(tmp_path)}\n"
    found = work(tmp_path, entries(sources))
    assert "head/later.txt" in found
    assert "first/later.txt" not in found
    (log,) = (tmp_path / "feedstock" / "build_artifacts" / "logs").glob("*/*.log")
    assert "revision 3" in log.read_text()
    places = [*(tmp_path / "feedstock" / "build_artifacts").rglob("*")]
    leaks = [place.name for place in places if place.is_file() and b"swordfish-7" in place.read_bytes()]
    assert set(leaks) == {"meta.yaml.template"}  # the recipe as its author has written it
    message = refused(tmp_path / "none", f"source:\n{lines}    svn_rev: 99\n", RecipeFault.exit_code)
    assert "has no revision '99'" in message


def small_hash(folder: Path) -> str:
    """Return the hash of the repository's newest files."""
    tree = folder / "expected"
    (tree / "lib").mkdir(parents=True)
    for name in ("one", "later"):
        (tree / f"{name}.txt").write_text(f"{name}\n")
    return folder_content_hash(tree, "sha256")


@pytest.mark.slow("a feedstock is built for each kind of source")
@pytest.mark.needs("git")
def test_the_content_of_a_git_source(tmp_path: Path) -> None:
    repository = tmp_path / "repository"
    repository.mkdir()
    (repository / "one.txt").write_text("one\n")
    identity = ("git", "-c", "user.name=a", "-c", "user.email=a@example.org")
    expected = folder_content_hash(repository, "sha512")
    run(repository, ("git", "init", "-q"), ("git", "add", "."), (*identity, "commit", "-qm", "m"), ("git", "tag", "v1"))
    source = f"source:\n  git_url: {repository.as_uri()}\n  git_tag: v1\n  content_hash_skip:\n    - .git/\n"
    assert "one.txt" in work(tmp_path, f"{source}  content_sha512: {expected}\n")
    wrong = f"{source}  content_sha512: {'0' * 128}\n"
    assert "content_sha512 is" in refused(tmp_path / "wrong", wrong, HashMismatch.exit_code)


# An RPM's lead, an empty signature and an empty header; compressed files in cpio's format follow.
RPM = b"\xed\xab\xee\xdb\x03" + bytes(91) + 2 * (b"\x8e\xad\xe8\x01" + bytes(12))


@pytest.mark.slow("a feedstock is built for each kind of source")
@pytest.mark.needs("bsdtar", "dpkg-deb")
def test_archives_that_the_engine_does_not_unpack(tmp_path: Path) -> None:
    tree = unpacked(tmp_path / "tree", top="app-1/")
    sources = {}
    formats = {"tar.lzma": "--lzma", "tar.z": "--compress", "7z": "--format=7zip", "cpio": "--format=newc"}
    for ending, option in formats.items():
        file = tmp_path / f"a.{ending}"
        run(tmp_path, ("bsdtar", "-c", option, "-f", str(file), "-C", str(tree), "app-1"))
        sources[ending] = f"    url: {file.as_uri()}\n"
    sources["7z"] += "    no_hoist: true\n"
    del sources["cpio"]
    (tmp_path / "a.rpm").write_bytes(RPM + gzip.compress((tmp_path / "a.cpio").read_bytes()))
    sources["rpm"] = f"    url: {(tmp_path / 'a.rpm').as_uri()}\n    no_hoist: true\n"
    (tree / "DEBIAN").mkdir()
    (tree / "DEBIAN" / "control").write_text(
        "Package: app\nVersion: 1\nArchitecture: all\nMaintainer: A <a@example.org>\nDescription: a\n"
    )
    run(tmp_path, ("dpkg-deb", "--build", str(tree), str(tmp_path / "a.deb")))
    sources["deb"] = f"    url: {(tmp_path / 'a.deb').as_uri()}\n"
    misnamed = tmp_path / "plain.tar.gz"  # which rattler-build fetches, and cannot unpack
    run(tmp_path, ("bsdtar", "-c", "--format=ustar", "-f", str(misnamed), "-C", str(tree), "app-1"))
    digest = hashlib.sha256(misnamed.read_bytes()).hexdigest()
    sources["misnamed"] = f"    url: {misnamed.as_uri()}\n    sha256: {digest}\n"
    found = work(tmp_path, entries(sources))
    tops = {"tar.lzma": "", "tar.z": "", "misnamed": "", "7z": "app-1/", "rpm": "app-1/"}
    for folder, top in tops.items():
        assert found[f"{folder}/{top}sub/two.sh"] == (FILES["sub/two.sh"], True, "")
        assert found[f"{folder}/{top}link"][2] == "sub/two.sh"
    assert "deb/debian-binary" in found
