"""The facts of a generated recipe are checked, and written by conda-forge's rules."""

from __future__ import annotations

import gzip
import hashlib
import io
import json
import tarfile
import zlib
from typing import TYPE_CHECKING

import pytest

from kiln.base import process
from kiln.base.errors import DownloadFailed, KilnError, UsageError
from kiln.base.limits import errors
from kiln.conda import pypi as conda_pypi
from kiln.feedstock.init import pypi
from kiln.feedstock.init.pypi import SdistFacts

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


HASH = "0" * 64
# In the form of py-rattler-build 0.73's generator.
GENERATED = f"""\
context:
  version: 3.10
  build_number: '0'

package:
  name: Foo-Bar
  version: ${{{{ version }}}}

source:
- url: ../../packages/packages/1f/1d/58e2/foo_bar-${{{{ version }}}}.tar.gz
  sha256: {HASH}

build:
  number: ${{{{ build_number }}}}
  script: ${{{{ PYTHON }}}} -m pip install .
  python:
    entry_points:
    - foo = foo_bar.cli:main
  noarch: python

requirements:
  host:
  - python >=3.12.0
  - flit_core<4
  - pip
  run:
  - python >=3.12.0
  - httpcore ==1.*
  - flatbuffers >=1.0
  # - tomli >=1.1.0 # python_version < "3.11"
  # - rich <14,>=10 # extra == "cli"

tests:
- python:
    imports:
    - Foo_Bar
    pip_check: true

about:
  summary: A tool
  license: MIT
  license_file:
  - LICENSE.md
"""


def test_the_facts_are_those_of_the_generated_recipe() -> None:
    project = pypi.project_from_generated_recipe(GENERATED, mapped=False)
    assert (project.name, project.version, project.sha256) == ("foo-bar", "3.10", HASH)
    assert project.url == f"{pypi.ADDRESS}/packages/source/f/foo-bar/foo_bar-{{version}}.tar.gz"
    assert project.noarch
    assert project.python_min == "3.12"
    assert project.host == ("pip", "flit-core <4")
    assert project.run == ("httpcore 1.*", "python-flatbuffers >=1.0")
    assert project.imports == ("foo_bar",)
    assert project.entry_points == ("foo = foo_bar.cli:main",)
    assert project.license_files == ("LICENSE.md",)
    assert project.left_out == ('tomli >=1.1.0 (python_version < "3.11")',)
    assert [note.partition(":")[0] for note in project.notes] == [
        "requirements with conditions are comments in the recipe",
        "conda's table of names could not be read",
    ]


def test_names_that_the_generator_mapped_stay() -> None:
    assert "flatbuffers >=1.0" in pypi.project_from_generated_recipe(GENERATED, mapped=True).run


def test_what_the_generator_does_not_know_is_noted() -> None:
    text = GENERATED.replace("  - flit_core<4\n", "").replace("  license_file:\n  - LICENSE.md\n", "")
    text = text.replace("  noarch: python\n", "").replace(">=3.12.0", ">=3.9").replace("  license: MIT\n", "")
    project = pypi.project_from_generated_recipe(text, mapped=True)
    assert project.host == ("pip", "setuptools")
    assert project.license_files == ("LICENSE",)
    assert project.python_min == ""
    assert project.entry_points == ()
    notes = " ".join(project.notes)
    assert all(part in notes for part in ("upstream's pyproject.toml", "C compiler", "no license", "license's file"))


def test_the_source_archive_answers_what_the_generator_left_open() -> None:
    text = GENERATED.replace("  - flit_core<4\n", "").replace("  license_file:\n  - LICENSE.md\n", "")
    text = text.replace("  python:\n    entry_points:\n    - foo = foo_bar.cli:main\n", "")
    source = SdistFacts(build=("hatchling",), programs=("f = foo:main",), licenses=("COPYING",), modules=("foo",))
    project = pypi.project_from_generated_recipe(text, mapped=True, source_facts=lambda _: source)
    assert project.host == ("pip", "hatchling")
    assert project.license_files == ("COPYING",)
    assert project.entry_points == ("f = foo:main",)
    assert project.imports == ("foo",)
    assert [note for note in project.notes if "could not" in note or "unknown" in note] == []
    kept = pypi.project_from_generated_recipe(GENERATED, mapped=True, source_facts=lambda _: source)
    assert (kept.host, kept.license_files) == (("pip", "flit_core <4"), ("LICENSE.md",))


