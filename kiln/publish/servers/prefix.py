"""prefix.dev, which takes packages and deletes them, one by one.

Sources: the page "API" of prefix.dev's documentation (DELETE /api/v1/delete/:channel/:subdir/:package_file_name), and
rattler_upload's upload/prefix.rs for the form of an upload with an attestation.
"""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, ClassVar

from kiln import files
from kiln.publish.servers.server import Promotion, Server

if TYPE_CHECKING:
    from collections.abc import Iterator


@dataclass(frozen=True, slots=True, kw_only=True)
class PrefixDev(Server):
    """prefix.dev, or another server of its kind."""

    default_url: ClassVar[str] = "https://prefix.dev"
    takes_attestations: ClassVar[bool] = True
    trusts_jobs: ClassVar[bool] = True
    token_variable: ClassVar[str] = "PREFIX_API_KEY"  # noqa: S105 - the variable's name
    deletion: ClassVar[str] = "{url}/api/v1/delete/{channel}/{path}"

    def _upload_by_library(self, files: list[str], channel: str) -> None:
        from rattler_build.upload import upload_package_to_prefix as upload

        upload(files, self.url, channel, api_key=self.credentials.token, auth_file=self.auth_file)

    def promote(self, promotion: Promotion) -> Iterator[str]:
        """Upload packages to the channel, each with the bundle of its publish attestation, if it has one.

        The library sends an attestation with a token of its own trusted publishing alone, so the form is sent here.
        """
        for path, package in promotion.packages.items():
            if attestation := promotion.attestations.get(path):
                self.api.post_files(
                    f"{self.url}/api/v1/upload/{promotion.channel}",
                    "file",
                    [package],
                    part_headers={"X-File-Name": package.name, "X-File-SHA256": files.sha256(package)},
                    texts={"attestation": attestation.read_text(encoding="utf-8")},
                )
            else:
                self.upload(package, promotion.channel)
            yield path
