"""Check that .ci_support is up to date before configs are built from it."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import limits
from kiln.errors import KilnError
from kiln.expand import ci_support, forge_settings, matrix, unpinned_keys

if TYPE_CHECKING:
    from kiln.model.feedstock import Feedstock


def changes_since_rerender(feedstock: Feedstock) -> str:
    """Return by how much .ci_support differs from the feedstock's matrix, empty when it is up to date.

    It is also empty where that is unknown: for a feedstock that needs a pinning, whose newest version always differs,
    or whose files are invalid, which the build reports.
    """
    try:
        return limits.bounded(lambda: _changes(feedstock))
    except KilnError:
        return ""


def _changes(feedstock: Feedstock) -> str:
    own_pinning = forge_settings.exclusive_config_file(feedstock)
    if own_pinning is None and unpinned_keys.lacking(feedstock):
        return ""
    return ci_support.drift(feedstock, matrix.configs(feedstock, own_pinning)).summary
