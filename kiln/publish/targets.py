"""From what a person names to the target that it is."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Protocol

from kiln.errors import UsageError
from kiln.publish.channel import ChannelTarget
from kiln.publish.folder import Folder
from kiln.publish.s3 import Bucket
from kiln.publish.servers import ServerTarget
from kiln.publish.services import Kind

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kiln.model.provenance import Attestation
    from kiln.repodata import Entry


class Target(Protocol):
    """A channel that a release goes to."""

    @property
    def name(self) -> str:
        """What people are told, without credentials."""

    def address(self) -> str:
        """Return where clients read the channel."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of a publication there."""

    def held(self) -> dict[str, str]:
        """Return the hashes of what the channel has, by path."""

    def publish(
        self,
        packages: Sequence[Path],
        entries: Sequence[Entry],
        try_out: Callable[[str], None],
        attested: Attestation | None = None,
    ) -> tuple[str, ...]:
        """Stage packages, have them tried out from there, and publish them; returns what is new."""

    def abort(self) -> tuple[str, ...]:
        """Take back what was begun and not finished; returns the paths of its packages."""


def target(
    named: str,
    environment: Mapping[str, str],
    *,
    journals: Path,
    staging: str | None = None,
    reading: str | None = None,
) -> Target:
    """Return the target that ``named`` stands for: a folder, ``s3://BUCKET/PREFIX``, or ``KIND:CHANNEL`` on a server.

    ``journals`` is where this machine remembers what it brings to servers, which have no place for it.

    Raises:
        UsageError: when it is none of these.
        TokenRefused: when it needs a token and there is none.
    """
    kind, _, rest = named.partition(":")
    if named.startswith("s3://"):
        return ChannelTarget(store=Bucket.parse(named, reading))
    if kind in {each.value for each in Kind}:
        return ServerTarget.parse(Kind(kind), rest, environment, staging=staging, journals=journals, reading=reading)
    if "://" in named:
        raise UsageError(f"{named!r} is no target", hint="a folder, s3://BUCKET/PREFIX, anaconda:, prefix:, quetz: ...")
    return ChannelTarget(store=Folder(root=Path(named).absolute()))


def own_channel(where: Target) -> ChannelTarget:
    """Return a target whose index kiln keeps itself.

    Raises:
        UsageError: when a server does.
    """
    if not isinstance(where, ChannelTarget):
        raise UsageError(f"the index of {where.name} is the server's affair", hint="use the server's own means")
    return where
