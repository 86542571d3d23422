"""The order in which the files of an index are replaced where that is done one by one."""

from __future__ import annotations

from kiln.repodata import BASE, SHARDS


def write_rank(name: str) -> tuple[bool, bool, bool, str]:
    """Return the turn of an index file: shards that others name first, then what clients read, kiln's record last."""
    return not name.startswith(f"{SHARDS}/"), name == BASE, "repodata" in name, name
