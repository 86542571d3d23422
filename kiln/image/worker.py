"""The base image of builds, and the image of fleet workers on this computer."""

from __future__ import annotations

import hashlib
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import environment, files, process
from kiln.base.environment import requirements_file
from kiln.base.errors import UsageError, did_you_mean
from kiln.base.system.machine import PACKAGE_ROOT
from kiln.container import images
from kiln.image import apt as image_apt
from kiln.image.apt import mmdebstrap_command, mmdebstrap_error, require_mmdebstrap, write_apt_files

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kiln.container.engine import Engine
    from kiln.image.apt import AptFiles


SUITE = "bookworm"
BASE_PACKAGES = (
    "bzip2",
    "ca-certificates",
    "curl",
    "file",
    "git",
    "libgomp1",
    "make",
    "patch",
    "procps",
    "python3",
    "python3-venv",
    "unzip",
    "xz-utils",
    "zstd",
)
LABEL = "kiln.base"
BASE_REQUIRED_SPACE = 2_000_000_000  # bytes: the packages, the tree and its archive

ENGINE_HOME = "/opt/kiln"  # a virtual environment with kiln's own locked dependencies, rattler-build among them
WHEELS = "/tmp/kiln-wheels"  # noqa: S108 - a path in the image
REQUIREMENTS = requirements_file("run.txt")

# Hooks get the new root as $1. The machine's credentials and certificates are used to make the image, and are not part
# of it. Java's packages, which Bazel needs, require the folder of manual pages, although these are excluded.
BEFORE = (
    'mkdir -p "$1/usr/share/man/man1" "$1/etc/apt/auth.conf.d"; '
    'cp /etc/apt/auth.conf.d/*.conf "$1/etc/apt/auth.conf.d/" 2>/dev/null || true'
)
AFTER = (
    'rm -f "$1"/etc/apt/auth.conf.d/* "$1/etc/apt/apt.conf.d/99mmdebstrap" "$1/etc/hostname" "$1/etc/resolv.conf"',
    r"""find "$1/etc/apt" -name '*.list' -exec sed -i -E 's#://[^/@[:space:]]+@#://#' {} +""",
    # The home folder of conda-forge's images must be writable for any user id of the build.
    'chroot "$1" useradd --create-home --home-dir /home/conda --shell /bin/bash conda && chmod 1777 "$1/home/conda"',
)
# The build engine, separate from the system: kiln's own pip downloads the wheels with this machine's settings for the
# Python of the image, which installs them. pip does not expand names of platforms.
PYTHON, LOCK = "KILN_PYTHON", "KILN_LOCK"  # variables of the hook
PROJECT, BELOW = "KILN_PROJECT", "KILN_BELOW"  # with an image below
FETCH = f"""set -eu
wheels="$1{WHEELS}"
version=$(chroot "$1" python3 -c 'import sys; print("%d.%d" % sys.version_info[:2])')
machine=$(chroot "$1" uname -m)
platforms=$(for minor in $(seq 5 36); do echo "--platform manylinux_2_${{minor}}_$machine"; done)
"${PYTHON}" -m pip download --quiet --require-hashes --no-deps --only-binary :all: --python-version "$version" \
    --implementation cp $platforms --dest "$wheels" --requirement "${LOCK}"
cp "${LOCK}" "$wheels/lock.txt"
"""
INSTALL = f"""{FETCH}chroot "$1" python3 -m venv {ENGINE_HOME}
chroot "$1" {ENGINE_HOME}/bin/python -m pip install --quiet --require-hashes --no-deps --no-index --no-cache-dir \
    --find-links {WHEELS} --requirement {WHEELS}/lock.txt
rm -rf "$wheels"
"""
EXCLUDED = ("man", "info", "locale", "doc")  # below /usr/share; licenses are included
CHANGES = ("ENV LANG=C.UTF-8", 'CMD ["/bin/bash"]')


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageRecipe:
    """The recipe of an image: a suite of Debian, packages added to the smallest system, and kiln's dependencies.

    ``lock`` are the hash-locked dependencies of kiln, among them the engine that builds in the image. ``setup`` and
    ``hooks`` are run by mmdebstrap before and after its own work, ``changes`` are instructions for the import into a
    container engine. ``name`` begins the archive's name and the image's; ``below`` is the image that this one adds to.
    """

    suite: str
    packages: tuple[str, ...]
    lock: Path = REQUIREMENTS
    setup: tuple[str, ...] = (BEFORE,)
    hooks: tuple[str, ...] = (INSTALL, *AFTER)
    changes: tuple[str, ...] = CHANGES
    name: str = "kiln-base"
    below: ImageRecipe | None = None

    @property
    def key(self) -> str:
        """A hash of everything that determines the image, except Debian's updates."""
        parts = (
            *([self.below.key] if self.below else []),
            self.suite,
            *sorted(self.packages),
            *self.setup,
            *self.hooks,
            *EXCLUDED,
            *self.changes,
            files.sha256(self.lock),
        )
        return hashlib.sha256("\0".join(parts).encode()).hexdigest()[:16]

    @property
    def archive_name(self) -> str:
        """The name of the archive."""
        return f"{self.name}-{self.suite}-{self.key}.tar"

    @property
    def tag(self) -> str:
        """The image's name in an engine; ``localhost/`` keeps engines from looking for it in a registry."""
        return f"{images.LOCAL}{self.name}:{self.suite}"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProvidedImage:
    """An image in an engine; ``reused`` if it existed before."""

    tag: str
    digest: str
    reused: bool


