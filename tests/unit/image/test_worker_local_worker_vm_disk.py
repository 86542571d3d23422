"""The disk of a virtual machine: its recipe, its reuse, and the permissions that it needs."""

from __future__ import annotations

import dataclasses
import os
import shutil
import tarfile
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed, MissingTool
from kiln.image.worker import KEY, NAMES, disk_recipe, provide_disk, worker_recipe

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.processes


def archived(folder: Path) -> Path:
    """The archive of a system with a kernel and little else."""
    root = folder / "root"
    for name, text in {"boot/vmlinuz-6.1": "kernel", "boot/initrd.img-6.1": "first", "etc/hostname": "here"}.items():
        (root / name).parent.mkdir(parents=True, exist_ok=True)
        (root / name).write_text(text)
    (root / "large").write_bytes(os.urandom(4 << 20))
    target = folder / "images" / disk_recipe().archive_name
    target.parent.mkdir()
    with tarfile.open(target, "w") as archive:
        archive.add(root, ".")
    return target


@pytest.mark.needs("mkfs.ext4", "fakeroot" if os.geteuid() else "sh")
def test_a_disk_is_made_of_a_system_with_its_kernel_beside_it_and_found_again(tmp_path: Path) -> None:
    archive = archived(tmp_path)
    made = provide_disk(disk_recipe(), archive.parent, env=os.environ)
    assert made == dataclasses.replace(made, folder=archive.parent / "kiln-disk-bookworm", reused=False)
    assert sorted(file.name for file in made.folder.iterdir()) == sorted((*NAMES, KEY))
    assert (made.folder / "vmlinuz").read_text() == "kernel"
    assert (made.folder / "initrd.img").read_text() == "first"
    assert (made.folder / "disk.raw").read_bytes()[0x438:0x43A] == b"\x53\xef"  # EXT4_SUPER_MAGIC
    assert not archive.exists()
    assert provide_disk(disk_recipe(), archive.parent, env={}).reused


def test_what_is_no_system_leaves_no_disk(tmp_path: Path) -> None:
    if os.geteuid() and shutil.which("fakeroot") is None:
        pytest.skip("fakeroot is not on this machine")
    (tmp_path / disk_recipe().archive_name).write_bytes(b"no archive")
    with pytest.raises(BuildFailed, match="could not be made into a disk"):
        provide_disk(disk_recipe(), tmp_path, env=os.environ)
    assert not (tmp_path / "kiln-disk-bookworm").exists()


def test_who_is_not_root_is_told_of_fakeroot(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("os.geteuid", lambda: 1000)
    (tmp_path / disk_recipe().archive_name).touch()
    with pytest.raises(MissingTool, match="fakeroot") as caught:
        provide_disk(disk_recipe(), tmp_path, env={"PATH": str(tmp_path)})
    assert "fakeroot" in caught.value.hint


def test_a_disk_adds_a_kernel_to_the_system_of_the_container() -> None:
    what = disk_recipe("trixie")
    assert what.below == worker_recipe("trixie")
    assert "linux-image-cloud-amd64" in what.packages
    assert len({what.key, disk_recipe().key, dataclasses.replace(what, changes=()).key}) == 3
