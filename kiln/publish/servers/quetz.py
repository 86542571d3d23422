"""quetz, which takes many packages in one form and updates its index once, afterwards.

Source: quetz-server 0.10.4, quetz/main.py (post_file_to_channel, delete_package_version).
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kiln.http_client import HttpError
from kiln.publish.servers.server import Promotion, Server

if TYPE_CHECKING:
    from collections.abc import Iterator

EXISTS = 409
_NO_FORM = {404, 405, EXISTS, 413}  # no such route; one of the files exists; larger than a proxy allows


@dataclass(frozen=True, slots=True, kw_only=True)
class Quetz(Server):
    """A quetz server."""

    reading: ClassVar[str] = "{url}/get/{channel}"
    token_variable: ClassVar[str] = "QUETZ_API_KEY"  # noqa: S105 - the variable's name
    token_header: ClassVar[tuple[str, str]] = ("X-API-Key", "{}")
    auth_probe: ClassVar[str] = "{url}/api/me"
    deletion: ClassVar[str] = "{url}/api/channels/{channel}/packages/{name}/versions/{path}"
    together: ClassVar[bool] = True
    moment: ClassVar[str] = "one request brings all packages; then the server replaces the index of each subdir in turn"

    def _upload_by_library(self, files: list[str], channel: str) -> None:
        from rattler_build.upload import upload_package_to_quetz as upload

        upload(files, self.url, channel, api_key=self.credentials.token, auth_file=self.auth_file)

    def promote(self, promotion: Promotion) -> Iterator[str]:
        """Upload all packages in one request; where the server does not take that, one by one."""
        files, channel = list(promotion.packages.values()), promotion.channel
        try:
            if len(files) > 1:
                self.api.post_files(f"{self.url}/api/channels/{channel}/files/", "files", files)
                yield from promotion.packages
                return
        except HttpError as error:
            if error.status not in _NO_FORM:
                raise
        for path, package in promotion.packages.items():
            try:
                self.upload(package, channel)
            except HttpError as error:
                if error.status != EXISTS:  # the index then says with which hash
                    raise
            else:
                yield path
