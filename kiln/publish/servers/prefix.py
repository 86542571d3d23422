"""prefix.dev, which takes packages and deletes them, one by one.

Source: the page "API" of prefix.dev's documentation (DELETE /api/v1/delete/:channel/:subdir/:package_file_name).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kiln.publish.servers.server import Server

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Prefix(Server):
    """prefix.dev, or another server of its kind."""

    default_url: ClassVar[str] = "https://prefix.dev"
    token_variable: ClassVar[str] = "PREFIX_API_KEY"  # noqa: S105 - the variable's name

    def upload(self, package: Path, channel: str) -> None:
        """Upload a package."""
        from rattler_build import upload

        self._call(upload.upload_package_to_prefix, package, self.url, channel, api_key=self.credentials.token)

    def delete(self, path: str, channel: str) -> None:
        """Delete a package."""
        self.api.request("DELETE", f"{self.url}/api/v1/delete/{channel}/{path}")

    @property
    def probe(self) -> str | None:
        """None: the library reports this server's status."""
        return None
