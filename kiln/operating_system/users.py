"""The user who runs this process: number, group, home and name."""

from __future__ import annotations

import os
import sys

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

    def recorded_home(uid: int) -> str:  # noqa: ARG001
        """Return the home folder that the system has recorded."""
        return os.environ.get("USERPROFILE", "")

    def recorded_name(uid: int) -> str:  # noqa: ARG001
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

    def recorded_home(uid: int) -> str:
        """Return the home folder in the list of users; empty for a user who is not there."""
        return _field(uid, "pw_dir")

    def recorded_name(uid: int) -> str:
        """Return the name in the list of users; empty for a user who is not there."""
        return _field(uid, "pw_name")

    def _field(uid: int, name: str) -> str:
        try:
            return str(getattr(pwd.getpwuid(uid), name))
        except KeyError:
            return ""
