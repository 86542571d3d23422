"""Images are made of containers, on real Docker and real Podman; one without yum gets no packages.

`tests.trials.yum_requirements` installs real packages, in an image that takes minutes to make.
"""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.build.job.job import RunOptions
from kiln.container import container as container_container
from kiln.container import images
from kiln.container.container import Container, DerivedImage, InstallRefusal
from kiln.container.plan import ContainerRun
from kiln.run import images as run_images
from kiln.run.images import BuildLocation
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.container.engine import Engine

pytestmark = pytest.mark.sampled

MADE = "/tmp/made"
TAG = "localhost/kiln-test-commit:1"


def test_an_image_of_a_container_has_its_files_and_the_given_settings(engine: Engine, base_image: str) -> None:
    below = images.inspect_image(engine, base_image)
    assert below is not None
    plan = ContainerRun(image=base_image, argv=("touch", MADE), options=("--entrypoint", "", "--user", "0:0"))
    try:
        with Container(engine, plan) as container:
            assert container.run().ok
            container.commit(
                TAG, changes=container_container.restored_setting_instructions(below, ("http_proxy",), ("a", "b"))
            )
        described = images.inspect_image(engine, TAG)
        assert described is not None
        config = described["Config"]
        assert (config["User"], config.get("Entrypoint") or [], config["Cmd"]) == ("0:0", [], ["/bin/bash"])
        assert [entry for entry in config["Env"] if "proxy" in entry] == ["http_proxy="]
        assert images.image_labels(engine, TAG)[container_container.LABEL] == "a b"
        with Container(engine, ContainerRun(image=TAG, argv=("ls", MADE))) as container:
            assert container.run().tail == MADE
    finally:
        engine.run_command("image", "rm", TAG)


def test_an_image_without_yum_is_refused_unless_the_caller_has_chosen_it(
    engine: Engine, base_image: str, tmp_path: Path
) -> None:
    digest = images.image_digest(engine, base_image)
    derived = DerivedImage(image=base_image, digest=digest, packages=("libX11",))
    assert container_container.provide_derived_image(engine, derived) == InstallRefusal()
    meta = "package:\n  name: a\n  version: 1\n"
    feedstock = builders.feedstock(tmp_path, meta, files={"recipe/yum_requirements.txt": "libX11\n"})
    places = {"linux_64_": BuildLocation(image=base_image, digest=digest)}
    options = RunOptions(configs=("linux_64_",), command="")
    with pytest.raises(UsageError, match="cannot be installed into") as caught:
        run_images.add_packages_to_images(feedstock, places, options, engine, None)
    assert f"DOCKER_IMAGE={base_image}" in caught.value.hint
    chosen = dataclasses.replace(options, image=base_image)
    result, notes = run_images.add_packages_to_images(feedstock, places, chosen, engine, None)
    assert (result, ["must have libX11" in note for note in notes]) == (places, [True])
    assert not container_container.derived_image_exists(engine, derived)
