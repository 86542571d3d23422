"""TensorFlow's packages next to others with files in folders of the same names, installed and removed in any order."""

from __future__ import annotations

import asyncio
import hashlib
import itertools
import os
import subprocess
import sys
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.cli import main
from kiln.conda.channel import LocalChannel
from kiln.conda.solve import solve
from tests.packages import conda_package
from tests.unit.own_feedstock.conftest import DIST_INFO, RECIPE, members, shared_object

if TYPE_CHECKING:
    from collections.abc import Mapping

SITE = "lib/python3.11/site-packages"
OF_PREFIXES = ("conda-meta", "CACHEDIR.TAG")  # what installers write into each prefix
# By output: what it requires of the others. The libraries are those that Bazel makes without the wheel.
OUTPUTS = {
    "libtensorflow_framework": (),
    "libtensorflow": ("libtensorflow_framework",),
    "libtensorflow_cc": ("libtensorflow_framework",),
    "tensorflow-base": ("libtensorflow_cc",),
}
OWN = ("libtensorflow", "tensorflow-base")  # which bring the others along
# Under the names that conda-forge gives to packages with files in the same folders, and one of our own.
NEIGHBORS: Mapping[str, Mapping[str, bytes]] = {
    "tsl_robin_map": {"include/tsl/robin_map.h": b"// map", "include/tsl/robin_set.h": b"// set"},
    "libabseil": {
        "include/absl/x.h": b"// a",
        "include/tensorflow/other.h": b"// other",
        "include/xla/sub/folder.h": b"",
        "lib/cmake/absl/abslConfig.cmake": b"# cmake",
        "lib/libabsl_base.so.2505.0.0": b"library",
        "lib/pkgconfig/absl_base.pc": b"Name: absl_base",
    },
    "plugin": {f"{SITE}/tensorflow-plugins/here.so": b"", f"{SITE}/tensorflow/include/plugin/api.h": b"// api"},
}
LINKS: Mapping[str, Mapping[str, str]] = {"libabseil": {"lib/libabsl_base.so": "libabsl_base.so.2505.0.0"}}
ORDERS = sorted(itertools.permutations((*OWN, *NEIGHBORS)))[::5]  # each package before and after each other one


def tree(prefix: Path) -> dict[str, str]:
    """Return all files of a prefix with their content, all links with where they lead, but for conda's records."""
    result = {}
    for top, folders, names in os.walk(prefix):
        for path in (Path(top, name) for name in (*names, *folders)):
            name = str(path.relative_to(prefix))
            if path.is_symlink():
                result[name] = f"-> {path.readlink()}"
            elif path.is_file() and not name.startswith(OF_PREFIXES):
                result[name] = path.read_bytes().hex()
    return result


def package(
    folder: Path, name: str, depends: tuple[str, ...], files: Mapping[str, bytes], links: Mapping[str, str]
) -> Path:
    """Write a package of files and links."""
    listed = [
        {"_path": path, "path_type": "hardlink", "sha256": hashlib.sha256(data).hexdigest(), "size_in_bytes": len(data)}
        for path, data in files.items()
    ]
    listed += [{"_path": path, "path_type": "softlink"} for path in links]
    index = {"name": name, "version": "1", "build": "0", "build_number": 0, "subdir": "linux-64"}
    info = {
        "index.json": {**index, "depends": list(depends)},
        "about.json": {},
        "paths.json": {"paths": listed, "paths_version": 1},
    }
    return conda_package(folder / f"{name}-1-0.conda", info, payload=files, links=links)


def wheel(folder: Path) -> None:
    """Write a wheel of TensorFlow's shape."""
    folder.mkdir()
    info = "tensorflow_cpu-2.21.0.dist-info"
    with zipfile.ZipFile(folder / "tensorflow_cpu-2.21.0-cp311-cp311-manylinux_2_27_x86_64.whl", "w") as file:
        contents = {f"tensorflow/{name}": data for name, data in members("$ORIGIN").items()}
        for name, data in contents.items():
            file.writestr(name, data)
        for name, text in DIST_INFO.items():
            file.writestr(f"{info}/{name}", text)
        file.writestr(f"{info}/RECORD", "".join(f"{name},sha256=old,1\n" for name in contents))


