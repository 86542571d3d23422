"""The servers that keep the index of their channels: anaconda.org, prefix.dev, quetz and Artifactory."""

from __future__ import annotations

from enum import Enum
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kiln.publish.servers.server import Server


class ServerKind(str, Enum):
    """The servers that the library can upload to."""

    ANACONDA = "anaconda"
    PREFIX = "prefix"
    QUETZ = "quetz"
    ARTIFACTORY = "artifactory"

    @property
    def server_class(self) -> type[Server]:
        """The class of the server."""
        from kiln.publish.servers.anaconda import Anaconda
        from kiln.publish.servers.artifactory import Artifactory
        from kiln.publish.servers.prefix import PrefixDev
        from kiln.publish.servers.quetz import Quetz

        types: dict[ServerKind, type[Server]] = {
            ServerKind.ANACONDA: Anaconda,
            ServerKind.PREFIX: PrefixDev,
            ServerKind.QUETZ: Quetz,
            ServerKind.ARTIFACTORY: Artifactory,
        }
        return types[self]
