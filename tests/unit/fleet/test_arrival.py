"""What comes home from a machine is let in only when it is a package or a wheel, and what was built there."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

import pytest

from kiln import files
from kiln.errors import BrokenPackage, HashMismatch
from kiln.fleet import arrival

if TYPE_CHECKING:
    from pathlib import Path

WHEEL = "wheels/cuda12.9/tensorflow-2.21.0-cp311-cp311-manylinux_2_27_x86_64.whl"
TIMES = {"install_seconds": 0.1, "seconds": 0.1}
TESTS: dict[str, Any] = {"package": "a", "verdict": "passed", "commands": 1, "notes": [], "log": None, **TIMES}


def collected(folder: Path, place: str, content: bytes = b"what was built") -> Path:
    """A collected cell of one file that the machine calls ``place``, below its build_artifacts."""
    subdir, _, name = place.rpartition("/")
    path = folder / "packages" / subdir / name
    path.parent.mkdir(parents=True)
    path.write_bytes(content)
    artifact = {
        "path": f"/home/x/build_artifacts/{place}", "sha256": files.sha256(path), "size": len(content), "cell": "c",
        "name": "a", "version": "1", "build_string": "0", "subdir": subdir,
    }  # fmt: skip
    package = {"artifact": artifact, "build_seconds": 1.0, "reused": False, "tests": TESTS}
    cell = {"config": "c", "packages": [package], "steps": [], "peak_memory": None, "reason": ""}
    (folder / "report.json").write_text(json.dumps({"cells": [cell]}))
    return path


@pytest.mark.parametrize(
    "place", ["linux-64/a-1-0.conda", "noarch/a-1-0.conda", WHEEL, "wheels/cpu/a-1-py3-none-any.whl"]
)
def test_a_package_and_a_wheel_come_home(tmp_path: Path, place: str) -> None:
    path = collected(tmp_path, place)
    (package,) = arrival.read(tmp_path, machine="m", config="c").packages
    assert package.artifact.path == path


@pytest.mark.parametrize(
    "place", ["wheels/a-1-py3-none-any.whl", "wheels/cuda12.9/a-1-0.conda", "linux-64/a.whl", "x/a.conda"]
)
def test_what_is_neither_does_not(tmp_path: Path, place: str) -> None:
    collected(tmp_path, place)
    with pytest.raises(BrokenPackage, match="is no name of a package"):
        arrival.read(tmp_path, machine="m", config="c")


def test_a_wheel_that_was_changed_on_the_way_does_not(tmp_path: Path) -> None:
    collected(tmp_path, WHEEL).write_bytes(b"something else")
    with pytest.raises(HashMismatch, match="came broken"):
        arrival.read(tmp_path, machine="m", config="c")
