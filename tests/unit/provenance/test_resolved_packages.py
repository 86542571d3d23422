"""The packages that a solver chose are read from a package's rendered recipe, whichever engine wrote it."""

from __future__ import annotations

import json
from typing import Any

import pytest

from kiln.provenance.resolved_packages import ResolvedPackage, exact, purl, resolved

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
    assert resolved({"recipe/meta.yaml": META}) == (
        ResolvedPackage(scope="build", name="gcc_linux-64", version="14.2.0", build="h2_1"),
        ResolvedPackage(scope="host", name="python", version="3.12.1", build="h1_0_cpython"),
    )


def test_rattler_builds_layout_has_addresses_and_hashes_too() -> None:
    (one,) = resolved({"recipe/rendered_recipe.yaml": rendered_v1(), "recipe/meta.yaml": META})
    assert (one.scope, one.subdir, one.sha256) == ("host", "linux-64", "ab" * 32)
    assert one.url == "https://a.example/linux-64/python-3.12.1-h1_0.conda"


@pytest.mark.parametrize("url", ["file:///home/me/a.conda", "https://me:secret@a.example/a", "https://a.example/t/x/a"])
def test_an_address_of_one_machine_or_with_credentials_is_left_out(url: str) -> None:
    (one,) = resolved({"recipe/rendered_recipe.yaml": rendered_v1(url=url, sha256="not a hash")})
    assert (one.url, one.sha256) == ("", "")


@pytest.mark.parametrize("data", [b"", b"[]", b"a: [", b"requirements: 7", b"requirements: {host: {}}", b"\xff\xfe"])
def test_a_recipe_that_is_none_has_no_packages(data: bytes) -> None:
    assert resolved({"recipe/meta.yaml": data}) == resolved({"recipe/rendered_recipe.yaml": data}) == ()


def test_only_one_build_satisfies_a_spec_without_operators() -> None:
    assert exact("liba 1.2 h1_0") == ("1.2", "h1_0")
    for spec in ("liba", "liba 1.2", "liba 1.2 h1_*", "liba >=1.2 h1_0", "liba 1.* h1_0"):
        assert exact(spec) is None


def test_a_purl_quotes_what_is_not_plain() -> None:
    assert purl("_x", "1!2.0+a", build="") == "pkg:conda/_x@1%212.0%2Ba"
