"""Sources are found by their hash: in a folder, on an index, at a mirror; and only the file with that hash is used."""

from __future__ import annotations

import base64
import contextlib
import hashlib
import io
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base import http, process
from kiln.base.errors import DownloadFailed, HashMismatch
from kiln.build.engine.source_plan import SourceMirrors
from kiln.conda import pypi
from kiln.feedstock import sources as feedstock_sources
from kiln.feedstock.sources import SourceFile, SourceSearch, fetch_sources, missing_sources, possible_projects_of_source
from kiln.recipe.rendered import Source

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

CONTENT = b"the source"
SHA = hashlib.sha256(CONTENT).hexdigest()
URL = "https://index.example/packages/source/s/small-thing/small_thing-1.tar.gz"
SOURCE = Source(url=(URL,), sha256=SHA)


def search(root: Path, **changes: object) -> SourceSearch:
    fields: dict[str, object] = {"store": root / "store", "folder": None, "mirror": None, "projects": (), "env": {}}
    return SourceSearch(**{**fields, **changes})  # type: ignore[arg-type]


@pytest.fixture
def index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """pip's only index, a folder; no address answers."""
    monkeypatch.setattr(pypi, "configured_indexes", lambda _: ((tmp_path / "index").as_uri(),))

    def refused(url: str, **_: object) -> Iterator[None]:
        raise http.HttpError(f"{url} cannot be reached")

    monkeypatch.setattr(http, "send_request", refused)
    return tmp_path / "index"


def add_project(index: Path, project: str, name: str) -> None:
    (index / project).mkdir(parents=True)
    (index / project / "index.html").write_text(f'<a href="{name}#sha256={SHA}">x</a>')
    (index / project / name).write_bytes(CONTENT)


def test_an_index_has_the_source_under_whatever_name(tmp_path: Path, index: Path) -> None:
    add_project(index, "small-thing", "renamed-1.tar.gz")
    (file,), lacking = search(tmp_path).locate_sources([SOURCE, SOURCE])
    assert (file.name, lacking) == ("small_thing-1.tar.gz", ())
    fetch_sources([file], tmp_path / "store", env={}, on_line=lambda _: None)
    assert (tmp_path / "store" / SHA / "small_thing-1.tar.gz").read_bytes() == CONTENT
    assert missing_sources([file], tmp_path / "store") == ()


def test_two_sources_of_one_name_are_kept_apart(tmp_path: Path, index: Path) -> None:
    contents = [b"a of one", b"b of another"]
    sources = []
    for content in contents:
        sha256 = hashlib.sha256(content).hexdigest()
        (tmp_path / sha256[:8]).mkdir()
        (tmp_path / sha256[:8] / "v1.0.tar.gz").write_bytes(content)
        source = Source(url=(f"https://code.example/{sha256[:8]}/archive/v1.0.tar.gz",), sha256=sha256)
        ((file,), _) = search(tmp_path, folder=tmp_path / sha256[:8]).locate_sources([source])
        sources.append((source, file))
    fetched = [file for _, file in sources]
    received: list[tuple[int, int | None]] = []
    fetch_sources(
        fetched,
        tmp_path / "store",
        env={},
        on_line=lambda _: None,
        on_received=lambda done, total: received.append((done, total)),
    )
    assert received == [(8, 20), (20, 20)]
    assert missing_sources(fetched, tmp_path / "store") == ()
    for (source, _), content in zip(sources, contents, strict=True):
        (places, lacking) = search(tmp_path).locate_sources([source])
        assert (len(places), lacking) == (1, ())
        (url, *_) = SourceMirrors(by_hash=tmp_path / "store").urls_to_try(source.url, source.sha256 or "")
        assert url == places[0].url
        assert Path(url.removeprefix("file://")).read_bytes() == content


def test_a_source_of_another_host_is_looked_up_under_the_recipes_names(tmp_path: Path, index: Path) -> None:
    add_project(index, "thing", "thing-1.tar.gz")
    source = Source(url=("https://code.example/archive/v1.tar.gz",), sha256=SHA)
    (file,), lacking = search(tmp_path, projects=("Thing",)).locate_sources([source])
    assert (file.name, lacking) == ("v1.tar.gz", ())


