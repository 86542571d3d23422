"""Find the package of the operating system that has a program, and the command that installs it.

The table ``system_package_advice.csv`` has the names in the archives of Debian, Fedora and Homebrew.
"""

from __future__ import annotations

import functools
import sys
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TABLE = Path(__file__).with_suffix(".csv")
# The package manager of each family of systems, by the names that os-release gives them in ID and ID_LIKE.
MANAGERS = {"debian": "apt", "ubuntu": "apt", "fedora": "dnf", "rhel": "dnf", "centos": "dnf"}
INSTALL = {"apt": "sudo apt install", "dnf": "sudo dnf install", "brew": "brew install"}


def os_release() -> dict[str, str]:
    """Return the values of this machine's os-release file; empty if it does not exist."""
    import platform  # slow to import, and rarely needed

    try:
        return platform.freedesktop_os_release()
    except (OSError, UnicodeDecodeError):
        return {}


def package_manager(release: Mapping[str, str] | None = None, platform: str = sys.platform) -> str | None:
    """Return the package manager of a system, ``apt``, ``dnf`` or ``brew``; None for a system of another family.

    The system is this machine unless its os-release values are given.
    """
    if platform == "darwin":
        return "brew"
    release = os_release() if release is None else release
    names = (release.get("ID", ""), *release.get("ID_LIKE", "").split())
    return next((MANAGERS[name] for name in names if name in MANAGERS), None)


def system_package_of_program(program: str, manager: str = "apt") -> str:
    """Return the name of the package that has a program; empty when unknown."""
    return _packages_by_program().get(program, {}).get(manager, "")


def installation_command(names: Iterable[str], manager: str) -> str:
    """Return the command that installs packages."""
    return " ".join((INSTALL[manager], *names))


def installation_advice(program: str, release: Mapping[str, str] | None = None, platform: str = sys.platform) -> str:
    """Return how to install a program on this system: a command, or the package's name on Debian, or an empty text."""
    here = package_manager(release, platform)
    if here is not None and (name := system_package_of_program(program, here)):
        return installation_command([name], here)
    if here is None and (name := system_package_of_program(program)):
        return f"install it with this system's package manager (Debian's package is {name})"
    return ""


@functools.cache
def _packages_by_program() -> dict[str, dict[str, str]]:
    return {row["program"]: row for row in files.csv_rows(TABLE)}
