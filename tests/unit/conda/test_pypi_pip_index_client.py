"""pip's indexes answer with the files of a project: as JSON, as HTML, or from a folder."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
from pip._internal.models.index import PyPI

from kiln.base import http, process
from kiln.base.http import HttpError
from kiln.conda import pypi
from kiln.conda.pypi import IndexFile, configured_indexes, project_files

if TYPE_CHECKING:
    from pathlib import Path

SHA = "a" * 64
DEFAULT = PyPI.simple_url


def test_a_folder_is_an_index(tmp_path: Path) -> None:
    (tmp_path / "small-thing").mkdir()
    page = f"""<a href="../../files/small_thing-1.tar.gz#sha256={SHA}">one</a> <a href="other.whl">without a hash</a>"""
    (tmp_path / "small-thing" / "index.html").write_text(page)
    (file,) = project_files("Small_Thing", tmp_path.as_uri())
    assert (file.name, file.sha256) == ("small_thing-1.tar.gz", SHA)
    assert file.url == (tmp_path.parent / "files" / "small_thing-1.tar.gz").as_uri()
    with pytest.raises(HttpError, match="No such file"):
        list(project_files("another", tmp_path.as_uri()))


def test_an_answer_in_json_has_sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    entries = [
        {"filename": "a-1.tar.gz", "url": "../../packages/a-1.tar.gz", "hashes": {"sha256": SHA}, "size": 12},
        {"filename": "a-2.tar.gz", "url": "https://elsewhere.example/a-2.tar.gz", "hashes": {"md5": "0"}},
    ]
    monkeypatch.setattr(pypi, "_fetch_project_page", lambda _: (json.dumps({"files": entries}).encode(), True))
    (file,) = project_files("a", "https://index.example/simple")
    assert file == IndexFile(name="a-1.tar.gz", url="https://index.example/packages/a-1.tar.gz", sha256=SHA, size=12)


@pytest.mark.parametrize("answer", [b"{", b"[]", b'{"files": [{"hashes": 1}]}'])
def test_an_answer_that_is_no_index_is_an_error(answer: bytes, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(pypi, "_fetch_project_page", lambda _: (answer, True))
    with pytest.raises(HttpError, match="not an index's"):
        list(project_files("a", "https://index.example/simple"))


@pytest.mark.parametrize(
    ("listing", "expected"),
    [
        ("", (DEFAULT,)),
        ("global.index-url='https://one.example/simple/'\n", ("https://one.example/simple",)),
        (
            """
global.index-url='https://one.example/simple'
:env:.index-url='https://two.example/simple'
:env:.extra-index-url='file:///here https://three.example'
""",
            ("https://two.example/simple", "file:///here", "https://three.example"),
        ),
        ("freeze.index-url='https://one.example'\n", (DEFAULT,)),
    ],
)
def test_the_indexes_are_those_of_pips_settings(
    listing: str, expected: tuple[str, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    result = process.ProcessResult(argv=(), exit_code=0, tail="", seconds=0, stdout=listing)
    monkeypatch.setattr(process, "capture", lambda *_, **__: result)
    assert configured_indexes({}) == expected


def test_the_password_of_an_index_is_sent_as_a_header_alone(monkeypatch: pytest.MonkeyPatch) -> None:
    listing = ":env:.index-url='https://me:pa55word-of-mine@one.example/simple'\n"
    result = process.ProcessResult(argv=(), exit_code=0, tail="", seconds=0, stdout=listing)
    monkeypatch.setattr(process, "capture", lambda *_, **__: result)
    (index,) = configured_indexes({})
    assert index == "https://one.example/simple"
    assert http.request_headers(f"{index}/a/")["Authorization"].startswith("Basic ")