def base_image_recipe(suite: str = SUITE, extra: Sequence[str] = ()) -> ImageRecipe:
    """Return the recipe of a suite with additional packages, without duplicates."""
    return ImageRecipe(suite=suite, packages=tuple(dict.fromkeys((*BASE_PACKAGES, *extra))))


def provide_image(
    engine: Engine,
    image: ImageRecipe,
    *,
    tag: str,
    folder: Path,
    env: Mapping[str, str],
    fresh: bool = False,
    on_line: Callable[[str], None] | None = None,
) -> ProvidedImage:
    """Provide the image in the engine as ``tag``: reuse it, or import its archive in ``folder``, made if necessary.

    The archive of the root file system stays in ``folder`` for the other engine; ``fresh`` makes it again, with
    Debian's latest updates.

    Raises:
        MissingTool: if mmdebstrap is missing.
        BuildFailed: if mmdebstrap fails.
        ContainerFault: if the engine cannot import the archive.
        DiskFull: if the disk space does not suffice.
        UsageError: for a tag that engines read differently, or a package that the suite does not have.
    """
    if not tag.startswith(images.LOCAL):
        raise UsageError(f"{tag!r} is not a name of a local image", hint=f"{images.LOCAL}{tag}")
    if not fresh and images.image_labels(engine, tag).get(LABEL) == image.key:
        return ProvidedImage(tag=tag, digest=images.image_digest(engine, tag), reused=True)
    with files.held_lock_file(folder / ".lock"):
        files.remove_part_files(folder)
        archive = provide_rootfs_archive(image, folder, env=env, fresh=fresh, on_line=on_line)
        digest = images.import_rootfs(engine, archive, tag, changes=(*image.changes, f"LABEL {LABEL}={image.key}"))
    return ProvidedImage(tag=tag, digest=digest, reused=False)


def provide_rootfs_archive(
    image: ImageRecipe, folder: Path, *, env: Mapping[str, str], fresh: bool, on_line: Callable[[str], None] | None
) -> Path:
    """Return the archive of a root file system; make it, and that of the image below, if it is not in ``folder``."""
    archive = folder / image.archive_name
    if fresh or not archive.exists():
        if image.below is not None:
            provide_rootfs_archive(image.below, folder, env=env, fresh=False, on_line=on_line)
        write_rootfs_archive(image, archive, env=env, on_line=on_line)
    return archive


def write_rootfs_archive(
    image: ImageRecipe, archive: Path, *, env: Mapping[str, str], on_line: Callable[[str], None] | None = None
) -> None:
    """Write the root file system as a tar archive, completely or not at all."""
    require_mmdebstrap(env)
    files.require_disk_space(archive.parent, BASE_REQUIRED_SPACE, for_what="making the base image")
    with tempfile.TemporaryDirectory(prefix="kiln-image-") as scratch, files.atomic_replacement(archive) as part:
        words = rootfs_command(image, part, write_apt_files(image.suite, Path(scratch), env=env))
        unknown = set(image.packages) - {*BASE_PACKAGES, *image_apt.packages_known_to_apt(env=env)}
        if image.below is None and unknown:  # an early error, not one after everything else is installed
            _require_known_packages(words, image, env=env, on_line=on_line)
        variables = {PYTHON: sys.executable, LOCK: str(image.lock), PROJECT: str(PACKAGE_ROOT)}
        if image.below is not None:
            variables[BELOW] = str(archive.parent / image.below.archive_name)
        result = process.run(words, env={**env, **variables}, on_line=on_line)
        if not result.ok:
            raise mmdebstrap_error(f"mmdebstrap could not make Debian {image.suite}", result)


