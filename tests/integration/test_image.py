"""The base image: made from Debian alone, found again, and fit to build in."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed, UsageError
from kiln.cli import main
from kiln.container import images
from kiln.container.container import Container
from kiln.container.plan import ContainerRun, ContainerUser
from kiln.image import worker
from kiln.recipe.feedstock import Feedstock
from tests import shared_inputs
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
