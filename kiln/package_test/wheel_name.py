"""Parse a wheel's file name (PEP 427), and check that it fits the config that made it."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.errors import BrokenPackage, TestsFailed

if TYPE_CHECKING:
    from pathlib import Path

NAME = re.compile(
    r"(?P<name>[^-]+)-(?P<version>[^-]+)(?:-\d[^-]*)?-(?P<python>[^-]+)-(?P<abi>[^-]+)-(?P<platform>[^-]+)\.whl"
)


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelName:
    """The parts of a wheel's file name, as in PEP 427; several tags are joined by dots."""

    path: Path
    name: str
    version: str
    python: str
    abi: str
    platform: str

    @classmethod
    def from_path(cls, path: Path) -> WheelName:
        """Return the parts of a wheel's name.

        Raises:
            BrokenPackage: for an invalid file name.
        """
        match = NAME.fullmatch(path.name)
        if match is None:
            form = "NAME-VERSION-PYTHON-ABI-PLATFORM.whl (PEP 427)"
            raise BrokenPackage(f"invalid wheel name: {path.name}", why=form)
        return cls(path=path, **match.groupdict())

    @property
    def tags(self) -> str:
        """The tags, as in the name."""
        return f"{self.python}-{self.abi}-{self.platform}"


def require_wheel_for_python(wheel: WheelName, python: str | None) -> None:
    """Refuse a wheel that is not for the Python that its config is for (``3.11``; None for a config without one).

    Raises:
        TestsFailed: with both.
    """
    tags = {f"cp{python.replace('.', '')}", "py3", "py2.py3"} if python else {wheel.python}
    stable = wheel.abi == "abi3"  # one for all later ones
    if wheel.python not in tags and not stable:
        raise TestsFailed(
            f"the wheel {wheel.path.name} is for {wheel.python}", why=f"the config is for Python {python}"
        )
