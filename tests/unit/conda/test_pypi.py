"""Names and versions: what pip means is what conda's solver then does."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest
import rattler
from packaging.requirements import Requirement
from packaging.specifiers import Specifier, SpecifierSet
from pip._internal.models.index import PyPI

from kiln.base import http, process
from kiln.base.http import HttpError
from kiln.build.rehearsal.packages import PackageTarget
from kiln.conda import pypi
from kiln.conda.pypi import (
    IndexFile,
    configured_indexes,
    known_pypi_names,
    pip_requirement,
    pip_specifiers,
    project_files,
    pypi_name,
)

if TYPE_CHECKING:
    from pathlib import Path

VERSIONS = (
    *("0.9", "1.0", "1.0.1", "1.2", "1.2.3", "1.3", "1.10", "1.4.2", "1.4.5", "1.5", "2.0", "2.0.0", "2.1", "3.0"),
    *("1.4.2.post1", "2.0.post1", "2025.1.1"),
)
SPECIFIERS = (
    *(">=1.0", ">1.2", "<2.0", "<=1.4.2", "==1.2", "==1.2.*", "!=1.2", "!=1.4.*", "~=1.2", "~=1.4.2", "===1.2"),
    *(">=1.0,<2.0", ">=1.0,!=1.2.*,<2", "~=1.2,!=1.4.2", ">=1.4.2.post1", "==1.4.2.post1", "<1.4.2.post1"),
)


def conda_allows(spec: str, version: str) -> bool:
    record = rattler.PackageRecord(
        name="small", version=version, build=rattler.BuildString("0"), build_number=0, subdir="linux-64"
    )
    return rattler.MatchSpec(spec).matches(record)


@pytest.mark.parametrize("specifier", SPECIFIERS)
def test_conda_allows_the_versions_that_pip_allows(specifier: str) -> None:
    spec = pypi.conda_spec(Requirement(f"small {specifier}"))
    by_pip = {version for version in VERSIONS if SpecifierSet(specifier).contains(version)}
    assert {version for version in VERSIONS if conda_allows(spec, version)} == by_pip


def test_a_pre_release_of_the_bound_is_not_below_it() -> None:
    spec = pypi.conda_spec(Requirement("small<2.0"))
    assert not conda_allows(spec, "2.0rc1")
    assert not conda_allows(spec, "2.0a1")
    assert conda_allows(spec, "1.9.9")
    assert conda_allows(pypi.conda_spec(Requirement("small<2.0rc2")), "2.0rc1")


@pytest.mark.parametrize(
    ("specifier", "constraint"),
    [
        ("~=4.12", ">=4.12,4.*"),
        ("~=1!2.3.4", ">=1!2.3.4,1!2.3.*"),
        ("==1.0+cpu", "==1.0+cpu"),
        ("===anything", "==anything"),
        ("!=1.0.*", "!=1.0.*"),
        ("<8.0.0", "<8.0.0a0"),
        (">=1.0-1", ">=1.0.post1"),
        (">=1.0.RC1", ">=1.0rc1"),
    ],
)
def test_constraints_are_written_in_condas_language(specifier: str, constraint: str) -> None:
    assert pypi.conda_constraint(Specifier(specifier)) == constraint


@pytest.mark.parametrize(
    ("requirement", "spec"),
    [
        ("Typing_Extensions", "typing_extensions"),
        ("typing.extensions~=4.12", "typing_extensions >=4.12,4.*"),
        ("opt-einsum>=2.3.2", "opt_einsum >=2.3.2"),
        ("flatbuffers>=25.9.23", "python-flatbuffers >=25.9.23"),
        ("libclang>=13.0.0", "python-clang >=13.0.0"),
        ("ml-dtypes<1.0.0,>=0.5.1", "ml_dtypes <1.0.0a0,>=0.5.1"),
        ("six (<2.0,>=1.6.1)", "six <2.0a0,>=1.6.1"),
        ("Some_Thing[extra]>1", "some-thing >1"),
    ],
)
def test_requirements_become_match_specs(requirement: str, spec: str) -> None:
    assert pypi.conda_spec(Requirement(requirement)) == spec
    rattler.MatchSpec(spec, strict=True)


def test_requirements_hold_for_the_target_only() -> None:
    requirements = [
        Requirement("numpy>=2.0"),
        Requirement("numpy>=2.1; python_version >= '3.13'"),
        Requirement("tomli; python_version < '3.11'"),
        Requirement("colorama; sys_platform == 'win32'"),
        Requirement("pytest; extra == 'test'"),
        Requirement("numpy >=2.0"),
    ]

    def found(python: str) -> tuple[str, ...]:
        return pypi.conda_requirements(requirements, PackageTarget(python=python).marker_environment())

    assert found("3.10") == ("numpy >=2.0", "tomli")
    assert found("3.13") == ("numpy >=2.0", "numpy >=2.1")


def test_an_unknown_package_keeps_its_normalized_name() -> None:
    row = pypi.name_mapping("Not_In.The-Table")
    assert row == pypi.NameMapping(conda="not-in-the-table", layout=pypi.WheelLayout.PYTHON, exported_by="")


def test_each_row_of_the_table_has_its_source() -> None:
    for row in pypi.name_mappings().values():
        assert "conda-forge/" in row.source or "conda/grayskull" in row.source, row
        assert rattler.PackageName(row.conda).normalized == row.conda


@pytest.mark.parametrize(
    ("constraint", "specifiers"),
    [
        ("", ()),
        ("1.2", ("==1.2",)),
        ("1.2.*", ("==1.2.*",)),
        ("=1.2", ("==1.2.*",)),
        ("==1.2", ("==1.2",)),
        (">=1.22,<3.0a0", (">=1.22", "<3.0a0")),
        (">=1.0.*", (">=1.0",)),
        ("!=1.5.*", ("!=1.5.*",)),
        ("~=1.2.0", ("~=1.2.0",)),
        ("*", ()),
        (">=2|<1", ()),
        (">=1.0.1_,<2", ("<2",)),
    ],
)
def test_version_constraints_have_pips_syntax(constraint: str, specifiers: tuple[str, ...]) -> None:
    assert pip_specifiers(constraint) == specifiers


def test_names_of_the_table_are_certain_and_others_are_the_same_on_pypi() -> None:
    assert pypi_name("python-flatbuffers") == "flatbuffers"
    assert pypi_name("ml_dtypes") == "ml-dtypes"
    assert (pypi_name("seaborn-base"), pypi_name("seaborn")) == ("seaborn", "seaborn")
    assert pypi_name("Some_Thing") == "some-thing"
    assert known_pypi_names("python-flatbuffers")
    assert not known_pypi_names("some-thing")
    assert known_pypi_names("libcublas") == (), "a wheel with libraries is not a Python package"


def test_the_constraints_of_all_environments_are_one_requirement() -> None:
    assert pip_requirement("typing_extensions", ["", ">=4", ">=4,<5"]) == "typing-extensions<5,>=4"


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
