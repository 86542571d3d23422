"""Sources that kiln fetches: what the engine gets in their place, and what is refused before it starts."""

from __future__ import annotations

import dataclasses
import hashlib
import os
import subprocess
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import DownloadFailed, HashMismatch, RecipeFault
from kiln.build.engine import source_plan
from kiln.build.engine.recipe import source_entry as engine_entry
from kiln.build.engine.source_plan import SourceMirrors
from kiln.build.engine.sources import SourceFetcher, check_out_repository, folder_content_hash
from kiln.recipe.rendered import Checkout, Source

if TYPE_CHECKING:
    from collections.abc import Mapping

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
    assert caught.value.why == "it has 40 hexadecimal digits"
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


def test_a_folder_of_downloads_has_the_file(fetch: Fetch) -> None:
    fetch.origins = {"folder": fetch.recipe}
    (entry,) = fetch.entries(Source(url=("https://sources.invalid/x/a.bin",), hashes=SHA1))
    assert entry["sha256"] == HASHES["sha256"]


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
