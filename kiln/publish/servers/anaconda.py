"""anaconda.org, where a channel is a label of an owner's files: one request gives all of them another label.

Source: anaconda-client 1.16, binstar_client/mixins/channels.py (labels) and ``Binstar.remove_dist``.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar
from urllib.parse import quote

from kiln.conda_package import reader
from kiln.http_client import HttpError
from kiln.publish.servers.server import Promotion, Server, parse_package_file_name

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

OWNED = "already exists"  # in the library's error, which has no status


@dataclass(frozen=True, slots=True, kw_only=True)
class Anaconda(Server):
    """The owner's files; the published channel is the label ``main``."""

    default_url: ClassVar[str] = "https://api.anaconda.org"
    reading: ClassVar[str] = "https://conda.anaconda.org/{channel}"
    token_variable: ClassVar[str] = "ANACONDA_API_KEY"  # noqa: S105 - the variable's name
    token_header: ClassVar[tuple[str, str]] = ("Authorization", "token {}")
    auth_probe: ClassVar[str] = "{url}/user"
    together: ClassVar[bool] = True
    sweeps: ClassVar[bool] = True
    moment: ClassVar[str] = (
        "one request labels all packages; the server may take a moment to update the index of each subdir"
    )

    def channel_url(self, channel: str) -> str:
        """Return the URL of the owner's channel, or of one of its labels."""
        name = channel if channel == self.channel else f"{self.channel}/label/{channel}"
        return (self.client_url or self.reading).format(url=self.url, channel=name)

    def upload(self, package: Path, channel: str) -> None:
        """Upload a package under a label; one that the owner has is not taken again, and gets the label."""
        try:
            Server.upload(self, package, channel)
        except HttpError as error:
            if OWNED not in str(error):
                raise
            subdir = reader.read_info_json(package, "index.json")["subdir"]
            self._change_label("POST", f"{subdir}/{package.name}", channel)

    def _upload_by_library(self, files: list[str], channel: str) -> None:
        from rattler_build.upload import upload_package_to_anaconda as upload

        key, labels = self.credentials.token, [self._label_of_channel(channel)]
        upload(files, self.channel, channel=labels, api_key=key, url=self.url, auth_file=self.auth_file)

    def promote(self, promotion: Promotion) -> Iterator[str]:
        """Give all files with the label for staging the published one, too."""
        self.api.send_json_request(
            "POST", f"{self._label_api_url(promotion.staging)}/copy/{self._label_of_channel(promotion.channel)}"
        )
        yield from promotion.packages

    def unlist(self, path: str, channel: str) -> None:
        """Remove a label from a file; the file stays, since others may have given it labels."""
        self._change_label("DELETE", path, channel)

    def _change_label(self, method: str, path: str, channel: str) -> None:
        name, version, _ = parse_package_file_name(path)
        body = {"package": name, "version": version, "basename": path}
        self.api.send_json_request(method, self._label_api_url(channel), body=body)

    def _label_of_channel(self, channel: str) -> str:
        return "main" if channel == self.channel else channel

    def _label_api_url(self, channel: str) -> str:
        return f"{self.url}/channels/{self.channel}/{quote(self._label_of_channel(channel))}"
