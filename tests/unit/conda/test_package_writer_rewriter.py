from __future__ import annotations

import random
from typing import TYPE_CHECKING

from kiln.base.system.machine import MachineResources
from kiln.conda.package_writer import rewrite_info
from tests.packages import conda_package

if TYPE_CHECKING:
    from pathlib import Path

    import pytest


def test_the_same_edit_gives_the_same_bytes(tmp_path: Path) -> None:
    old = conda_package(tmp_path / "old.conda", {"index.json": {}})
    for name in ("a.conda", "b.conda"):
        rewrite_info(old, tmp_path / name, lambda _, data: data)
    assert (tmp_path / "a.conda").read_bytes() == (tmp_path / "b.conda").read_bytes()


def test_the_number_of_cores_makes_no_difference_to_the_bytes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    payload = {"share/random": random.Random(1).randbytes(9_000_000)}
    old = conda_package(tmp_path / "old.conda", {"index.json": {}}, payload=payload)
    packages = []
    for cores, memory in ((1, 1 << 40), (3, 1 << 40), (64, 1)):
        here = MachineResources(cores=cores, memory=memory)
        monkeypatch.setattr(MachineResources, "of_this_machine", lambda here=here: here)
        rewrite_info(old, tmp_path / "new.conda", lambda _, data: data, mtime=1, level=3)
        packages.append((tmp_path / "new.conda").read_bytes())
    assert packages[0] == packages[1] == packages[2]
