"""The image of a fleet worker as a container on this computer: it boots systemd, cloud-init, sshd and an inner Docker.

It starts from the base image's archive, so that common packages are downloaded once; the tests need both.
"""

from __future__ import annotations

from kiln.bootstrap import clone_check_and_requirement_lists
from kiln.image.build_container_image import (
    AFTER,
    BEFORE,
    BELOW,
    ENGINE_HOME,
    FETCH,
    PROJECT,
    SUITE,
    WHEELS,
    ImageRecipe,
    base_image_recipe,
)

PACKAGES = (
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
files="kiln/__init__.py kiln/errors.py kiln/lazy_pattern.py kiln/masking kiln/operating_system kiln/bootstrap"
tar -C "${PROJECT}" -c $files requirements/run.txt | tar -C "$project" -x
chroot "$1" useradd --system --home-dir {HOME} --shell /bin/bash kiln
chroot "$1" chown -R kiln:kiln {HOME}
chroot "$1" env HOME={HOME} PIP_NO_INDEX=1 PIP_FIND_LINKS={WHEELS} runuser --user kiln -- python3 -c '
import sys
from pathlib import Path
project = Path("{HOME}/project")
sys.path.insert(0, str(project))
from kiln.bootstrap import ensure_environment
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
    clone_check_and_requirement_lists.require_clone("an image of workers")
    return ImageRecipe(
        suite=suite,
        packages=PACKAGES,
        name="kiln-worker",
        below=base_image_recipe(suite),
        setup=(UNPACK, BEFORE),
        hooks=(BAKE, PUT_INIT, *AFTER[:2]),
        changes=("ENV LANG=C.UTF-8", "ENV container=docker", f'CMD ["{INIT}"]'),
    )
