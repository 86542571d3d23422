"""A machine of the fleet as a disk for virtual machines: the system of the machine's image, with a kernel of its own.

QEMU is handed the kernel and its first file system, so the disk needs neither partitions nor a boot loader.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import command, files
from kiln.errors import BuildFailed, MissingTool, excerpt
from kiln.image.base import AFTER, BEFORE, SUITE, Recipe, archive_of
from kiln.image.machine import UNPACK, machine_recipe

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PACKAGES = ("linux-image-cloud-amd64", "initramfs-tools", "e2fsprogs")
NAMES = ("disk.raw", "vmlinuz", "initrd.img")  # as ansible/library/kiln_qemu.py looks for them
KEY = "key"
ROOM = 4_000_000_000  # the archive, the tree and the disk

# The first file system holds what reaches the disk, and nothing for other hardware: emulated, unpacking it takes long.
FIRST = r"""mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"
printf 'MODULES=list\nCOMPRESS=zstd\n' >"$1/etc/initramfs-tools/conf.d/kiln"
printf '%s\n' virtio_pci virtio_blk crc32c_generic ext4 >"$1/usr/share/initramfs-tools/modules.d/kiln"
"""
# QEMU's network for one user answers DHCP, and names at this address. Emulated, each of these would take minutes: what
# of cloud-init the user data do not ask for, Docker before it is asked, and what looks for updates.
PUT_SETTINGS = r"""cat >"$1/etc/systemd/network/20-kiln.network" <<'END'
[Match]
Driver=virtio_net
[Network]
DHCP=ipv4
END
cat >"$1/etc/cloud/cloud.cfg.d/90_kiln.cfg" <<'END'
network: {config: disabled}
manage_etc_hosts: true
cloud_init_modules: [write-files, resizefs, set_hostname, update_etc_hosts, users-groups, ssh]
cloud_config_modules: [locale, set-passwords, runcmd]
cloud_final_modules: [scripts-user]
datasource_list: [NoCloud, None]
END
rm -f "$1/etc/resolv.conf"
echo nameserver 10.0.2.3 >"$1/etc/resolv.conf"
chroot "$1" systemctl enable systemd-networkd.service docker.socket
chroot "$1" systemctl disable docker.service containerd.service
chroot "$1" systemctl mask apt-daily.timer apt-daily-upgrade.timer e2scrub_all.timer
"""
# The disk is as large as its files want; a machine's own is larger, and filled at its first boot. Who is not root makes
# it with fakeroot, so that the files belong to whom they belong to in the archive.
MAKE = """PATH=$PATH:/usr/sbin:/sbin
mkdir root
tar --extract --numeric-owner --directory root --file "$1"
cp root/boot/vmlinuz-* vmlinuz
cp root/boot/initrd.img-* initrd.img
chmod 644 vmlinuz initrd.img
mkfs.ext4 -q -m 0 -L kiln -d root disk.raw "$(($(du --summarize --block-size=M root | cut -dM -f1) * 5 / 4))M"
rm -rf root
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Disk:
    """A folder with a disk, its kernel and its first file system; ``reused`` when it was there before."""

    folder: Path
    reused: bool


def disk_recipe(suite: str = SUITE) -> Recipe:
    """Return the recipe of the system that is on the disk."""
    return Recipe(
        suite=suite,
        packages=PACKAGES,
        name="kiln-disk",
        below=machine_recipe(suite),
        setup=(UNPACK, BEFORE, FIRST),
        hooks=(*AFTER[:2], PUT_SETTINGS),
        changes=(MAKE,),
    )


def disk(
    what: Recipe,
    folder: Path,
    *,
    env: Mapping[str, str],
    fresh: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> Disk:
    """Have the disk of a recipe below ``folder``: found there, or made; ``fresh`` makes it anew, with Debian's updates.

    Machines that run go on with the disk that they have.

    Raises:
        MissingTool: without mmdebstrap; for who is not root, without fakeroot.
        BuildFailed: when the system or its disk cannot be made.
        DiskFull: when there is no room for the making.
    """
    target = folder / f"{what.name}-{what.suite}"
    with files.locked(folder / ".lock"):
        files.remove_leftovers(folder)
        if not fresh and _key(target) == what.key:
            return Disk(folder=target, reused=True)
        files.require_room(folder, ROOM, for_what="making the disk")
        archive = archive_of(what, folder, env=env, fresh=fresh, on_line=on_line)
        with files.replacing(target) as part:
            part.mkdir(mode=0o755)
            _make(archive, part, env=env, on_line=on_line)
            files.write_text(part / KEY, f"{what.key}\n")
            files.remove(target)
        files.remove(archive)
    return Disk(folder=target, reused=False)


def _key(folder: Path) -> str:
    file = folder / KEY
    return file.read_text(encoding="utf-8").strip() if file.is_file() else ""


def _make(archive: Path, part: Path, *, env: Mapping[str, str], on_line: Callable[[str], None] | None) -> None:
    result = command.run(
        (*_as_root(env), "sh", "-euc", MAKE, "sh", archive.absolute()), env=env, cwd=part, on_line=on_line
    )
    if not result.ok:
        raise BuildFailed(
            f"{archive.name} could not be made into a disk",
            why=f"it ended with exit code {result.exit_code}:\n{excerpt(result.tail)}",
            hint="see that mkfs.ext4 (Debian's package e2fsprogs) is on the PATH",
        )


def _as_root(env: Mapping[str, str]) -> tuple[str, ...]:
    """What lets files of any owner be written; nothing for root."""
    if os.geteuid() == 0:
        return ()
    try:
        command.find("fakeroot", env=env)
    except MissingTool as error:
        hint = "apt-get install fakeroot, or make it as root"
        raise MissingTool(
            "fakeroot, which makes a disk of files of any owner, is missing", why=error.why, hint=hint
        ) from error
    return ("fakeroot",)
