"""What a wheel's name says of it (PEP 427), and whether that fits the cell that has made it."""

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
class Wheel:
    """A wheel's name taken apart, as PEP 427 has it; tags are joined by dots where there are several."""

    path: Path
    name: str
    version: str
    python: str
    abi: str
    platform: str

    @classmethod
    def of(cls, path: Path) -> Wheel:
        """Return the parts of a wheel's name.

        Raises:
            BrokenPackage: when it is no wheel's name.
        """
        match = NAME.fullmatch(path.name)
        if match is None:
            form = "NAME-VERSION-PYTHON-ABI-PLATFORM.whl (PEP 427)"
            raise BrokenPackage(f"{path.name} is no name of a wheel", why=form)
        return cls(path=path, **match.groupdict())

    @property
    def tags(self) -> str:
        """The tags as they stand in the name."""
        return f"{self.python}-{self.abi}-{self.platform}"


def require_python(wheel: Wheel, python: str | None) -> None:
    """Refuse a wheel that is not for the Python that its cell is for (``3.11``; None for a cell without one).

    Raises:
        TestsFailed: with both.
    """
    wanted = {f"cp{python.replace('.', '')}", "py3", "py2.py3"} if python else {wheel.python}
    stable = wheel.abi == "abi3"  # one for all later ones
    if wheel.python not in wanted and not stable:
        raise TestsFailed(f"the wheel {wheel.path.name} is for {wheel.python}", why=f"the cell is for Python {python}")
