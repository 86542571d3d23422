"""The arguments of mmdebstrap, the key of an image, and the files that its hooks leave out."""

from __future__ import annotations

import dataclasses
import subprocess
from pathlib import Path

import pytest

from kiln.base.errors import MissingTool, UsageError
from kiln.container.engine import Engine, EngineKind
from kiln.image.apt import AptFiles
from kiln.image.worker import AFTER, base_image_recipe, provide_image, rootfs_command, write_rootfs_archive

ENGINE = Engine(kind=EngineKind.DOCKER, executable="docker", version="20.10", environment={})


def test_mmdebstrap_is_told_suite_packages_and_mirrors() -> None:
    apt = AptFiles(sources=Path("/s.list"), settings=Path("/c"), keyring=Path("/k"))
    words = rootfs_command(base_image_recipe("trixie", ("gcc",)), Path("/a/b.part"), apt)
    assert words[0] == "mmdebstrap"
    assert words[-3:] == ("trixie", "/a/b.part", "/s.list")
    assert {"--variant=minbase", "--format=tar", "--keyring=/k", "--aptopt=/c"} < set(words)
    (included,) = (word for word in words if word.startswith("--include="))
    assert included.endswith(",gcc")
    own = AptFiles(sources=None, settings=Path("/c"), keyring=None)
    assert rootfs_command(base_image_recipe(), Path("/a"), own)[-2:] == ("bookworm", "/a"), "its own mirror"


def test_an_image_is_the_same_for_the_same_packages_in_any_order() -> None:
    assert base_image_recipe(extra=("gcc", "g++", "gcc")).key == base_image_recipe(extra=("g++", "gcc")).key
    assert len({base_image_recipe().key, base_image_recipe("trixie").key, base_image_recipe(extra=("gcc",)).key}) == 3
    assert dataclasses.replace(base_image_recipe(), packages=()).key != base_image_recipe().key


def test_an_image_is_another_when_the_locked_engine_is(tmp_path: Path) -> None:
    lock = tmp_path / "run.txt"
    lock.write_text("a==1")
    first = dataclasses.replace(base_image_recipe(), lock=lock).key
    lock.write_text("a==2")
    assert dataclasses.replace(base_image_recipe(), lock=lock).key != first


@pytest.mark.parametrize("tag", ["kiln-base:bookworm", "docker.io/library/x"])
def test_a_name_that_engines_read_differently_is_refused(tag: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="is not a name of a local image") as caught:
        provide_image(ENGINE, base_image_recipe(), tag=tag, folder=tmp_path, env={})
    assert caught.value.hint == f"localhost/{tag}"
    assert base_image_recipe("trixie").tag == "localhost/kiln-base:trixie"


def test_without_mmdebstrap_its_package_is_named(tmp_path: Path) -> None:
    with pytest.raises(MissingTool, match="mmdebstrap") as caught:
        write_rootfs_archive(base_image_recipe(), tmp_path / "a.tar", env={"PATH": str(tmp_path)})
    assert "mmdebstrap" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


@pytest.mark.processes
def test_credentials_of_this_machine_do_not_get_into_an_image(tmp_path: Path) -> None:
    apt = tmp_path / "etc" / "apt"
    for folder in ("auth.conf.d", "apt.conf.d", "sources.list.d"):
        (apt / folder).mkdir(parents=True)
    (apt / "auth.conf.d" / "mirror.conf").write_text("machine mirror.example login me password hidden")
    (apt / "apt.conf.d" / "99mmdebstrap").write_text('Acquire::http::Proxy "http://me:hidden@proxy";')
    source = apt / "sources.list.d" / "0000sources.list"
    source.write_text("deb http://me:hidden@mirror.example/debian bookworm main\n")
    for hook in AFTER[:2]:
        subprocess.run(["sh", "-ec", hook, "hook", str(tmp_path)], check=True, timeout=60)
    assert source.read_text() == "deb http://mirror.example/debian bookworm main\n"
    assert "hidden" not in "".join(file.read_text() for file in tmp_path.rglob("*") if file.is_file())
