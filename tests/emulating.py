"""Commands under a kernel that runs programs of linux-aarch64 by qemu-user, or that runs none, whatever this one does.

The registration is that of Debian's package, in a user namespace, which has its own since Linux 6.7: no other process
of this machine sees it.
"""

from __future__ import annotations

import functools
import shutil
import subprocess

QEMU = "qemu-aarch64-static"
MAGIC = r"\x7fELF\x02\x01\x01\x00\x00\x00\x00\x00\x00\x00\x00\x00\x02\x00\xb7\x00"
MASK = r"\xff\xff\xff\xff\xff\xff\xff\x00\xff\xff\xff\xff\xff\xff\xff\xff\xfe\xff\xff\xff"
MOUNT = "set -e; mount -t binfmt_misc none /proc/sys/fs/binfmt_misc"
RUN = '"$@"'


def prefix(*, emulated: bool) -> tuple[str, ...]:
    """Return the words before a command that runs it in such a namespace."""
    entry = f":qemu-aarch64:M::{MAGIC}:{MASK}:{shutil.which(QEMU)}:OCF"
    register = (f"printf '%s' '{entry}' > /proc/sys/fs/binfmt_misc/register",) if emulated else ()
    script = "; ".join((MOUNT, *register, RUN))
    return ("unshare", "--user", "--map-root-user", "--mount", "bash", "-c", script, "bash")


@functools.cache
def lack() -> str:
    """Return why this machine has no such namespaces; empty when it has."""
    result = subprocess.run((*prefix(emulated=False), "true"), capture_output=True, text=True, check=False)
    return f"no binfmt_misc in user namespaces: {result.stderr.strip()}" if result.returncode else ""
