"""The settings of the workflow's job that publishes: kiln's own, in the section ``kiln`` of conda-forge.yml."""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.errors import RecipeFault
from kiln.expand import secret_names
from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from kiln.conda_forge_yml import TypedSettings

# What kiln publishes to from another machine; see `kiln publish --help`.
CHANNEL = lazy_pattern(
    r"(?!.*/\.\.?(?:/|$))(?:(?:anaconda|prefix):\w[\w.-]*|(?:quetz|artifactory):https://\w[\w./:-]*|s3://\w[\w./-]*)"
)
TRUSTING = "prefix:"  # the channels of servers that trust CI jobs
BUCKET = "s3://"
ENVIRONMENT = "release"


@dataclass(frozen=True, slots=True, kw_only=True)
class PublicationSettings:
    """A channel, the channel or label from which packages are tested, and what the job proves its right by.

    ``secrets`` are names of secrets and of variables; without any, ``trusted`` says that the server trusts the job.
    ``environment`` is GitHub's, whose protection rules hold for publishing, and that has the secrets.
    """

    channel: str
    staging: str
    secrets: tuple[str, ...]
    trusted: bool
    environment: str

    @classmethod
    def read(cls, own: TypedSettings) -> PublicationSettings:
        """Return the settings in the section, which names a channel.

        Raises:
            RecipeFault: a setting is invalid, missing, or excluded by another one.
        """
        channel = own.get_text("publish_to", "")
        if not CHANNEL.fullmatch(channel):
            raise RecipeFault(
                f"kiln: publish_to: {channel!r} is not a channel of a server", hint="prefix:CHANNEL, anaconda:OWNER"
            )
        trusted = own.get_flag("trusted_publishing", default=False)
        return cls(
            channel=channel,
            staging=_staging_channel(own, channel),
            secrets=_token_secret_names(own, channel, trusted=trusted),
            trusted=trusted,
            environment=own.get_text("publish_environment", ENVIRONMENT),
        )


def _staging_channel(own: TypedSettings, channel: str) -> str:
    """Return the channel for staging, which each server needs, and a bucket has itself."""
    staging = own.get_text("publish_staging", "")
    if channel.startswith(BUCKET):
        if staging:
            raise RecipeFault("kiln: publish_staging: a bucket has a folder for staging itself", hint="remove it")
    elif not staging:
        raise RecipeFault(
            "kiln: publish_staging is missing",
            why="packages are tested from another channel of the server before they are published",
            hint="publish_staging: CHANNEL; a label for anaconda",
        )
    elif not re.fullmatch(r"\w[\w.-]*", staging) or staging == re.split("[:/]", channel)[-1]:
        raise RecipeFault(f"kiln: publish_staging: {staging!r} is not another channel of the server")
    return staging


def _token_secret_names(own: TypedSettings, channel: str, *, trusted: bool) -> tuple[str, ...]:
    names = tuple(dict.fromkeys(own.get_list("publish_token", [])))
    if trusted:
        if names:
            raise RecipeFault("kiln: trusted_publishing takes the place of publish_token", hint="remove one of the two")
        if not channel.startswith(TRUSTING):
            raise RecipeFault(
                f"kiln: trusted_publishing: {channel} has no server that trusts CI jobs",
                why="of the servers that kiln publishes to, prefix.dev does",
                hint="publish_token: the name of a secret",
            )
        return ()
    if not names:
        raise RecipeFault(
            "kiln: publish_token is missing",
            why="it names the secret, and the variable, with the token of publish_to",
            hint="publish_token: PREFIX_API_KEY; or trusted_publishing: true, which prefix.dev has",
        )
    if invalid := [name for name in names if not re.fullmatch("[A-Z][A-Z0-9_]*", name)]:
        raise RecipeFault(f"kiln: publish_token: {invalid[0]!r} is not the name of a variable", hint="PREFIX_API_KEY")
    secret_names.require_unreserved_names(names, "kiln: publish_token")
    return names
