"""The publish stage: packages go to a channel, all or none, and only when they are a release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import ReleaseRefused
from kiln.publish.gate import reasons

if TYPE_CHECKING:
    from kiln.model.release import Release


def require_release(release: Release) -> None:
    """Refuse what is no release.

    Raises:
        ReleaseRefused: with every reason.
    """
    found = reasons(release)
    if found:
        raise ReleaseRefused(
            f"this is no release, for {len(found)} reason{'s' if len(found) > 1 else ''}",
            why="".join(f"\n    {reason}" for reason in found).strip(),
            hint="docs/how-to/publish.md tells what each kind of reason means, and what to do",
        )
