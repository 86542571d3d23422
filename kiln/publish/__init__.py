"""The publish stage: packages go into a channel folder, all or none, and only when they are a release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import archive
from kiln.channel import Channel
from kiln.errors import ReleaseRefused

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

REHEARSAL = "rehearsal"  # the key in a package's about.json, below extra


def publish(packages: Sequence[Path], folder: Path) -> tuple[Path, ...]:
    """Put packages into the channel at ``folder`` and index it; returns where they lie.

    Raises:
        ReleaseRefused: when one of them is a rehearsal; none is published then.
        BrokenPackage: when one of them is no package; likewise.
    """
    require_release(packages)
    subdirs = [(package, str(archive.read_info(package, "index.json")["subdir"])) for package in packages]
    return Channel(root=folder).add(subdirs)


def require_release(packages: Sequence[Path]) -> None:
    """Refuse packages that a rehearsal made.

    Raises:
        ReleaseRefused: naming all of them.
    """
    rehearsals = [package for package in packages if is_rehearsal(package)]
    if rehearsals:
        raise ReleaseRefused(
            f"a rehearsal is no release: {', '.join(package.name for package in rehearsals)}",
            why="what is compiled in it is upstream's, not built from this recipe",
            hint="publish what 'kiln build CONFIG' made",
        )


def is_rehearsal(package: Path) -> bool:
    """Return whether a package says that a rehearsal made it."""
    return bool(archive.read_info(package, "about.json").get("extra", {}).get(REHEARSAL))
