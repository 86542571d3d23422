"""A machine of the fleet on this computer: an image that boots systemd, cloud-init, sshd and a Docker of its own.

It starts from the base image's archive, so that what is in both is fetched once; the tests need both.
"""

from __future__ import annotations

from kiln.container import images
from kiln.image.base import AFTER, BEFORE, BELOW, ENGINE_HOME, FETCH, PROJECT, SUITE, WHEELS, Recipe, recipe

PACKAGES = (
    *("systemd", "systemd-sysv", "dbus", "cloud-init"),
    *("openssh-server", "sudo", "rsync", "iproute2"),
    *("docker.io", "iptables"),
)
HOME = "/var/lib/kiln"  # as ansible/roles/prepare has it
INIT = "/usr/local/sbin/kiln-machine-init"

# What Docker mounts of the host's cgroups is read-only, and a machine must divide its own: systemd needs it for units,
# the inner Docker for limits. Its namespace is private, so what can be written is below the machine's own group alone.
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
# kiln's environment, where the project will be put: a machine that has it saves most of a minute. A lock that differs
# from the project's makes it anew there.
BAKE = f"""{FETCH}project="$1{HOME}/project"
mkdir -p "$project"
tar -C "${PROJECT}" -c kiln/__init__.py kiln/errors.py kiln/bootstrap requirements/run.txt | tar -C "$project" -x
chroot "$1" useradd --system --home-dir {HOME} --shell /bin/bash kiln
chroot "$1" chown -R kiln:kiln {HOME}
chroot "$1" env HOME={HOME} PIP_NO_INDEX=1 PIP_FIND_LINKS={WHEELS} runuser --user kiln -- python3 -c '
import sys
from pathlib import Path
project = Path("{HOME}/project")
sys.path.insert(0, str(project))
from kiln.bootstrap import environment
environment(project)'
rm -rf "$wheels"
"""
UNPACK = f'tar -C "$1" -xf "${BELOW}"'
PUT_INIT = f"""cat >"$1{INIT}" <<'END'
{BOOT}END
chmod 755 "$1{INIT}"
rm -rf "$1{ENGINE_HOME}" "$1"/etc/ssh/ssh_host_*
: >"$1/etc/machine-id"  # empty: each machine gets its own; without the file systemd would turn on all that it finds
"""


def machine_recipe(suite: str = SUITE) -> Recipe:
    """Return the recipe of a machine's image."""
    return Recipe(
        suite=suite,
        packages=PACKAGES,
        name="kiln-machine",
        below=recipe(suite),
        setup=(UNPACK, BEFORE),
        hooks=(BAKE, PUT_INIT, *AFTER[:2]),
        changes=("ENV LANG=C.UTF-8", "ENV container=docker", f'CMD ["{INIT}"]'),
    )


def machine_tag(suite: str = SUITE) -> str:
    """The name of a suite's machine image."""
    return f"{images.LOCAL}kiln-machine:{suite}"
