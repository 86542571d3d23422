"""From what a person names to the target that it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kiln.publish.channel import ChannelTarget
from kiln.publish.folder import Folder

if TYPE_CHECKING:
    from collections.abc import Mapping


def target(named: str, environment: Mapping[str, str]) -> ChannelTarget:  # noqa: ARG001 - tokens of servers
    """Return the target that ``named`` stands for: a folder."""
    return ChannelTarget(store=Folder(root=Path(named).absolute()))
