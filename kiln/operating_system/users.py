"""The user who runs this process: number, group, home and name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

if sys.platform == "win32":

    def uid() -> int:
        """Return the number of conda-forge's user in a container: Windows numbers no users."""
        return 1000

    def gid() -> int:
        """Return the number of that user's group."""
        return 1000

    def is_root() -> bool:
        """Return False: files of any owner are Linux's affair."""
        return False

    def others_can_read(status: os.stat_result) -> bool:  # noqa: ARG001
        """Return False: a file's mode says nothing of its readers."""
        return False

    def user_cache_folder(environment: Mapping[str, str]) -> Path:
        """Return the user's folder for caches, in which rattler has its own, too."""
        return Path(environment.get("LOCALAPPDATA") or Path.home() / "AppData" / "Local")

    def recorded_home(uid: int) -> str:  # noqa: ARG001
        """Return the home folder that the system has recorded."""
        return os.environ.get("USERPROFILE", "")

    def recorded_user_name(uid: int) -> str:  # noqa: ARG001
        """Return the name that the system has recorded."""
        return os.environ.get("USERNAME", "")

else:
    import pwd

    def uid() -> int:
        """Return the user's number."""
        return os.getuid()

    def gid() -> int:
        """Return the number of the user's group."""
        return os.getgid()

    def is_root() -> bool:
        """Return whether this process may do everything."""
        return os.geteuid() == 0

    def others_can_read(status: os.stat_result) -> bool:
        """Return whether a file's mode lets its group or everyone read it."""
        return bool(status.st_mode & 0o077)

    def recorded_home(uid: int) -> str:
        """Return the home folder in the list of users; empty for a user who is not there."""
        return _account_field(uid, "pw_dir")

    def recorded_user_name(uid: int) -> str:
        """Return the name in the list of users; empty for a user who is not there."""
        return _account_field(uid, "pw_name")

    if sys.platform == "darwin":

        def user_cache_folder(environment: Mapping[str, str]) -> Path:  # noqa: ARG001
            """Return the user's folder for caches, in which rattler has its own, too."""
            return Path.home() / "Library" / "Caches"

    else:

        def user_cache_folder(environment: Mapping[str, str]) -> Path:
            """Return the user's folder for caches, in which rattler has its own, too."""
            return Path(environment.get("XDG_CACHE_HOME") or Path.home() / ".cache")

    def _account_field(uid: int, name: str) -> str:
        try:
            return str(getattr(pwd.getpwuid(uid), name))
        except KeyError:
            return ""
