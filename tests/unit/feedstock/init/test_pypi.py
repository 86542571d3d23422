"""The facts of a generated recipe are checked, and written by conda-forge's rules."""

from __future__ import annotations

import hashlib
import io
import json
import tarfile
from typing import TYPE_CHECKING

import pytest

from kiln.base import process
from kiln.base.errors import DownloadFailed, KilnError, UsageError
from kiln.conda import pypi as conda_pypi
from kiln.feedstock.init import pypi
from kiln.feedstock.init.sdist import SdistFacts

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
    assert project.run == ("httpcore 1.*", "python-flatbuffers >=1.0")  # tomli is for Pythons before the oldest
    assert project.imports == ("foo_bar",)
    assert project.entry_points == ("foo = foo_bar.cli:main",)
    assert project.license_files == ("LICENSE.md",)
    assert project.left_out == ()
    assert project.programs == ("foo",)
    assert [note.partition(":")[0] for note in project.notes] == ["tests", "conda's table of names could not be read"]


@pytest.mark.parametrize(("asked", "name"), [("foo.bar", "foo.bar"), ("Foo_Bar", "foo_bar"), ("other", "foo-bar")])
def test_the_packages_name_is_the_one_that_was_asked_for(asked: str, name: str) -> None:
    project = pypi.project_from_generated_recipe(GENERATED, mapped=True, asked=asked)
    assert project.name == name
    assert project.url.startswith(f"{pypi.ADDRESS}/packages/source/f/{name}/foo_bar-")


def test_a_requirement_of_the_build_may_have_a_marker() -> None:
    rows = "- flit_core[all]<4; implementation_name == 'cpython'\n  - odd>=1; sys_platform == 'nothing'"
    project = pypi.project_from_generated_recipe(GENERATED.replace("- flit_core<4", rows), mapped=False)
    assert project.host == ("pip", "flit-core <4")


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
    assert all(part in notes for part in ("upstream's pyproject.toml", "compilers", "no license", "license's file"))


def test_the_source_archive_answers_what_the_generator_left_open() -> None:
    text = GENERATED.replace("  - flit_core<4\n", "").replace("  license_file:\n  - LICENSE.md\n", "")
    text = text.replace("  python:\n    entry_points:\n    - foo = foo_bar.cli:main\n", "")
    source = SdistFacts(build=("hatchling",), programs=("f = foo:main",), licenses=("COPYING",), modules=("foo",))
    project = pypi.project_from_generated_recipe(text, mapped=True, source_facts=lambda _: source)
    assert project.host == ("pip", "hatchling")
    assert project.license_files == ("COPYING",)
    assert (project.entry_points, project.programs) == (("f = foo:main",), ("f",))
    assert project.imports == ("foo",)
    assert [note for note in project.notes if "could not" in note or "unknown" in note] == []
    kept = pypi.project_from_generated_recipe(GENERATED, mapped=True, source_facts=lambda _: source)
    assert (kept.host, kept.license_files) == (("pip", "flit_core <4"), ("COPYING",))


@pytest.mark.parametrize(
    ("bound", "pinned", "minimum", "bounds"),
    [
        (">=3.11", "3.10", "3.11", ()),
        (">=3.11", "3.12", "", ()),
        (">=3.9", "3.10", "", ()),
        (">=3.12.4,<3.15,!=3.13.*", "3.10", "3.12", ("!=3.13.*", "<3.15")),
        ("~=3.11", "3.10", "3.11", ()),
        ("", "3.10", "", ()),
    ],
)
def test_the_pythons_are_those_of_the_source_and_the_pinning(
    bound: str, pinned: str, minimum: str, bounds: tuple[str, ...]
) -> None:
    source = SdistFacts(python=bound)
    project = pypi.project_from_generated_recipe(
        GENERATED, mapped=True, python_min=pinned, source_facts=lambda _: source
    )
    assert (project.python_min, project.python_bounds) == (minimum, bounds)


@pytest.mark.parametrize(
    ("marker", "noarch", "compiled"),
    [
        ('python_version < "3.13"', "run", ("<3.13", ())),
        ('python_version >= "3.14"', "run", (">=3.14", ())),
        ('python_full_version < "3.13.2"', "run", ("<3.13", ())),
        ('python_version >= "3.8"', "run", "run"),
        ('python_version < "3.12"', "dropped", "dropped"),
        ('platform_python_implementation == "PyPy"', "dropped", "dropped"),
        ('sys_platform == "win32"', "comment", ("", ("win",))),
        ('sys_platform != "win32"', "run", ("", ("linux", "osx"))),
        ('os_name == "nt" and python_version < "3.13"', "comment", ("<3.13", ("win",))),
        ('python_version == "3.13"', "comment", "comment"),
        ("nonsense", "comment", "comment"),
    ],
)
@pytest.mark.parametrize("is_noarch", [True, False])
def test_a_requirement_with_a_marker(marker: str, noarch: object, compiled: object, is_noarch: bool) -> None:
    text = GENERATED.replace('python_version < "3.11"', marker)
    text = text if is_noarch else text.replace("  noarch: python\n", "")
    project = pypi.project_from_generated_recipe(text, mapped=True)
    expected = noarch if is_noarch else compiled
    spec = "tomli >=1.1.0"
    assert (spec in project.run) == (expected == "run")
    assert bool(project.left_out) == (expected == "comment")
    found = [(item.python, item.platforms) for item in project.conditional]
    assert found == ([expected] if isinstance(expected, tuple) else [])
    told = [note for note in project.notes if "tomli" in note]
    assert bool(told) == (expected == "comment" or (is_noarch and expected == "run" and "3.8" not in marker))


@pytest.mark.parametrize(
    ("first", "run"),
    [
        ("- numpy >=1.21", ["numpy >=1.21"]),
        ('# - numpy >=1.21 # python_version < "3.13"', ["numpy"]),
    ],
)
def test_bounds_of_some_pythons_do_not_bind_a_noarch_package(first: str, run: list[str]) -> None:
    rows = f'{first}\n  # - numpy >=2.1 # python_version >= "3.13"'
    text = GENERATED.replace('# - tomli >=1.1.0 # python_version < "3.11"', rows)
    project = pypi.project_from_generated_recipe(text, mapped=True)
    assert [spec for spec in project.run if "numpy" in spec] == run
    assert any("numpy >=2.1" in note for note in project.notes)


def test_a_pinning_has_the_oldest_python(tmp_path: Path) -> None:
    (tmp_path / "conda_build_config.yaml").write_text("python:\n  - 3.12.* *_cpython\npython_min:\n  - '3.12'\n")
    assert pypi.python_min_of_pinning(tmp_path / "conda_build_config.yaml") == "3.12"
    assert pypi.python_min_of_pinning(None) == pypi.PYTHON_MIN


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
    monkeypatch.setattr(pypi, "_fetch_source_facts", lambda *_, **__: SdistFacts(licenses=("COPYING",)))
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
    with pytest.raises(UsageError, match="cannot be a project") as caught:
        pypi.fetch_project("anytree==2.12.0", None, env={})
    assert caught.value.hint == "kiln init anytree --pypi --version 2.12.0"
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
