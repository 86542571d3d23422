"""The user who runs this process: a home folder, a name, a folder for caches."""

from __future__ import annotations

import os
import pwd
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.system.files import nearest_existing_path

if TYPE_CHECKING:
    from collections.abc import Mapping


if sys.platform == "darwin":

    def user_cache_folder(environment: Mapping[str, str]) -> Path:  # noqa: ARG001
        """Return the user's folder for caches, in which rattler has its own, too."""
        return Path.home() / "Library" / "Caches"

else:

    def user_cache_folder(environment: Mapping[str, str]) -> Path:
        """Return the user's folder for caches, in which rattler has its own, too."""
        return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")


NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # in the order of Python's getpass


def missing_home_variables(environment: Mapping[str, str], uid: int) -> dict[str, str]:
    """Return the missing variables of a user's environment: HOME without a writable home, LOGNAME without a name."""
    variables = {}
    try:
        recorded_home, recorded_name = (account := pwd.getpwuid(uid)).pw_dir, account.pw_name
    except KeyError:  # the list of users lacks this one, as in a container with another number
        recorded_home, recorded_name = "", ""
    home = Path(environment.get("HOME") or recorded_home)
    if not home.is_absolute() or not os.access(nearest_existing_path(home), os.W_OK):
        variables["HOME"] = str(_private_home_folder(uid))
    if not any(environment.get(name) for name in NAMES) and not recorded_name:
        variables["LOGNAME"] = f"uid{uid}"
    return variables


def add_missing_home_variables() -> None:
    """Add the missing variables to this process's environment, which its child processes inherit."""
    os.environ.update(missing_home_variables(os.environ, os.getuid()))


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
