"""The base image, made from Debian alone, found again and fit to build in; and images that are made of containers."""

from __future__ import annotations

import dataclasses
import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed, UsageError
from kiln.build.job.job import RunOptions
from kiln.cli import main
from kiln.container import container as container_container
from kiln.container import images
from kiln.container.container import Container, DerivedImage, InstallRefusal
from kiln.container.plan import ContainerRun, ContainerUser
from kiln.image import worker
from kiln.recipe.feedstock import Feedstock
from kiln.run import images as run_images
from kiln.run.images import BuildLocation
from tests import builders, shared_inputs
from tests.waiting import CEILING

if TYPE_CHECKING:
    from kiln.container.engine import Engine

pytestmark = pytest.mark.sampled
ROOT = Path(__file__).parents[2]
STRANGER = ContainerUser(uid=54321, gid=54321)


def test_the_image_is_found_again(engine: Engine, base_image: str, capsys: pytest.CaptureFixture[str]) -> None:
    with shared_inputs.turn("images"):
        assert main.run(["-C", str(ROOT), "image", "base", "--container", engine.kind.value]) == 0
    assert capsys.readouterr().out == f"{base_image} {images.image_digest(engine, base_image)} (cached)\n"


def test_the_archive_of_the_first_engine_serves_the_second(engine: Engine, base_image: str, tmp_path: Path) -> None:
    """Without mmdebstrap on PATH, the image can only come from the archive."""
    tag = f"localhost/kiln-test-again:{os.getpid()}"
    folder = Feedstock(root=ROOT).artifacts / "images"
    if not (folder / worker.base_image_recipe().archive_name).exists():
        pytest.skip("the image was in the engine before, its archive is gone")
    try:
        with shared_inputs.turn("images"):
            made = worker.provide_image(
                engine, worker.base_image_recipe(), tag=tag, folder=folder, env={"PATH": str(tmp_path)}
            )
        assert not made.reused
        assert images.image_labels(engine, tag) == images.image_labels(engine, base_image)
    finally:
        engine.run_command("rmi", tag)


def test_a_build_script_has_what_it_expects_as_any_user(engine: Engine, base_image: str) -> None:
    tools = "bash tar gzip bzip2 xz zstd patch git curl file make unzip sed awk find python3"
    line = (
        f"for tool in {tools}; do command -v $tool >/dev/null || echo $tool is missing; done; "
        "touch /home/conda/file && test -s /etc/ssl/certs/ca-certificates.crt && "
        "python3 -c 'import ensurepip, venv' && "
        "python3 -c 'print(\"ü\")' && locale charmap"
    )
    with Container(engine, ContainerRun(image=base_image, argv=("bash", "-c", line), user=STRANGER)) as container:
        ended = container.run(timeout=CEILING)
    assert (ended.exit_code, ended.tail) == (0, "ü\nUTF-8")


def test_nothing_of_this_machine_is_in_the_image(engine: Engine, base_image: str) -> None:
    line = (
        "ls /etc/apt/auth.conf.d; ls /etc/apt/apt.conf.d | grep -x 99mmdebstrap; cat /etc/machine-id 2>/dev/null; true"
    )
    with Container(engine, ContainerRun(image=base_image, argv=("bash", "-c", line))) as container:
        assert container.run().tail in {"", "uninitialized"}


@pytest.mark.needs("mmdebstrap")
def test_a_suite_that_debian_does_not_have_leaves_nothing_half_made(tmp_path: Path) -> None:
    from kiln.image.worker import write_rootfs_archive

    with pytest.raises(BuildFailed, match="could not make Debian nosuchsuite") as caught:
        write_rootfs_archive(worker.base_image_recipe("nosuchsuite"), tmp_path / "images" / "a.tar", env=os.environ)
    assert "nosuchsuite" in caught.value.why
    assert list((tmp_path / "images").iterdir()) == []


@pytest.mark.needs("mmdebstrap")
def test_a_package_that_debian_does_not_have_is_told_before_anything_is_installed(tmp_path: Path) -> None:
    from kiln.image.worker import write_rootfs_archive

    said: list[str] = []
    expected = worker.base_image_recipe("bookworm", ["gcc-kiln-nosuch", "make"])
    with pytest.raises(UsageError, match=r"Debian bookworm has no package gcc-kiln-nosuch\n"):
        write_rootfs_archive(expected, tmp_path / "images" / "a.tar", env=os.environ, on_line=said.append)
    assert any("--dry-run" in line for line in said)
    assert list((tmp_path / "images").iterdir()) == []


MADE = "/tmp/made"
TAG = f"localhost/kiln-test-commit:{os.getpid()}"


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
