"""The packages that a solver chose are read from a package's rendered recipe, whichever engine wrote it."""

from __future__ import annotations

import dataclasses
import json
from typing import Any

import pytest

from kiln.conda.provenance.contents import (
    build_and_host_packages,
    conda_purl,
    is_valid_package,
    package_purl,
    parse_exact_spec,
    transitive_run_dependencies,
)
from kiln.conda.provenance.records import ResolvedPackage

META = b"""
requirements:
  build:
  - gcc_linux-64 14.2.0 h2_1
  host:
  - python 3.12.1 h1_0_cpython
  - python_abi
  run:
  - python >=3.12
"""


def rendered_v1(**changed: Any) -> bytes:
    fields = {"name": "python", "version": "3.12.1", "build": "h1_0", "subdir": "linux-64", "sha256": "ab" * 32}
    one = {**fields, "url": "https://a.example/linux-64/python-3.12.1-h1_0.conda", **changed}
    return json.dumps({"finalized_dependencies": {"build": None, "host": {"resolved": [one, 7]}}}).encode()


def test_conda_builds_layout_has_names_versions_and_build_strings() -> None:
    assert build_and_host_packages({"recipe/meta.yaml": META}) == (
        ResolvedPackage(scope="build", name="gcc_linux-64", version="14.2.0", build="h2_1"),
        ResolvedPackage(scope="host", name="python", version="3.12.1", build="h1_0_cpython"),
    )


def test_rattler_builds_layout_has_addresses_and_hashes_too() -> None:
    (one,) = build_and_host_packages({"recipe/rendered_recipe.yaml": rendered_v1(), "recipe/meta.yaml": META})
    assert (one.scope, one.subdir, one.sha256) == ("host", "linux-64", "ab" * 32)
    assert one.url == "https://a.example/linux-64/python-3.12.1-h1_0.conda"


@pytest.mark.parametrize("url", ["file:///home/me/a.conda", "https://me:secret@a.example/a", "https://a.example/t/x/a"])
def test_an_address_of_one_machine_or_with_credentials_is_left_out(url: str) -> None:
    (one,) = build_and_host_packages({"recipe/rendered_recipe.yaml": rendered_v1(url=url, sha256="not a hash")})
    assert (one.url, one.sha256) == ("", "")


@pytest.mark.parametrize(
    "data",
    [
        b"",
        b"[]",
        b"a: [",
        b"requirements: 7",
        b"requirements: {host: {}}",
        b"\xff\xfe",
        b"a: !!python/name:os.system\n",
    ],
)
def test_a_recipe_that_is_none_has_no_packages(data: bytes) -> None:
    assert (
        build_and_host_packages({"recipe/meta.yaml": data})
        == build_and_host_packages({"recipe/rendered_recipe.yaml": data})
        == ()
    )


def test_only_one_build_satisfies_a_spec_without_operators() -> None:
    assert parse_exact_spec("liba 1.2 h1_0") == ("1.2", "h1_0")
    for spec in ("liba", "liba 1.2", "liba 1.2 h1_*", "liba >=1.2 h1_0", "liba 1.* h1_0"):
        assert parse_exact_spec(spec) is None


def installed_record(name: str, *depends: str, **changed: str) -> dict[str, Any]:
    file = f"https://conda.anaconda.org/conda-forge/linux-64/{name}-1-0.conda"
    fields = {"name": name, "version": "1", "build": "0", "subdir": "linux-64", "url": file, "sha256": "ab" * 32}
    return {**fields, "depends": list(depends), **changed}


def test_run_dependencies_are_what_the_package_requires_and_no_tool_of_its_tests() -> None:
    records = [
        installed_record("a", "liba >=1", "__glibc >=2.17"),
        installed_record("liba", "libb"),
        installed_record("libb", "liba", "a"),
        installed_record("pytest", "libc"),
        installed_record("libc"),
    ]
    packages = transitive_run_dependencies(records, "a")
    assert [(package.scope, package.name) for package in packages] == [("run", "liba"), ("run", "libb")]
    assert packages[0].channel == "https://conda.anaconda.org/conda-forge"
    assert package_purl(packages[0]) == "pkg:conda/liba@1?build=0&channel=conda-forge&subdir=linux-64"
    assert transitive_run_dependencies([], "a") == ()


def test_the_channel_of_a_package_on_this_machine_or_with_a_token_is_unknown() -> None:
    for url in ("file:///home/me/linux-64/liba-1-0.conda", "https://a.example/t/swordfish/c/linux-64/liba-1-0.conda"):
        (package,) = transitive_run_dependencies(
            [installed_record("a", "liba"), installed_record("liba", url=url)], "a"
        )
        assert (package.url, package.channel, package.sha256) == ("", "", "ab" * 32)


def test_another_channel_is_named_by_its_address() -> None:
    url = "https://a.example/c/linux-64/liba-1-0.conda"
    (package,) = transitive_run_dependencies([installed_record("a", "liba"), installed_record("liba", url=url)], "a")
    assert "channel=https%3A%2F%2Fa.example%2Fc&" in package_purl(package)


@pytest.mark.parametrize(
    "changes",
    [
        {"name": "../a"},
        {"version": ""},
        {"build": "0\x1b[31m"},
        {"subdir": "a" * 2000},
        {"sha256": "ab"},
        {"url": "https://me:swordfish@a.example/a"},
        {"channel": "file:///home/me"},
    ],
)
def test_a_forged_package_is_invalid(changes: dict[str, str]) -> None:
    package = ResolvedPackage(scope="run", name="liba", version="1", build="0", url="https://a.example/a")
    assert is_valid_package(package)
    assert not is_valid_package(dataclasses.replace(package, **changes))


def test_a_purl_quotes_what_is_not_plain() -> None:
    assert conda_purl("_x", "1!2.0+a", build="") == "pkg:conda/_x@1%212.0%2Ba"
