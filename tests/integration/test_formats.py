"""The same feedstock in both formats of recipes makes equal packages."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

import pytest

from kiln.base.yaml import ScalarInterpretation, parse_document
from kiln.conda import package_reader
from kiln.conda.package_reader import read_info_json
from tests.integration.recipe_v1_feedstocks import FIXTURES, PLACEHOLDER, built, contents, depends, in_v1, paths

pytestmark = pytest.mark.slow("a feedstock is built in both formats")

TESTS = "info/tests/tests.yaml"
HASH = re.compile(r"h[0-9a-f]{7}(?=_)")


def without_hash(value: Any) -> Any:
    """Return a JSON value without the hashes of build strings, which the formats make of different keys."""
    return json.loads(HASH.sub("", json.dumps(value)))


def packages(root: Path) -> dict[str, Path]:
    return {HASH.sub("", path.name): path for path in (root / "build_artifacts").glob("*/*.conda")}


def installed(entries: dict[str, Any]) -> dict[str, Any]:
    """Return what a package installs, without its tests, which each format packs in its own layout."""
    return {name: value for name, value in entries.items() if not name.startswith(("etc/conda/test-files/", TESTS))}


def commands(package: Path) -> list[str]:
    """Return the commands of a package's tests, in either layout."""
    with package_reader.open_package_members(package) as members:
        texts = {member.name: content.read().decode() for member, content in members if content is not None}
    if TESTS in texts:
        entries = parse_document(texts[TESTS], TESTS, ScalarInterpretation.TEXT).value
        scripts = [entry.get("script", ()) for entry in entries]
        parts = [script["content"].splitlines() if isinstance(script, dict) else script for script in scripts]
        return [line for lines in parts for line in lines]
    lines = texts.get("info/test/run_test.sh", "").splitlines()
    return [line for line in lines if line not in {"", "set -ex", "exit 0"}]


def about(package: Path) -> dict[str, Any]:
    """Return about.json without channels, and what rattler-build leaves out: names of license files, empty lists."""
    entries = read_info_json(package, "about.json")
    return {key: value for key, value in entries.items() if key not in {"channels", "license_file"} and value != []}


def content_hashes(package: Path) -> dict[str, Any]:
    """Return the hashes of the files without the prefix, whose path depends on the work directory."""
    entries = read_info_json(package, "paths.json")["paths"]
    return {entry["_path"]: entry["sha256"] for entry in entries if "prefix_placeholder" not in entry}


def test_a_feedstock_in_both_formats_makes_equal_packages(tmp_path: Path) -> None:
    old = Path(shutil.copytree(FIXTURES / "small-feedstock", tmp_path / "old"))
    new = in_v1(tmp_path / "new")
    for root in (old, new):
        built(root, "--all")
    before, after = packages(old), packages(new)
    assert sorted(before) == sorted(after)
    assert len(before) == 6
    for name, package in before.items():
        other = after[name]
        assert installed(contents(package)) == installed(contents(other)), name
        assert commands(package) == commands(other), name
        assert installed(paths(package)) == installed(paths(other)), name
        assert installed(content_hashes(package)) == installed(content_hashes(other)), name
        assert without_hash(depends(package)) == without_hash(depends(other)), name
        assert about(package) == about(other), name
    assert any(commands(package) for package in before.values())
    assert any(PLACEHOLDER.search(str(read_info_json(package, "paths.json"))) for package in before.values())
