"""Copies of the fixtures with a recipe.yaml, built by kiln and by rattler-build alone, from a small channel."""

from __future__ import annotations

import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from kiln.conda import package_reader
from kiln.conda.channel import LocalChannel
from kiln.conda.package_reader import read_info_json
from kiln.conda.specs import conda_build_spec
from tests import warm
from tests.integration.matrix.helpers import BASE
from tests.packages import python_stand_in, release_package
from tests.waiting import CEILING

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
PROGRAM = Path(__file__).with_name("rattler_builds.py")
EXPORTS = "info/run_exports.json"
COMPARED = ("info/tests/tests.yaml", "info/licenses/", EXPORTS)
PLACEHOLDER = re.compile(r"/[^\s:\"']*_env_placehold[^\s:\"'/]*")
CPU = "linux_64_cuda_compiler_versionNone"


def channel(folder: Path) -> LocalChannel:
    """Return a channel with the running interpreter as two Pythons, and packages that export run requirements."""
    files = [python_stand_in(folder, version) for version in ("3.11", "3.12")]
    files += [release_package(folder, name, version="2.5.1") for name in ("exporter", "ignored-exporter")]
    made = LocalChannel(root=folder / "channel")
    made.add([(file, "linux-64") for file in files])
    return made


def copied(name: str, folder: Path) -> Path:
    """Return a copy of a fixture whose variants name the small channel, with its configs."""
    root = Path(shutil.copytree(FIXTURES / name, folder / name))
    (folder / "packages").mkdir()
    with (root / "recipe" / "variants.yaml").open("a") as file:
        file.write(f"channel_sources:\n  - {channel(folder / 'packages').url}\n")
    ended = kiln(root, "rerender")
    assert ended.returncode == 0, ended.stderr
    return root


def in_v1(folder: Path) -> Path:
    """Return a copy of the small feedstock in the new format."""
    return as_v1(Path(shutil.copytree(FIXTURES / "small-feedstock", folder / "small-feedstock")))


def as_v1(root: Path) -> Path:
    """Have `kiln convert` write a feedstock's recipe.yaml, and return the feedstock with the configs of that."""
    ended = kiln(root, "convert")
    assert ended.returncode == 0, ended.stderr
    (root / "recipe" / "meta.yaml").unlink()
    ended = kiln(root, "rerender")
    assert ended.returncode == 0, ended.stderr
    return root


def kiln(root: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command of kiln's to its end; containers are of the base image."""
    return warm.kiln("-C", str(root), *words, env={**os.environ, "DOCKER_IMAGE": BASE}, stdin=stdin)


def contents(package: Path) -> dict[str, Any]:
    """Return the files that a package installs, its tests, licenses and run exports, without the prefixes in them."""
    with package_reader.open_package_members(package) as setting:
        files = {
            member.name: member.linkname if content is None else content.read().decode(errors="replace")
            for member, content in setting
            if not member.isdir() and (not member.name.startswith("info/") or member.name.startswith(COMPARED))
        }
    exports = json.loads(files.pop(EXPORTS, "{}"))
    plain = {name: PLACEHOLDER.sub("PREFIX", text) for name, text in files.items() if not name.endswith(".pyc")}
    return {**plain, EXPORTS: {kind: list(map(conda_build_spec, specs)) for kind, specs in exports.items()}}


def paths(package: Path) -> dict[str, tuple[str, str | None]]:
    """Return the kind of each installed file, and how the prefix in it is replaced."""
    entries = read_info_json(package, "paths.json")["paths"]
    kinds = {entry["_path"]: (entry["path_type"], entry.get("file_mode")) for entry in entries}
    return {name: kind for name, kind in kinds.items() if not name.endswith(".pyc")}


def depends(package: Path) -> dict[str, Any]:
    """Return the entries of a package's index that do not depend on time, in conda's notation."""
    fields = {key: value for key, value in index(package).items() if key != "timestamp"}
    lists = {key: sorted(map(conda_build_spec, fields.get(key, []))) for key in ("depends", "constrains")}
    return {**fields, **lists}


def require_same(root: Path, folder: Path, order: list[str]) -> None:
    """Compare the packages of the config without CUDA with those that rattler-build makes of it."""
    theirs = by_rattler_build(root, CPU, folder, order)
    ours = {path.name: path for path in (root / "build_artifacts").glob("*/*.conda")}
    assert {index(package)["name"] for package in theirs.values()} == set(order)
    assert ours.keys() >= theirs.keys()
    for file, package in theirs.items():
        assert depends(ours[file]) == depends(package), file
        assert paths(ours[file]) == paths(package), file
        assert contents(ours[file]) == contents(package), file


def by_rattler_build(root: Path, config: str, folder: Path, order: list[str]) -> dict[str, Path]:
    """Build a config with rattler-build alone, and return its packages by name."""
    asked = {
        "recipe": str(root / "recipe" / "recipe.yaml"),
        "files": [str(root / ".ci_support" / f"{config}.yaml")],
        "folder": str(folder),
        "channels": [LocalChannel(root=root.parent / "packages" / "channel").url],
        "order": order,
    }
    ended = subprocess.run(
        (sys.executable, str(PROGRAM)),
        input=json.dumps(asked),
        env={**os.environ, "RATTLER_CACHE_DIR": str(root.parent / "cache")},
        text=True,
        capture_output=True,
        check=False,
        timeout=CEILING,
    )
    assert ended.returncode == 0, ended.stdout[-3000:] + ended.stderr[-3000:]
    return {path.name: path for path in folder.glob("*/*.conda")}


def built(root: Path, *words: str, where: str = "none") -> None:
    """Build on this machine, or in containers."""
    ended = kiln(root, "build", "--container", where, *words)
    assert ended.returncode == 0, ended.stderr


def index(package: Path) -> dict[str, Any]:
    result: dict[str, Any] = read_info_json(package, "index.json")
    return result
