"""The targets of a publication, by the names that people give them."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import UsageError
from kiln.publish.servers import ServerKind
from kiln.publish.servers.server_publication import ServerTarget
from kiln.publish.stores.folder import Folder
from kiln.publish.stores.s3 import Bucket
from kiln.publish.stores.store_publication import StoreTarget

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.publish.transaction import Target


def parse_target(
    name: str,
    environment: Mapping[str, str],
    *,
    journals: Path,
    staging: str | None = None,
    reading: str | None = None,
    subdirs: Iterable[str] = (),
) -> Target:
    """Return the target of a name: a folder, ``s3://BUCKET/PREFIX``, or ``KIND:CHANNEL`` on a server.

    ``journals`` is the folder of this machine for the journals of publications to servers, ``subdirs`` are those of the
    packages that may be published there.

    Raises:
        UsageError: when it is not a valid target.
        TokenRefused: it needs a token and has none.
    """
    kind, _, rest = name.partition(":")
    if name.startswith("s3://"):
        return StoreTarget(store=Bucket.parse(name, reading))
    if kind in {server.value for server in ServerKind}:
        return ServerTarget.parse(
            ServerKind(kind),
            rest,
            environment,
            staging=staging,
            journals=journals,
            reading=reading,
            subdirs=subdirs,
        )
    if "://" in name:
        raise UsageError(
            f"{name!r} is not a target", hint="a folder, s3://BUCKET/PREFIX, anaconda:, prefix:, quetz: ..."
        )
    return StoreTarget(store=Folder(root=Path(name).absolute()))


def require_store_target(channel: Target) -> StoreTarget:
    """Return a target whose index kiln writes.

    Raises:
        UsageError: when a server writes it.
    """
    if not isinstance(channel, StoreTarget):
        raise UsageError(
            f"the index of {channel.name} is kept by its server", hint="use the server's own commands or pages"
        )
    return channel
