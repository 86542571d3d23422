"""A source archive is read for what a recipe needs, and never run, unpacked or trusted."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from typing import TYPE_CHECKING

import pytest

from kiln.base.limits import errors
from kiln.feedstock.init import pypi

if TYPE_CHECKING:
    from pathlib import Path

PROJECT = """\
[build-system]
requires = ["hatchling >=1.20", "hatch-vcs", "tomli; python_version < '3'", "wheel", "not a requirement"]

[project.scripts]
tool = "tool.cli:main"
"bad name" = "os:system('x')"
"""
SETUP = "[options.entry_points]\nconsole_scripts =\n    old=old.cli:run\n"


def archive(folder: Path, **files: str) -> Path:
    """Return an archive of files by their paths."""
    path = folder / "a-1.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            member = tarfile.TarInfo(name)
            member.size = len(text)
            tar.addfile(member, io.BytesIO(text.encode()))
    return path


def files(*names: str, **texts: str) -> dict[str, str]:
    return {f"a-1/{name}": "" for name in names} | {f"a-1/{name}": text for name, text in texts.items()}


def test_the_facts_of_a_modern_project(tmp_path: Path) -> None:
    there = files("LICENSE.md", "COPYING", "src/tool/__init__.py", "tests/__init__.py", "docs/LICENSE", "setup.py")
    facts = pypi.read_sdist_facts(archive(tmp_path, **there, **{"a-1/pyproject.toml": PROJECT}))
    assert facts is not None
    assert facts.build == ("hatchling >=1.20", "hatch-vcs")
    assert facts.programs == ("tool = tool.cli:main",)
    assert facts.licenses == ("COPYING", "LICENSE.md")
    assert facts.modules == ("tool",)


def test_the_facts_of_an_older_project(tmp_path: Path) -> None:
    there = files("LICENCE", "old/py.py", "old.py", "setup.py", "conftest.py", "examples/__init__.py")
    facts = pypi.read_sdist_facts(archive(tmp_path, **there, **{"a-1/setup.cfg": SETUP}))
    assert facts == pypi.SdistFacts(
        build=("setuptools",), programs=("old = old.cli:run",), licenses=("LICENCE",), modules=("old",)
    )


@pytest.mark.parametrize(
    "text", ["[", "build-system = 1", "[build-system]\nrequires = 3", "\x00", "[project]\nscripts = 1"]
)
def test_a_malformed_file_is_as_none(tmp_path: Path, text: str) -> None:
    facts = pypi.read_sdist_facts(archive(tmp_path, **{"a-1/pyproject.toml": text, "a-1/setup.cfg": "[["}))
    assert facts == pypi.SdistFacts()


@pytest.mark.parametrize("data", [b"", b"<html>", b"\x1f\x8b" + b"x" * 50])
def test_what_is_no_archive_has_no_facts(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(data)
    assert pypi.read_sdist_facts(tmp_path / "a.tar.gz") is None


def test_paths_that_lead_out_and_links_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("a-1/pyproject.toml")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("a-1/../LICENSE"))
    assert pypi.read_sdist_facts(path) == pypi.SdistFacts()


@pytest.mark.parametrize("name", ["LICENSE", ".", "../LICENSE", "/LICENSE"])
def test_a_member_outside_the_top_folder_does_not_count(tmp_path: Path, name: str) -> None:
    facts = pypi.read_sdist_facts(archive(tmp_path, **{name: "", "a-1/COPYING": ""}))
    assert facts == pypi.SdistFacts(licenses=("COPYING",))


@pytest.mark.parametrize("invalid", ["foo ===x.*", "foo; python_version ~= 'x'", "foo; 'x' in dependency_groups"])
def test_a_requirement_that_cannot_be_evaluated_is_left_out(tmp_path: Path, invalid: str) -> None:
    text = f'[build-system]\nrequires = ["{invalid}", "hatchling"]'
    facts = pypi.read_sdist_facts(archive(tmp_path, **{"a-1/pyproject.toml": text}))
    assert facts == pypi.SdistFacts(build=("hatchling",))


def test_an_archive_with_a_damaged_header_has_no_facts(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a-1/a")
        member.pax_headers = {"GNU.sparse.map": "0,x", "GNU.sparse.size": "3"}
        tar.addfile(member)
    assert pypi.read_sdist_facts(path) is None


def test_an_archive_with_damaged_data_has_no_facts(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    member = tarfile.TarInfo("a-1/pyproject.toml")
    member.size = 1_000_000
    deflate = zlib.compressobj(wbits=31)
    data = deflate.compress(member.tobuf() + b"#" * 500_000) + deflate.flush(zlib.Z_SYNC_FLUSH)
    path.write_bytes(data + b"\xff" * 100)  # no type of a block
    assert pypi.read_sdist_facts(path) is None


@pytest.mark.processes
@pytest.mark.usefixtures("limited_process")
def test_an_archive_beyond_the_limits_has_no_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "SECONDS", 0.1)
    path = tmp_path / "a.tar.gz"
    member = tarfile.TarInfo("a-1/zeros")
    member.size = 1 << 40
    chunk = gzip.compress(bytes(16 << 20))
    path.write_bytes(gzip.compress(member.tobuf()) + chunk * 1500)
    assert pypi.read_sdist_facts(path) is None