def _require_known_packages(
    words: tuple[str, ...], image: ImageRecipe, *, env: Mapping[str, str], on_line: Callable[[str], None] | None
) -> None:
    """Simulate mmdebstrap to find the packages on the suite's mirrors; the real run reports other errors."""
    simulation = process.run((words[0], "--simulate", *words[1:]), env=env, on_line=on_line)
    missing = image_apt.packages_not_found(simulation.tail)
    if missing:
        suggestion = did_you_mean(missing[0], image_apt.packages_known_to_apt(env=env), most=2)
        raise UsageError(
            f"Debian {image.suite} has no package {' and no package '.join(missing)}",
            hint=suggestion or "find packages with apt-cache search",
        )


def rootfs_command(image: ImageRecipe, archive: Path, apt: AptFiles) -> tuple[str, ...]:
    """Return mmdebstrap's command line for the root file system of an image."""
    return mmdebstrap_command(
        image.suite,
        image.packages,
        archive,
        f"--variant={'custom' if image.below else 'minbase'}",
        "--format=tar",  # the temporary name of the archive has another suffix
        *(f"--dpkgopt=path-exclude=/usr/share/{name}/*" for name in EXCLUDED),
        "--dpkgopt=path-include=/usr/share/doc/*/copyright",
        *(f"--setup-hook={hook}" for hook in image.setup),
        *(f"--customize-hook={hook}" for hook in image.hooks),
        apt=apt,
    )


WORKER_PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "cloud-init"),
    *("openssh-server", "sudo", "rsync", "iproute2"),
    *("docker.io", "iptables"),
)
HOME = "/var/lib/kiln"  # as ansible/roles/prepare has it
INIT = "/usr/local/sbin/kiln-worker-init"

# Docker mounts the host's cgroups read-only, but a worker must create its own: systemd for units, the inner Docker for
# limits. The cgroup namespace is private, so only groups below the worker's own can be changed.
BOOT = r"""#!/bin/sh
if [ "$(stat -f -c %T /sys/fs/cgroup)" = tmpfs ]; then
    mount -o remount,bind,rw /sys/fs/cgroup
    for each in /sys/fs/cgroup/*/; do
        [ -L "${each%/}" ] || mount -o remount,bind,rw "$each"
    done
else
    umount /sys/fs/cgroup
    mount -t cgroup2 cgroup2 /sys/fs/cgroup
fi
exec /lib/systemd/systemd
"""
# kiln's environment, at the path of the project: a worker that has it saves most of a minute. If the project's lock
# differs, the environment is made again there.
BAKE = f"""{FETCH}project="$1{HOME}/project"
mkdir -p "$project"
files="kiln/__init__.py kiln/base"
tar -C "${PROJECT}" -c $files requirements/run.txt | tar -C "$project" -x
chroot "$1" useradd --system --home-dir {HOME} --shell /bin/bash kiln
chroot "$1" chown -R kiln:kiln {HOME}
chroot "$1" env HOME={HOME} PIP_NO_INDEX=1 PIP_FIND_LINKS={WHEELS} runuser --user kiln -- python3 -c '
import sys
from pathlib import Path
project = Path("{HOME}/project")
sys.path.insert(0, str(project))
from kiln.base.bootstrap import ensure_environment
ensure_environment(project)'
rm -rf "$wheels"
"""
UNPACK = f'tar -C "$1" -xf "${BELOW}"'
PUT_INIT = f"""cat >"$1{INIT}" <<'END'
{BOOT}END
chmod 755 "$1{INIT}"
rm -rf "$1{ENGINE_HOME}" "$1"/etc/ssh/ssh_host_*
: >"$1/etc/machine-id"  # empty: each worker gets its own; without the file systemd would enable all units
"""


def worker_recipe(suite: str = SUITE) -> ImageRecipe:
    """Return the recipe of a worker's image.

    Raises:
        MissingTool: kiln does not run from a clone, whose files the image has.
    """
    environment.require_clone("an image of workers")
    return ImageRecipe(
        suite=suite,
        packages=WORKER_PACKAGES,
        name="kiln-worker",
        below=base_image_recipe(suite),
        setup=(UNPACK, BEFORE),
        hooks=(BAKE, PUT_INIT, *AFTER[:2]),
        changes=("ENV LANG=C.UTF-8", "ENV container=docker", f'CMD ["{INIT}"]'),
    )
