"""Where a cell is built is told by an image's name and digest, and decides with which compilers."""

from __future__ import annotations

import dataclasses
from pathlib import Path

import pytest

from kiln.errors import UsageError
from kiln.pipeline.machine import Machine
from kiln.pipeline.where import Where, choose, images_of
from kiln.pipeline.wishes import Wishes

DIGEST = f"sha256:{'5' * 64}"
IMAGE = Where(image="localhost/i:1", digest=DIGEST)


def test_an_image_is_told_with_its_digest_once() -> None:
    pinned = dataclasses.replace(IMAGE, image=f"localhost/i@{DIGEST}")
    assert IMAGE.pinned == f"localhost/i:1@{DIGEST}"
    assert pinned.pinned == pinned.image
    assert dataclasses.replace(IMAGE, digest="unknown").pinned == "localhost/i:1"


def test_a_run_names_each_image_once_and_none_on_the_host() -> None:
    assert images_of({"a": IMAGE, "b": IMAGE}) == IMAGE.pinned
    assert images_of({"a": Where()}) is None


def test_a_container_compiles_with_its_images_compilers_and_the_host_with_its_own(tmp_path: Path) -> None:
    machine = Machine(environment={"PATH": str(tmp_path)}, python=Path("python3"))
    without = Where().compilers(machine)
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    assert IMAGE.compilers(machine) == DIGEST
    assert Where().compilers(machine) != without


def test_a_rehearsal_stays_on_this_machine_and_takes_no_other_engine() -> None:
    wishes = Wishes(configs=("a",), command="", rehearsal=True)
    assert choose(wishes).engine is None
    with pytest.raises(UsageError, match="a rehearsal is no affair of conda-build"):
        choose(dataclasses.replace(wishes, engine="conda-build"))