@pytest.mark.parametrize(
    ("old", "new", "message"),
    [
        (HASH, "abc", "no SHA-256"),
        ("foo_bar-${{ version }}.tar.gz", "foo_bar.tar.gz", "no version in its name"),
        ("foo_bar-${{ version }}.tar.gz", "foo$(id)-${{ version }}.tar.gz", "no version in its name"),
        ("foo_bar-${{ version }}.tar.gz", "foo{{x}}-${{ version }}.tar.gz", "no version in its name"),
        ("name: Foo-Bar", "name: '../x'", "cannot be a package name"),
        ("version: 3.10", "version: '1\\n2'", "cannot be a version"),
        ("httpcore ==1.*", "'; rm -rf /'", "is not a requirement"),
    ],
)
def test_a_value_that_could_harm_is_refused(old: str, new: str, message: str) -> None:
    with pytest.raises(KilnError, match=message):
        pypi.project_from_generated_recipe(GENERATED.replace(old, new), mapped=True)


@pytest.fixture
def answering(monkeypatch: pytest.MonkeyPatch) -> Callable[[str], None]:
    """Return a function that sets the output of the generator's process, which reaches the network."""

    def answer(output: str) -> None:
        result = process.ProcessResult(argv=(), exit_code=0, stdout=output, tail="", seconds=0.1)
        monkeypatch.setattr(process, "capture", lambda *_, **__: result)

    return answer


def test_a_release_is_asked_of_the_generator(answering: Callable[[str], None], monkeypatch: pytest.MonkeyPatch) -> None:
    answering(json.dumps({"recipe": GENERATED, "mapped": True}))
    monkeypatch.setattr(pypi, "_fetch_source_facts", lambda *_: SdistFacts(licenses=("COPYING",)))
    assert pypi.fetch_project("Foo-Bar", None, env={}).name == "foo-bar"


@pytest.mark.parametrize(
    ("output", "message", "hint"),
    [
        ('{"error": "Server returned status code: 404 Not Found"}', "PyPI has no x 2", "/project/x/"),
        ('{"error": "No source distribution found in u"}', "no source archive of x 2", "kiln init x"),
        ('{"error": "dns error"}', "no recipe could be generated for x 2", "HTTPS_PROXY"),
        ("", "no recipe could be generated for x", ""),
    ],
)
def test_failures_are_told_apart(answering: Callable[[str], None], output: str, message: str, hint: str) -> None:
    answering(output)
    with pytest.raises(DownloadFailed, match=message) as caught:
        pypi.fetch_project("x", "2", env={})
    assert hint in caught.value.hint


def test_a_name_that_no_project_has_is_not_asked_for() -> None:
    with pytest.raises(UsageError, match="cannot be a project"):
        pypi.fetch_project("../etc", None, env={})


def test_a_projects_source_archive_is_fetched_and_read(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as archive:
        archive.addfile(tarfile.TarInfo("small-1/COPYING"))
    sha256 = hashlib.sha256(data.getvalue()).hexdigest()
    page = tmp_path / "small" / "index.html"
    page.parent.mkdir()
    page.with_name("small-1.tar.gz").write_bytes(data.getvalue())
    page.write_text(f'<a href="small-1.tar.gz#sha256={sha256}">small</a>')
    monkeypatch.setattr(conda_pypi, "configured_indexes", lambda _: (tmp_path.as_uri(),))
    url = "https://index.example/packages/source/s/small/small-{version}.tar.gz"
    project = pypi.PythonProject(
        noarch=True,
        python_min="3.10",
        name="small",
        version="1",
        url=url,
        sha256=sha256,
        host=(),
        run=(),
        imports=(),
        about={},
    )
    facts = pypi._fetch_source_facts(project, {})
    assert facts is not None
    assert facts.licenses == ("COPYING",)


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
