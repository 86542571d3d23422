"""Packages of the default engine and of conda-build, from the same recipes, compared file by file.

The differences that stay are those of docs/reference/packages.md; everything else must be equal.
"""

from __future__ import annotations

import json
import marshal
import os
import re
import shutil
import subprocess
from operator import itemgetter
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from tests import engine_packages
from tests.compared_recipes import RECIPES
from tests.engine_packages import Package

if TYPE_CHECKING:
    from collections.abc import Mapping

ROOT = Path(__file__).parents[2]
ENGINES = ("rattler-build", "conda-build")
Pairs = dict[str, tuple[Package, ...]]
pytestmark = [pytest.mark.trial, pytest.mark.needs("conda-build", "gcc", "readelf")]

# What of a package is of its engine, its build or its machine: docs/reference/packages.md gives the reasons.
ABOUT_ALONE = {"channels", "conda_build_version", "conda_version", "env_vars", "rattler_build_version", "root_pkgs"}
BYTECODE = ".pyc"
COMPARED_ELSEWHERE = tuple(
    f"info/{name}"
    for name in (
        *("about.json", "files", "git", "has_prefix", "hash_input.json", "index.json", "link.json", "no_link"),
        *("paths.json", "run_exports.json", "recipe/", "test/"),
    )
)
EXTRA_ALONE = {"copy_test_source_files", "final", "flow_run_id", "parent_recipe", "remote_url", "sha"}


