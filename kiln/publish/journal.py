"""What stands in a channel while a publication is under way, so that it can be finished or taken back."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kiln.errors import BrokenIndex, PublicationPending

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.repodata import Entry


class Phase(str, Enum):
    """How far a publication has come."""

    STAGING = "staging"
    PROMOTING = "promoting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """A publication: ``packages`` maps the paths of all of them to their hashes, ``fresh`` are the new paths.

    On a server ``aside`` is the channel for staging, and ``brought`` tells what this publication has, or may have,
    brought: channels with paths, in that order.
    """

    id: str
    packages: Mapping[str, str]
    fresh: tuple[str, ...]
    phase: Phase = Phase.STAGING
    aside: str = ""
    brought: tuple[tuple[str, str], ...] = ()

    @classmethod
    def begun(cls, entries: Iterable[Entry], held: Mapping[str, str]) -> Journal:
        """Return the journal of a publication that begins."""
        packages = {entry.path: entry.sha256 for entry in entries}
        fresh = tuple(sorted(path for path, sha256 in packages.items() if held.get(path) != sha256))
        told = json.dumps(packages, sort_keys=True).encode()
        return cls(id=hashlib.sha256(told).hexdigest()[:16], packages=packages, fresh=fresh)

    @classmethod
    def parse(cls, data: bytes) -> Journal:
        """Return the journal that a channel holds.

        Raises:
            BrokenIndex: when it is none.
        """
        try:
            told = json.loads(data)
            return cls(
                id=told["id"],
                packages=dict(told["packages"]),
                fresh=tuple(_inside(path) for path in told["fresh"]),
                phase=Phase(told["phase"]),
                aside=str(told.get("aside", "")),
                brought=tuple((str(channel), _inside(path)) for channel, path in told.get("brought", ())),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenIndex("the channel's journal of a publication cannot be read", why=repr(error)) from error

    def written(self) -> bytes:
        """Return the journal as it is kept."""
        return json.dumps(dataclasses.asdict(self), indent=1).encode()

    def promoting(self) -> Journal:
        """Return the journal once the packages were tried out."""
        return dataclasses.replace(self, phase=Phase.PROMOTING)

    def bringing(self, channel: str, paths: Iterable[str]) -> Journal:
        """Return the journal before packages are brought to a channel of a server."""
        return dataclasses.replace(self, brought=tuple(dict.fromkeys((*self.brought, *((channel, p) for p in paths)))))

    def brought_to(self, channel: str) -> tuple[str, ...]:
        """Return the paths that this publication has, or may have, brought to a channel of a server."""
        return tuple(path for place, path in self.brought if place == channel)

    @property
    def staging(self) -> str:
        """Where in the channel the packages wait."""
        return f".kiln/staging/{self.id}"

    def require_same(self, other: Journal) -> None:
        """Raise PublicationPending when this, which stands in the channel, is another publication than ``other``."""
        if self.id == other.id:
            return
        names = ", ".join(path.split("/")[-1] for path in self.fresh[:3]) + (", ..." if len(self.fresh) > 3 else "")
        raise PublicationPending(
            f"another publication is under way there: {len(self.fresh)} packages ({names})",
            hint="finish it by the command that began it, or take it back with --abort",
        )


def _inside(path: str) -> str:
    """A journal lies where others may write, and names files to remove."""
    parts = path.split("/")
    if len(parts) != 2 or not all(parts) or any(part.startswith(".") for part in parts):
        raise ValueError(f"{path!r} is no place of a package")
    return path