def outputs(folder: Path) -> list[Path]:
    """Return packages of what the recipe's script makes of a wheel."""
    wheel(folder / "dist")
    (folder / "dist" / "libraries" / "lib").mkdir(parents=True)
    for name in ("tensorflow_framework", "tensorflow", "tensorflow_cc"):
        library = folder / "dist" / "libraries" / "lib" / f"lib{name}.so.2"
        library.write_bytes(shared_object("$ORIGIN", tail=name.encode()))
    prefix, made = folder / "filled", []
    for output, needed in OUTPUTS.items():
        before = tree(prefix)
        places = ("--wheels", folder / "dist", "--prefix", prefix, "--licenses", folder / "licenses")
        words = (sys.executable, RECIPE / "split_wheel.py", "--output", output, "--version", "2.21.0", *places)
        subprocess.run((*words, "--site-packages", prefix / SITE), check=True, capture_output=True)
        new = {path: told for path, told in tree(prefix).items() if path not in before}
        links = {path: told.removeprefix("-> ") for path, told in new.items() if told.startswith("-> ")}
        files = {path: bytes.fromhex(told) for path, told in new.items() if path not in links}
        made.append(package(folder, output, needed, files, links))
    return made


@pytest.fixture(scope="module")
def channel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A channel of TensorFlow's packages and their neighbors."""
    folder = tmp_path_factory.mktemp("packages")
    others = [package(folder, name, (), files, LINKS.get(name, {})) for name, files in NEIGHBORS.items()]
    LocalChannel(root=folder / "channel").add([(item, "linux-64") for item in (*outputs(folder), *others)])
    return folder / "channel"


@pytest.fixture(scope="module")
def everything(channel: Path) -> dict[str, str]:
    """The files of a prefix with all of them."""
    filled = tree(channel.parent / "filled")
    assert not filled.keys() & of_neighbors().keys()
    return {**filled, **of_neighbors()}


def of_neighbors() -> dict[str, str]:
    """Return the files and links of the neighbors, as `tree` shows them."""
    files = {path: data.hex() for files in NEIGHBORS.values() for path, data in files.items()}
    return files | {path: f"-> {target}" for links in LINKS.values() for path, target in links.items()}


def by_kiln(channel: Path, folder: Path, names: tuple[str, ...]) -> None:
    places = ("--prefix", str(folder / "prefix"), "--cache", str(channel.parent / "cache"))
    assert main.run(["install", *names, "--from", str(channel), *places]) == 0


def by_rattler(channel: Path, folder: Path, names: tuple[str, ...]) -> None:
    """Have a prefix hold these packages, and no others."""
    from rattler import install

    records = solve([channel.as_uri()], names, virtual_packages={}) if names else []
    prefix, cache = folder / "prefix", channel.parent / "cache"
    asyncio.run(install(records, target_prefix=prefix, cache_dir=cache, show_progress=False))


def test_no_package_of_this_recipe_has_a_link_to_a_folder(channel: Path) -> None:
    filled = channel.parent / "filled"
    links = [path for path, told in tree(filled).items() if told.startswith("-> ")]
    assert len(links) == 20
    assert not [link for link in links if (filled / link).is_dir()]


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_neighbors_keep_their_files_in_every_order_by_kiln(
    order: tuple[str, ...], channel: Path, everything: dict[str, str], tmp_path: Path
) -> None:
    for name in order:
        by_kiln(channel, tmp_path, (name,))
    assert tree(tmp_path / "prefix") == everything


@pytest.mark.parametrize("order", ORDERS, ids="-".join)
def test_neighbors_keep_their_files_in_every_order_by_rattler_and_nothing_is_left(
    order: tuple[str, ...], channel: Path, everything: dict[str, str], tmp_path: Path
) -> None:
    for count in range(1, len(order) + 1):
        by_rattler(channel, tmp_path, order[:count])
    assert tree(tmp_path / "prefix") == everything
    by_rattler(channel, tmp_path, tuple(NEIGHBORS))
    assert tree(tmp_path / "prefix") == of_neighbors()
    by_rattler(channel, tmp_path, ())
    assert tree(tmp_path / "prefix") == {}