@pytest.fixture(scope="module")
def shared(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the channel and the sources of the recipes."""
    folder = tmp_path_factory.mktemp("shared")
    engine_packages.channel(folder)
    return folder


@pytest.fixture(scope="module", params=sorted(RECIPES))
def pairs(request: pytest.FixtureRequest, shared: Path, tmp_path_factory: pytest.TempPathFactory) -> Pairs:
    """The packages of a recipe by name, each of both engines."""
    meta, files = RECIPES[request.param]
    folder = tmp_path_factory.mktemp(request.param)
    if "REPOSITORY" in meta:
        for name, text in engine_packages.sources(folder / "sources").items():
            meta = meta.replace(name, text)
    channel = (shared / "channel").as_uri()
    variants = f"channel_sources:\n  - {channel}\nflavour:\n  - sweet\nforced:\n  - a\nignored:\n  - b\n"
    made = [engine_packages.packages(folder / engine, engine, meta, variants, files) for engine in ENGINES]
    assert made[0].keys() == made[1].keys()
    return {name: tuple(each[name] for each in made) for name in made[0]}


def test_files_modes_and_links_are_equal(pairs: Pairs) -> None:
    for own, other in pairs.values():
        assert own.modes == {name: mode for name, mode in other.modes.items() if name != "info/git"}
        for name, data in own.payload().items():
            if not varies_by_engine(name, data):
                assert data.strip() == other.contents[name].strip(), name
            elif name.endswith(BYTECODE):
                assert code_of(data) == code_of(other.contents[name]), name


def varies_by_engine(name: str, data: bytes) -> bool:
    """Return whether the engines write a file differently: binaries, bytecode, and scripts of entry points."""
    return data.startswith(b"\x7fELF") or name.endswith(BYTECODE) or b"from snake import main" in data


def code_of(bytecode: bytes) -> tuple[object, ...]:
    """Return the names of compiled code, and of its file without the egg in which conda-build has compiled it."""
    code = marshal.loads(bytecode[16:])
    return (code.co_code, code.co_names, code.co_consts, re.sub(r"[^/]*\.egg/odd", "odd", code.co_filename))


def test_search_paths_of_binaries_are_equal(pairs: Pairs, tmp_path: Path) -> None:
    for own, other in pairs.values():
        for name, data in own.payload().items():
            if data.startswith(b"\x7fELF"):
                assert dynamic(data, tmp_path / "own") == dynamic(other.contents[name], tmp_path / "other"), name


def dynamic(data: bytes, file: Path) -> list[str]:
    """Return the needed libraries and the places of the search path of a binary, in any order."""
    file.write_bytes(data)
    printed = subprocess.run(("readelf", "-d", file), capture_output=True, text=True, check=True).stdout
    equal = re.sub(r"\$ORIGIN/\.([]:])", r"$ORIGIN/\1", printed)
    entries = re.findall(r"\((?:NEEDED|RUNPATH|RPATH|SONAME)\).*\[(.*)\]", equal)
    return sorted(part for entry in entries for part in entry.split(":"))


def test_metadata_is_equal(pairs: Pairs) -> None:
    for own, other in pairs.values():
        assert own.json("hash_input.json") == other.json("hash_input.json")
        indices = [{**package.json("index.json"), "timestamp": 0} for package in (own, other)]
        assert indices[0] == indices[1]
        for name in ("run_exports.json", "link.json"):
            assert (f"info/{name}" in own.contents) == (f"info/{name}" in other.contents), name
            if f"info/{name}" in other.contents:
                assert own.json(name) == other.json(name)
        assert about(own) == about(other)
        for name in ("files", "no_link"):
            assert own.lines(name) == other.lines(name), name
        for name, data in other.contents.items():
            if name.startswith("info/") and not name.startswith(COMPARED_ELSEWHERE):
                assert own.contents[name] == data, name


def about(package: Package) -> dict[str, Any]:
    values = {key: value for key, value in package.json("about.json").items() if key not in ABOUT_ALONE}
    extra = {key: value for key, value in values.get("extra", {}).items() if key not in EXTRA_ALONE}
    return {**values, "extra": extra}


def test_paths_are_equal(pairs: Pairs) -> None:
    for own, other in pairs.values():
        entries = [sorted(package.paths(), key=itemgetter("_path")) for package in (own, other)]
        for entry, expected in zip(*entries, strict=True):
            alone = {"sha256", "size_in_bytes"} if varies(entry, own) else set[str]()
            assert {key: value for key, value in entry.items() if key not in alone} == {
                key: value for key, value in expected.items() if key not in alone
            }


def varies(entry: Mapping[str, Any], package: Package) -> bool:
    """Return whether the bytes of a file, or of a link's target, are those of a build or of a compiler's run."""
    name = entry["_path"]
    data = package.contents.get(name, b"")
    varying = b"PREFIX" in data or name.endswith("dist-info/INSTALLER") or varies_by_engine(name, data)
    return entry["path_type"] == "softlink" or varying


def test_the_recipe_is_equal(pairs: Pairs) -> None:
    for own, other in pairs.values():
        for name in own.contents:
            generated = name in {"info/recipe/meta.yaml", "info/recipe/conda_build_config.yaml"}
            if name.startswith("info/recipe/") and not generated:
                assert own.contents[name] == other.contents[name], name
        if "info/recipe/meta.yaml" in other.contents:
            assert recipe(own) == recipe(other)
            assert variant(own) == variant(other)


def recipe(package: Package) -> Any:
    """Return the rendered recipe without the order of lists, the types of numbers, and what the engines alone have."""
    values = package.yaml("recipe/meta.yaml")
    sources = values.get("source", [])
    source = [without_machine(entry) for entry in (sources if isinstance(sources, list) else [sources])]
    extra = {key: value for key, value in values["extra"].items() if key not in EXTRA_ALONE - {"final"}}
    numbered = {"number": 0, **values.get("build", {})}
    build = {key: value for key, value in numbered.items() if value is not False}
    needs = {key: value for key, value in values.get("requirements", {}).items() if value}
    return ordered({**values, "source": source, "extra": extra, "build": build, "requirements": needs})


def without_machine(source: Mapping[str, Any]) -> dict[str, Any]:
    """Return a source with the name of its folder, which conda-build makes absolute."""
    return {**source, "path": Path(source["path"]).name} if "path" in source else dict(source)


def variant(package: Package) -> Any:
    values = package.yaml("recipe/conda_build_config.yaml")
    return ordered({key: value for key, value in values.items() if key != "channel_sources"})


def ordered(value: Any) -> Any:
    if isinstance(value, dict):
        return {key: ordered(item) for key, item in value.items()}
    return sorted(map(str, value)) if isinstance(value, list) else str(value)


def test_the_files_of_tests_are_equal_but_for_blank_lines(pairs: Pairs) -> None:
    for own, other in pairs.values():
        for name, data in own.contents.items():
            if name.startswith("info/test/"):
                expected = re.sub(rb'print\("import: .*"\)\n', b"", other.contents[name])
                assert data.split() == expected.split(), name


def test_conda_build_tests_a_package_from_itself(pairs: Pairs, shared: Path, tmp_path: Path) -> None:
    """Without its feedstock: the recipe, the scripts and the files of the tests are those in the package."""
    own = [package for package, _ in pairs.values()]
    channel = tmp_path / "channel"
    for package in own:
        folder = channel / package.path.parent.name
        folder.mkdir(parents=True, exist_ok=True)
        shutil.copy(package.path, folder)
    settings = {
        "channels": [(shared / "channel").as_uri()],
        "default_channels": [],
        "add_pip_as_python_dependency": False,  # the channel has none
    }
    (tmp_path / "condarc").write_text(json.dumps(settings))
    environment = {**os.environ, "CONDARC": str(tmp_path / "condarc"), "CONDA_PKGS_DIRS": str(tmp_path / "pkgs")}
    tested = [package for package in own if "info/test/run_test.sh" in package.contents]
    for package in tested:
        file = channel / package.path.parent.name / package.path.name
        argv = ("conda-build", "--test", str(file), "--croot", str(tmp_path / "croot"))
        ended = subprocess.run(argv, cwd=tmp_path, env=environment, text=True, capture_output=True, check=False)
        assert ended.returncode == 0, ended.stdout + ended.stderr
        assert f"tested {package.json('index.json')['name']}" in ended.stdout
