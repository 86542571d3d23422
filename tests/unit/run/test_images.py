"""The location of a build is an image's name and digest, or the host's compilers, and part of its key."""

from __future__ import annotations

import dataclasses
import json
from pathlib import Path
from typing import ClassVar

import pytest

from kiln.base.errors import UsageError
from kiln.base.process import ProcessResult
from kiln.build.job.job import BuildOptions, HostMachine, RunOptions
from kiln.container import emulation
from kiln.container.engine import Engine, EngineKind
from kiln.recipe.feedstock import BuildConfig
from kiln.run.images import (
    BuildLocation,
    _platform_by_image,
    choose_build_locations,
    choose_container_engine,
    image_names_for_report,
)

DIGEST = f"sha256:{'5' * 64}"
HERE = HostMachine(environment={}, python=Path("python3"))
OWN_PLATFORM = emulation.oci_platform(emulation.container_subdir())
IMAGE = BuildLocation(image="localhost/i:1", digest=DIGEST)


def test_an_image_is_named_with_its_digest_once() -> None:
    pinned = dataclasses.replace(IMAGE, image=f"localhost/i@{DIGEST}")
    assert IMAGE.pinned_image == f"localhost/i:1@{DIGEST}"
    assert pinned.pinned_image == pinned.image
    assert dataclasses.replace(IMAGE, digest="unknown").pinned_image == "localhost/i:1"
    derived = dataclasses.replace(IMAGE, image="localhost/d:1", origin=f"{IMAGE.pinned_image} with libX11")
    assert (derived.pinned_image, derived.compilers_digest(HERE)) == (f"localhost/i:1@{DIGEST} with libX11", DIGEST)


def test_a_run_names_each_image_once_and_none_on_the_host() -> None:
    assert image_names_for_report({"a": IMAGE, "b": IMAGE}) == IMAGE.pinned_image
    assert image_names_for_report({"a": BuildLocation()}) is None


def test_a_container_compiles_with_its_images_compilers_and_the_host_with_its_own(tmp_path: Path) -> None:
    machine = HostMachine(environment={"PATH": str(tmp_path)}, python=Path("python3"))
    without = BuildLocation().compilers_digest(machine)
    (tmp_path / "gcc").write_text("#!/bin/sh\n")
    (tmp_path / "gcc").chmod(0o755)
    assert IMAGE.compilers_digest(machine) == DIGEST
    assert BuildLocation().compilers_digest(machine) != without


def test_a_rehearsal_runs_on_the_host_and_with_rattler_build_alone() -> None:
    options = RunOptions(configs=("a",), command="", build=BuildOptions(rehearsal=True))
    assert choose_container_engine(options).engine is None
    with pytest.raises(UsageError, match="--rehearse requires --engine rattler-build"):
        choose_container_engine(dataclasses.replace(options, build=BuildOptions(rehearsal=True, engine="conda-build")))


def test_an_image_is_needed_for_one_platform_at_a_time() -> None:
    images = [("anvil:1", "linux/amd64"), ("anvil:2", "linux/arm64"), ("anvil:1", "linux/amd64")]
    assert _platform_by_image(images) == {"anvil:1": "linux/amd64", "anvil:2": "linux/arm64"}
    with pytest.raises(UsageError, match="anvil:2 is needed for linux/arm64 and for linux/amd64"):
        _platform_by_image([*images, ("anvil:2", "linux/amd64")])


class EngineWithImages(Engine):
    """An engine that has images of this machine's platform, by name."""

    images: ClassVar[dict[str, str]] = {"quay.io/here:1": f"quay.io/here@{DIGEST}"}

    def run_command(self, *words: str) -> ProcessResult:
        assert words[:2] == ("image", "inspect")
        system, _, architecture = OWN_PLATFORM.partition("/")
        described = {"Os": system, "Architecture": architecture, "RepoDigests": [self.images.get(words[2], "")]}
        missing = words[2] not in self.images
        text = "Error: no such image" if missing else ""
        return ProcessResult(argv=words, exit_code=int(missing), tail=text, seconds=0.0, stdout=json.dumps([described]))


ENGINE = EngineWithImages(kind=EngineKind.PODMAN, executable="podman", version="5", environment={})
CONFIG = BuildConfig(name="c", platform="linux-64", variant={}, pin_run_as_build={}, image="quay.io/here:1")


def test_a_config_is_built_in_its_image_or_in_the_one_of_the_caller() -> None:
    options = RunOptions(configs=("c",), command="", fetch=False)
    places, notes = choose_build_locations([(CONFIG, OWN_PLATFORM)], options, ENGINE, None)
    assert (places, notes) == ({"c": BuildLocation(image="quay.io/here:1", digest=DIGEST)}, ())
    absent = dataclasses.replace(options, image="quay.io/absent:1")
    places, notes = choose_build_locations([(CONFIG, OWN_PLATFORM)], absent, ENGINE, None)
    assert places == {"c": BuildLocation(image="quay.io/absent:1", digest="unknown")}
    assert notes == ("the image quay.io/absent:1 is missing and would be fetched",)


def test_a_config_without_an_image_is_refused_in_a_container_alone() -> None:
    config = dataclasses.replace(CONFIG, image=None)
    options = RunOptions(configs=("c",), command="", fetch=False)
    assert choose_build_locations([(config, OWN_PLATFORM)], options, None, None) == ({"c": BuildLocation()}, ())
    with pytest.raises(UsageError, match="c names no image to build in"):
        choose_build_locations([(config, OWN_PLATFORM)], options, ENGINE, None)
