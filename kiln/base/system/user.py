"""The user who runs this process, with a home folder, and words for the user's shell, where systems differ."""

from __future__ import annotations

import os
import stat
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.system.files import nearest_existing_path

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


if sys.platform == "win32":
    import io
    import subprocess

    def use_utf8_output() -> None:
        """Have this process print UTF-8 into files and pipes, too, where Windows has a code page of its language."""
        for stream in (sys.stdout, sys.stderr):
            if isinstance(stream, io.TextIOWrapper):
                stream.reconfigure(encoding="utf-8", errors="backslashreplace", newline="\n")

    def quoted_word(word: str) -> str:
        """Return a word as it is written on a command line."""
        return subprocess.list2cmdline([word])

    def path_export_line(prefix: Path) -> str:
        """Return the line that makes a prefix's programs available without conda."""
        folders = (prefix, prefix / "Library" / "bin", prefix / "Scripts")
        return f'set "PATH={";".join(map(str, folders))};%PATH%"'

else:

    def use_utf8_output() -> None:
        """Leave the output as the user's locale has it."""

    def quoted_word(word: str) -> str:
        """Return a word as it is written on a command line."""
        import shlex

        return shlex.quote(word)

    def path_export_line(prefix: Path) -> str:
        """Return the line that makes a prefix's programs available without conda."""
        return f"export PATH={quoted_word(f'{prefix}/bin')}:$PATH"


def joined_command_line(words: Iterable[str]) -> str:
    """Return words as a command line."""
    return " ".join(map(quoted_word, words))


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


NAMES = ("LOGNAME", "USER", "LNAME", "USERNAME")  # in the order of Python's getpass


def missing_home_variables(environment: Mapping[str, str], uid: int) -> dict[str, str]:
    """Return the missing variables of a user's environment: HOME without a writable home, LOGNAME without a name."""
    variables = {}
    if not _is_usable_home(environment.get("HOME") or recorded_home(uid)):
        variables["HOME"] = str(_private_home_folder(uid))
    if not any(environment.get(name) for name in NAMES) and not recorded_user_name(uid):
        variables["LOGNAME"] = f"uid{uid}"
    return variables


def add_missing_home_variables() -> None:
    """Add the missing variables to this process's environment, which its child processes inherit."""
    os.environ.update(missing_home_variables(os.environ, uid()))


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