def test_the_users_folder_comes_before_the_index_and_only_with_the_hash(tmp_path: Path, index: Path) -> None:
    downloads = tmp_path / "downloads"
    downloads.mkdir()
    (downloads / "small_thing-1.tar.gz").write_bytes(CONTENT)
    (file,), lacking = search(tmp_path, folder=downloads).locate_sources([SOURCE])
    assert (file.origin, lacking) == (str(downloads), ())
    (downloads / "small_thing-1.tar.gz").write_bytes(b"another")
    located, (lacking_source,) = search(tmp_path, folder=downloads).locate_sources([SOURCE])
    assert (located, lacking_source.name) == ((), URL)


def test_what_has_no_hash_or_no_file_cannot_be_had(tmp_path: Path, index: Path) -> None:
    sources = [
        Source(url=("https://code.example/a.tar.gz",), md5="0"),
        Source(git_url="https://code.example/a.git"),
        Source(path="local"),
        Source(git_url="../local"),
    ]
    located, lacking = search(tmp_path).locate_sources(sources)
    assert located == ()
    assert [(entry.name, entry.reason, entry.hint) for entry in lacking] == [
        (
            "https://code.example/a.tar.gz",
            "the recipe has no sha256 to find it by",
            "write the sha256 of each file",
        ),
        (
            "https://code.example/a.git",
            "a repository has no hash to find it by",
            "kiln build without --rehearse clones it",
        ),
    ]


def test_the_hash_that_an_index_has_is_told_where_the_recipe_has_another(tmp_path: Path, index: Path) -> None:
    add_project(index, "small-thing", "small_thing-1.tar.gz")
    _, (lacking,) = search(tmp_path).locate_sources([replace(SOURCE, sha256="0" * 64)])
    found = f"the sha256 of small_thing-1.tar.gz on {index.as_uri()} is {SHA}"
    assert lacking.reason == f"{found}, the recipe has {'0' * 64}; no address answers"
    assert lacking.hint.startswith("kiln bump --hashes writes it")


def test_projects_are_those_of_the_address_then_the_recipes() -> None:
    assert possible_projects_of_source(SOURCE, ["recipe", "small_thing"]) == ("small-thing", "recipe")
    hosted = Source(url=(f"https://files.example/packages/ab/cd/{60 * 'e'}/Other_Name-2.0.tar.gz",), sha256=SHA)
    assert possible_projects_of_source(hosted, []) == ("other-name",)


def test_another_file_is_removed_and_refused(tmp_path: Path) -> None:
    (tmp_path / "wrong").write_bytes(b"wrong")
    file = SourceFile(name="a.tar.gz", sha256=SHA, url=(tmp_path / "wrong").as_uri(), origin="a folder")
    with pytest.raises(HashMismatch, match=r"a\.tar\.gz is not the recipe's source"):
        fetch_sources([file], tmp_path / "store", env={}, on_line=lambda _: None)
    assert list((tmp_path / "store").iterdir()) == []


def test_a_download_that_breaks_off_is_reported_with_its_origin(tmp_path: Path, index: Path) -> None:
    file = SourceFile(name="a.tar.gz", sha256=SHA, url="https://code.example/a", origin="code.example")
    with pytest.raises(DownloadFailed) as caught:
        fetch_sources([file], tmp_path / "store", env={}, on_line=lambda _: None)
    assert caught.value.why == "code.example: https://code.example/a cannot be reached"


def test_a_name_cannot_lead_out_of_the_folder() -> None:
    assert feedstock_sources.source_file_names(Source(url=("https://a.example/x/..", "https://a.example/%2e%2e"))) == ()
    assert feedstock_sources.source_file_names(Source(url=("https://a.example/%2Fetc%2Fpasswd",))) == (
        Path("/etc/passwd").name,
    )


def test_a_download_has_the_credentials_of_pips_index_in_any_process(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    listing = "global.index-url='https://me:s3cret-word@sources.example/simple'\n"
    result = process.ProcessResult(argv=(), exit_code=0, tail="", seconds=0, stdout=listing)
    monkeypatch.setattr(process, "capture", lambda *_, **__: result)
    requests: list[dict[str, str]] = []

    class Response(io.BytesIO):
        headers: Mapping[str, str] = {}

    @contextlib.contextmanager
    def answered(_: str, *, headers: dict[str, str]) -> Iterator[Response]:
        requests.append(headers)
        yield Response(CONTENT)

    monkeypatch.setattr(http, "send_request", answered)
    file = SourceFile(name="a.tar.gz", sha256=SHA, url="https://sources.example/simple/a/a.bin", origin="an index")
    fetch_sources([file], tmp_path / "store", env={}, on_line=lambda _: None)
    (headers,) = requests
    assert headers["Authorization"] == f"Basic {base64.b64encode(b'me:s3cret-word').decode()}"
