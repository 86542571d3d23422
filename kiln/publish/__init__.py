"""The publish stage: put packages into a channel, all or none, and only those that are a release."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import ReleaseRefused
from kiln.publish.gate import reasons

if TYPE_CHECKING:
    from kiln.model.release import Release


def require_release(release: Release) -> None:
    """Raise ReleaseRefused, with every reason, for packages that are not a release."""
    all_reasons = reasons(release)
    if all_reasons:
        raise ReleaseRefused(
            f"this is not a release, for {len(all_reasons)} reason{'s' if len(all_reasons) > 1 else ''}",
            why="".join(f"\n    {reason}" for reason in all_reasons).strip(),
            hint="correct each of them; kiln publish --check --to CHANNEL checks again, and publishes nothing",
        )
