"""The disk of a fleet worker as a virtual machine: the system of the worker's image with its own kernel.

QEMU starts the kernel with its initial file system directly, so the disk needs neither partitions nor a boot loader.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import files, process_runner
from kiln.errors import BuildFailed, MissingTool, program_output_with_margin
from kiln.image.build_container_image import AFTER, BEFORE, SUITE, ImageRecipe, provide_rootfs_archive
from kiln.image.local_worker_container_image import UNPACK, worker_recipe
from kiln.operating_system import users

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

PACKAGES = ("linux-image-cloud-amd64", "initramfs-tools", "e2fsprogs")
NAMES = ("disk.raw", "vmlinuz", "initrd.img")  # as ansible/library/kiln_qemu.py looks for them
KEY = "key"
REQUIRED_SPACE = 4_000_000_000  # bytes: the archive, the tree and the disk

# The initial file system has only the modules that the disk needs: emulated, unpacking it takes long.
INITRAMFS = r"""mkdir -p "$1/etc/initramfs-tools/conf.d" "$1/usr/share/initramfs-tools/modules.d"
printf 'MODULES=list\nCOMPRESS=zstd\n' >"$1/etc/initramfs-tools/conf.d/kiln"
printf '%s\n' virtio_pci virtio_blk crc32c_generic ext4 >"$1/usr/share/initramfs-tools/modules.d/kiln"
"""
# QEMU's user network has DHCP, and a name server at this address. Disabled are services that take minutes when
# emulated: modules of cloud-init that the user data do not use, Docker before its first use, and updates.
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
# The disk is as large as its files; a worker's is larger, and the file system grows at the first boot. Users other than
# root need fakeroot, so that files keep their owners in the archive.
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
class WorkerDisk:
    """A folder with a disk, its kernel and its initial file system; ``reused`` if it existed before."""

    folder: Path
    reused: bool


def disk_recipe(suite: str = SUITE) -> ImageRecipe:
    """Return the recipe of the system on the disk."""
    return ImageRecipe(
        suite=suite,
        packages=PACKAGES,
        name="kiln-disk",
        below=worker_recipe(suite),
        setup=(UNPACK, BEFORE, INITRAMFS),
        hooks=(*AFTER[:2], PUT_SETTINGS),
        changes=(MAKE,),
    )


def provide_disk(
    image: ImageRecipe,
    folder: Path,
    *,
    env: Mapping[str, str],
    fresh: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> WorkerDisk:
    """Return the disk of a recipe in ``folder``, made if necessary; ``fresh`` makes it again, with Debian's updates.

    Running machines keep the disk that they have.

    Raises:
        MissingTool: if mmdebstrap is missing, or fakeroot for users other than root.
        BuildFailed: if the system or its disk cannot be made.
        DiskFull: if the disk space does not suffice.
    """
    target = folder / f"{image.name}-{image.suite}"
    with files.held_lock_file(folder / ".lock"):
        files.remove_part_files(folder)
        if not fresh and files.text_or_empty(target / KEY).strip() == image.key:
            return WorkerDisk(folder=target, reused=True)
        files.require_disk_space(folder, REQUIRED_SPACE, for_what="making the disk")
        archive = provide_rootfs_archive(image, folder, env=env, fresh=fresh, on_line=on_line)
        with files.atomic_replacement(target) as part:
            part.mkdir(mode=0o755)
            _make_disk(archive, part, env=env, on_line=on_line)
            files.write_text(part / KEY, f"{image.key}\n")
            files.remove(target)
        files.remove(archive)
    return WorkerDisk(folder=target, reused=False)


def _make_disk(archive: Path, part: Path, *, env: Mapping[str, str], on_line: Callable[[str], None] | None) -> None:
    result = process_runner.run(
        (*_fakeroot_prefix(env), "sh", "-euc", MAKE, "sh", archive.absolute()), env=env, cwd=part, on_line=on_line
    )
    if not result.ok:
        raise BuildFailed(
            f"{archive.name} could not be made into a disk",
            why=f"it ended with exit code {result.exit_code}:\n{program_output_with_margin(result.tail)}",
            hint="check that mkfs.ext4 (Debian's package e2fsprogs) is on the PATH",
        )


def _fakeroot_prefix(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the command prefix that allows files of any owner; empty for root."""
    if users.is_root():
        return ()
    try:
        process_runner.find_program("fakeroot", env=env)
    except MissingTool as error:
        hint = f"{error.hint or 'install it'}, or make it as root"
        raise MissingTool(
            "fakeroot, which makes a disk with files of any owner, is missing", why=error.why, hint=hint
        ) from error
    return ("fakeroot",)
