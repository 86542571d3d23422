"""The same feedstock in both formats of recipes makes equal packages."""

from __future__ import annotations

import json
import re
import shutil
from pathlib import Path
from typing import Any

from kiln.conda_package.reader import read_info
from tests.integration.recipe_v1_feedstocks import FIXTURES, PLACEHOLDER, built, contents, depends, in_v1, paths

TEST_FOLDER = re.compile(r"\n +cwd: etc/conda/test-files/.*")
HASH = re.compile(r"h[0-9a-f]{7}(?=_)")


def without_hash(value: Any) -> Any:
    """Return a JSON value without the hashes of build strings, which the formats make of different keys."""
    return json.loads(HASH.sub("", json.dumps(value)))


def packages(root: Path) -> dict[str, Path]:
    return {HASH.sub("", path.name): path for path in (root / "build_artifacts").glob("*/*.conda")}


def installed(entries: dict[str, Any]) -> dict[str, Any]:
    """Return what a package installs, without the files of its tests, which only recipe.yaml has in the package."""
    rest = {name: value for name, value in entries.items() if not name.startswith("etc/conda/test-files/")}
    return {name: TEST_FOLDER.sub("", value) if isinstance(value, str) else value for name, value in rest.items()}


def about(package: Path) -> dict[str, Any]:
    """Return about.json without the channels, and the names of license files, which rattler-build leaves out."""
    entries = read_info(package, "about.json")
    return {key: value for key, value in entries.items() if key not in {"channels", "license_file"}}


def content_hashes(package: Path) -> dict[str, Any]:
    """Return the hashes of the files without the prefix, whose path depends on the work directory."""
    entries = read_info(package, "paths.json")["paths"]
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
        assert installed(paths(package)) == installed(paths(other)), name
        assert installed(content_hashes(package)) == installed(content_hashes(other)), name
        assert without_hash(depends(package)) == without_hash(depends(other)), name
        assert about(package) == about(other), name
    assert any(PLACEHOLDER.search(str(read_info(package, "paths.json"))) for package in before.values())
