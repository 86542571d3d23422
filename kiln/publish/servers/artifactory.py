"""Artifactory, which copies packages between its repositories, and then renews the index.

Source: the pages "Copy Item" and "Delete Item" of JFrog's REST APIs.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from kiln.publish.servers.server import Promotion, Server

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class Artifactory(Server):
    """An Artifactory server; a channel is a repository."""

    token_variable: ClassVar[str] = "ARTIFACTORY_TOKEN"  # noqa: S105 - the variable's name
    auth_probe: ClassVar[str] = "{url}/{channel}/"
    deletion: ClassVar[str] = "{url}/{channel}/{path}"
    moment: ClassVar[str] = (
        "packages are copied one by one, what others need first: readers have the old release or the new one"
    )

    def _upload_by_library(self, files: list[str], channel: str) -> None:
        from rattler_build.upload import upload_package_to_artifactory as upload

        upload(files, self.url, channel, token=self.credentials.token, auth_file=self.auth_file)

    def promote(self, promotion: Promotion) -> Iterator[str]:
        """Copy packages from the repository for staging."""
        for path in promotion.packages:
            target = quote(f"/{promotion.channel}/{path}")
            self.api.send_json_request("POST", f"{self.url}/api/copy/{promotion.staging}/{path}?to={target}")
            yield path
