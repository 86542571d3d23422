"""Facts of a source archive are read without running any of it, and a damaged or hostile one has none."""

from __future__ import annotations

import gzip
import io
import tarfile
import zlib
from typing import TYPE_CHECKING

import pytest

from kiln.base.limits import errors
from kiln.feedstock.init import sdist
from kiln.feedstock.init.sdist import SdistFacts

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


def facts_of(folder: Path, **texts: str) -> SdistFacts:
    """Return the facts of an archive of files by their paths below its folder."""
    facts = sdist.read_sdist_facts(archive(folder, **files(**texts)))
    assert facts is not None
    return facts


def metadata(name: str, lines: str = "") -> str:
    return f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n{lines}\n"


def test_the_facts_of_a_modern_project(tmp_path: Path) -> None:
    there = files("LICENSE.md", "COPYING", "src/tool/__init__.py", "tests/__init__.py", "docs/LICENSE", "setup.py")
    facts = sdist.read_sdist_facts(archive(tmp_path, **there, **{"a-1/pyproject.toml": PROJECT}))
    assert facts is not None
    assert facts.build == ("hatchling >=1.20", "hatch-vcs")
    assert facts.programs == ("tool = tool.cli:main",)
    assert facts.licenses == ("COPYING", "LICENSE.md")
    assert facts.modules == ("tool",)


def test_the_facts_of_an_older_project(tmp_path: Path) -> None:
    there = files("LICENCE", "old/py.py", "old.py", "setup.py", "conftest.py", "examples/__init__.py")
    facts = sdist.read_sdist_facts(archive(tmp_path, **there, **{"a-1/setup.cfg": SETUP}))
    assert facts == SdistFacts(
        build=("setuptools",), programs=("old = old.cli:run",), licenses=("LICENCE",), modules=("old",)
    )


@pytest.mark.parametrize(
    "text", ["[", "build-system = 1", "[build-system]\nrequires = 3", "\x00", "[project]\nscripts = 1"]
)
def test_a_malformed_file_is_as_none(tmp_path: Path, text: str) -> None:
    assert facts_of(tmp_path, **{"pyproject.toml": text, "setup.cfg": "[["}) == SdistFacts()


@pytest.mark.parametrize("data", [b"", b"<html>", b"\x1f\x8b" + b"x" * 50])
def test_what_is_no_archive_has_no_facts(tmp_path: Path, data: bytes) -> None:
    (tmp_path / "a.tar.gz").write_bytes(data)
    assert sdist.read_sdist_facts(tmp_path / "a.tar.gz") is None


