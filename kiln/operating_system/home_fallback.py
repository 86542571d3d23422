"""A home folder and a name for users without them, as in containers: no line in /etc/passwd, HOME=/.

The programs that kiln calls (pip, Ansible, py-rattler) keep caches in the user's home and look up the user's name, and
fail with a traceback without them.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.operating_system import users
from kiln.operating_system.file_operations import nearest_existing_path

if TYPE_CHECKING:
    from collections.abc import Mapping

NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # in the order of Python's getpass


def missing_home_variables(environment: Mapping[str, str], uid: int) -> dict[str, str]:
    """Return the missing variables of a user's environment: HOME without a writable home, LOGNAME without a name."""
    variables = {}
    if not _is_usable_home(environment.get("HOME") or users.recorded_home(uid)):
        variables["HOME"] = str(_private_home_folder(uid))
    if not any(environment.get(name) for name in NAMES) and not users.recorded_user_name(uid):
        variables["LOGNAME"] = f"uid{uid}"
    return variables


def add_missing_home_variables() -> None:
    """Add the missing variables to this process's environment, which its child processes inherit."""
    os.environ.update(missing_home_variables(os.environ, users.uid()))


def _is_usable_home(home: str) -> bool:
    """Return whether a folder is writable or can be created."""
    return Path(home).is_absolute() and os.access(nearest_existing_path(Path(home)), os.W_OK)


def _private_home_folder(uid: int) -> Path:
    """Return a private temporary folder of the user, the same each time unless another user owns it."""
    import tempfile  # few users need it

    folder = Path(tempfile.gettempdir(), f"kiln-home-{uid}")
    try:
        folder.mkdir(mode=0o700, exist_ok=True)
        status = folder.lstat()
        is_private = stat.S_ISDIR(status.st_mode) and status.st_uid == uid and not status.st_mode & 0o077
    except OSError:
        is_private = False
    return folder if is_private else Path(tempfile.mkdtemp(prefix="kiln-home-"))