def test_paths_that_lead_out_and_links_do_not_count(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz") as tar:
        link = tarfile.TarInfo("a-1/pyproject.toml")
        link.type, link.linkname = tarfile.SYMTYPE, "/etc/passwd"
        tar.addfile(link)
        tar.addfile(tarfile.TarInfo("a-1/../LICENSE"))
    assert sdist.read_sdist_facts(path) == SdistFacts()


@pytest.mark.parametrize("name", ["LICENSE", ".", "../LICENSE", "/LICENSE"])
def test_a_member_outside_the_top_folder_does_not_count(tmp_path: Path, name: str) -> None:
    facts = sdist.read_sdist_facts(archive(tmp_path, **{name: "", "a-1/COPYING": ""}))
    assert facts == SdistFacts(licenses=("COPYING",))


@pytest.mark.parametrize("invalid", ["foo ===x.*", "foo; python_version ~= 'x'", "foo; 'x' in dependency_groups"])
def test_a_requirement_that_cannot_be_evaluated_is_left_out(tmp_path: Path, invalid: str) -> None:
    text = f'[build-system]\nrequires = ["{invalid}", "hatchling"]'
    assert facts_of(tmp_path, **{"pyproject.toml": text}) == SdistFacts(build=("hatchling",))


def test_an_archive_with_a_damaged_header_has_no_facts(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    with tarfile.open(path, "w:gz", format=tarfile.PAX_FORMAT) as tar:
        member = tarfile.TarInfo("a-1/a")
        member.pax_headers = {"GNU.sparse.map": "0,x", "GNU.sparse.size": "3"}
        tar.addfile(member)
    assert sdist.read_sdist_facts(path) is None


def test_an_archive_with_damaged_data_has_no_facts(tmp_path: Path) -> None:
    path = tmp_path / "a.tar.gz"
    member = tarfile.TarInfo("a-1/pyproject.toml")
    member.size = 1_000_000
    deflate = zlib.compressobj(wbits=31)
    data = deflate.compress(member.tobuf() + b"#" * 500_000) + deflate.flush(zlib.Z_SYNC_FLUSH)
    path.write_bytes(data + b"\xff" * 100)  # no type of a block
    assert sdist.read_sdist_facts(path) is None


@pytest.mark.processes
@pytest.mark.usefixtures("limited_process")
def test_an_archive_beyond_the_limits_has_no_facts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(errors, "SECONDS", 0.1)
    path = tmp_path / "a.tar.gz"
    member = tarfile.TarInfo("a-1/zeros")
    member.size = 1 << 40
    chunk = gzip.compress(bytes(16 << 20))
    path.write_bytes(gzip.compress(member.tobuf()) + chunk * 1500)
    assert sdist.read_sdist_facts(path) is None


MESON = (
    "project(\n  'p',\n  'c', 'cpp', 'cython',\n  version: '1')\nadd_languages('fortran')\nfftw = dependency('fftw3')\n"
)
MATURIN = '[build-system]\nrequires = ["maturin>=1,<2"]\nbuild-backend = "maturin"\n'
SCIKIT = '[build-system]\nrequires = ["scikit-build-core", "pybind11", "cmake>=3.20"]\n'


@pytest.mark.parametrize(
    ("texts", "languages", "tools"),
    [
        ({"setup.py": "setup(name='p')", "p/__init__.py": ""}, (), ()),
        ({"setup.py": "Extension('p._p', ['p/_p.c'])", "p/_p.c": ""}, ("c",), ()),
        ({"setup.py": "ext_modules=cythonize('p/*.pyx')", "p/_p.pyx": "", "p/x.cpp": ""}, ("c", "cxx"), ()),
        ({"setup.py": "setup(cffi_modules=['b.py:ffi'])"}, ("c",), ()),
        ({"setup.py": "setup(name='p')", "tests/a.c": ""}, (), ()),
        ({"setup.py": "Extension('p', ['s.f90'])", "s.f90": "", "docs/a.cpp": ""}, ("fortran",), ()),
        ({"setup.py": "run(['cmake', '..']); Extension('p', [])", "p.cc": ""}, ("cxx",), ("cmake", "make")),
        ({"pyproject.toml": MATURIN, "Cargo.toml": ""}, ("c", "rust"), ()),
        ({"pyproject.toml": SCIKIT, "CMakeLists.txt": "project(p LANGUAGES CXX)"}, ("cxx",), ("cmake", "ninja")),
        ({"pyproject.toml": SCIKIT, "CMakeLists.txt": "project(p)"}, ("c", "cxx"), ("cmake", "ninja")),
        (
            {"pyproject.toml": SCIKIT, "CMakeLists.txt": "project(p C)\n#project(x CXX)\nenable_language(CUDA)"},
            ("c", "cuda"),
            ("cmake", "ninja"),
        ),
        (
            {"pyproject.toml": '[build-system]\nrequires = ["meson-python", "Cython"]\n', "meson.build": MESON},
            ("c", "cxx", "fortran"),
            ("ninja", "pkg-config"),
        ),
    ],
)
def test_the_compilers_and_programs_of_a_build(
    tmp_path: Path, texts: dict[str, str], languages: tuple[str, ...], tools: tuple[str, ...]
) -> None:
    facts = facts_of(tmp_path, **texts)
    assert (facts.languages, facts.tools) == (languages, tools)
    assert not set(facts.build) & set(tools)


METADATA = """\
Metadata-Version: 2.4
Name: Big-Tool
Version: 1
Summary: A big tool
Home-page: https://tool.example/
License-Expression: MIT
License-File: LICENSE
License-File: vendor/LICENSE
License-File: gone.txt
Requires-Python: >=3.11
Project-URL: Source Code, https://github.com/o/big-tool.git
Project-URL: Docs, https://docs.example/
Project-URL: Funding, javascript:alert(1)
Requires-Dist: pytest>=8; extra == "test"
Requires-Dist: big-tool[cli]; extra == "test"
"""


def test_the_facts_of_the_metadata(tmp_path: Path) -> None:
    texts = {"PKG-INFO": METADATA, "LICENSE": "", "vendor/LICENSE": "", "tests/test_a.py": "", "conftest.py": ""}
    facts = facts_of(tmp_path, **texts)
    assert (facts.summary, facts.license, facts.python) == ("A big tool", "MIT", ">=3.11")
    assert facts.licenses == ("LICENSE", "vendor/LICENSE")
    assert facts.urls == {
        "homepage": "https://tool.example/",
        "repository": "https://github.com/o/big-tool",
        "documentation": "https://docs.example/",
    }
    assert facts.tests == ("tests/", "conftest.py")
    assert facts.test_requirements == ("pytest >=8",)


@pytest.mark.parametrize(
    ("lines", "repository"),
    [
        ("Home-page: https://github.com/o/other-name/", "https://github.com/o/other-name"),
        ("Home-page: https://p.example/\nProject-URL: Issues, https://github.com/o/p/issues", "https://github.com/o/p"),
        ("Home-page: https://p.example/\nProject-URL: Fork of, https://github.com/o/x", None),
    ],
)
def test_the_repository_where_no_label_names_it(tmp_path: Path, lines: str, repository: str | None) -> None:
    assert facts_of(tmp_path, **{"PKG-INFO": metadata("p", lines)}).urls.get("repository") == repository


@pytest.mark.parametrize(
    ("lines", "text", "license_"),
    [
        ("License: MPL-2.0 AND MIT", "", "MPL-2.0 AND MIT"),
        ("License: some words\nClassifier: License :: OSI Approved :: MIT License", "", "MIT"),
        ("Classifier: License :: OSI Approved :: BSD License", "Neither ... to endorse\nor promote", "BSD-3-Clause"),
        ("Classifier: License :: OSI Approved :: BSD License", "Redistribution", "BSD-2-Clause"),
        ("Classifier: License :: Other/Proprietary License", "", ""),
    ],
)
def test_the_license_of_older_metadata(tmp_path: Path, lines: str, text: str, license_: str) -> None:
    assert facts_of(tmp_path, **{"PKG-INFO": metadata("p", lines), "LICENSE": text}).license == license_


@pytest.mark.parametrize(
    ("name", "texts", "modules"),
    [
        ("PyYAML", {"lib/yaml/__init__.py": "", "lib/_yaml/__init__.py": "", "packaging/x.py": ""}, ("yaml",)),
        ("packaging", {"src/packaging/__init__.py": "", "tests/__init__.py": ""}, ("packaging",)),
        ("zope.interface", {"src/zope/interface/__init__.py": ""}, ("zope.interface",)),
        ("beautifulsoup4", {"bs4/__init__.py": "", "tests/__init__.py": ""}, ("bs4",)),
        ("attrs", {"src/attr/__init__.py": "", "src/attrs/__init__.py": ""}, ("attrs",)),
        ("dm-tree", {"dm_tree.egg-info/top_level.txt": "tree\n", "tree/__init__.py": "", "x.py": ""}, ("tree",)),
        ("n.y.clib", {"n.y.clib.egg-info/top_level.txt": "_n_y\nn\n", "__init__.py": ""}, ("_n_y",)),
        ("rpds-py", {"Cargo.toml": '[lib]\nname = "rpds"\n', "src/lib.rs": ""}, ("rpds",)),
        ("f", {"pyproject.toml": '[tool.flit.module]\nname = "other"\n', "other.py": ""}, ("other",)),
        ("m", {"pyproject.toml": '[tool.maturin]\nmodule-name = "mm._mm"\n'}, ("mm",)),
    ],
)
def test_the_names_to_import(tmp_path: Path, name: str, texts: dict[str, str], modules: tuple[str, ...]) -> None:
    assert facts_of(tmp_path, **{"PKG-INFO": metadata(name), **texts}).modules == modules
