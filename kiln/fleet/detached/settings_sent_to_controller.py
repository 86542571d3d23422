"""The input of a detached run's controller: settings, files, and of the credentials those that it needs."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import UsageError
from kiln.serialization import to_json

if TYPE_CHECKING:
    from collections.abc import Mapping

HOME = "/var/lib/kiln/controller"
# The variables of each provider's modules; whoever runs the workers needs no others, and no token for publishing.
# Those of AWS are named one by one, since the prefix is that of its other services' tokens, too, such as Bedrock's.
CREDENTIALS = {
    "aws": re.compile(
        r"AWS_(?:ACCESS_KEY_ID|SECRET_ACCESS_KEY|SESSION_TOKEN|SECURITY_TOKEN|CREDENTIAL_EXPIRATION|REGION"
        r"|DEFAULT_REGION|URL|ENDPOINT_URL(?:_EC2|_STS)?|CA_BUNDLE|USE_FIPS_ENDPOINT|USE_DUALSTACK_ENDPOINT"
        r"|STS_REGIONAL_ENDPOINTS|MAX_ATTEMPTS|RETRY_MODE)"
    ),
    "openstack": re.compile(r"OS_\w+"),
    "static": re.compile(r"(?!)"),
}
REQUIRED = {"aws": ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"), "openstack": ("OS_AUTH_URL",), "static": ()}
HINTS = {
    "aws": 'eval "$(aws configure export-credentials --format env)" sets them from your profile',
    "openstack": "source the RC file of your project; clouds.yaml is not sent",
}
CERTIFICATES = frozenset({"OS_CACERT", "AWS_CA_BUNDLE"})  # whose values are files
# Their values are files, or names in files, that the controller does not have.
ELSEWHERE = frozenset(
    {
        *("AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_CONFIG_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
        *("AWS_WEB_IDENTITY_TOKEN_FILE", "OS_CLOUD", "OS_CLIENT_CONFIG_FILE"),
    }
)
LARGEST = 1 << 20  # bytes of a file that is sent with the settings


@dataclass(frozen=True, slots=True, kw_only=True)
class ControllerSettings:
    """The data that a controller gets over its standard input.

    ``arguments`` are those of kiln, ``environment`` its variables, credentials among them; ``files`` are in the
    controller's own folder, ``feedstock`` in that of the feedstock. ``key`` is the public key of the run, ``keep`` the
    seconds for which results wait there.
    """

    run: str
    arguments: tuple[str, ...]
    key: str
    keep: float
    environment: Mapping[str, str] = field(repr=False)
    files: Mapping[str, str] = field(default_factory=dict, repr=False)
    feedstock: Mapping[str, str] = field(default_factory=dict)

    def as_json(self) -> str:
        """Return the settings as `kiln-controller install` reads them."""
        return json.dumps(to_json(self))

    @property
    def secrets(self) -> tuple[str, ...]:
        """The contents of the files, which may be keys or passwords, for the mask."""
        return tuple(text for text in self.files.values() if "PRIVATE KEY" in text)


def credentials_to_send(provider: str, environment: Mapping[str, str]) -> tuple[dict[str, str], dict[str, str]]:
    """Return the variables that the workers' provider needs, and the files of certificates that they name.

    Raises:
        UsageError: when the credentials are not in the environment.
    """
    missing = [name for name in REQUIRED[provider] if not environment.get(name)]
    if missing:
        raise UsageError(
            f"--detach needs the credentials of {provider} in the environment",
            why=f"{', '.join(missing)} is not set, and files of your home are not sent",
            hint=HINTS[provider],
        )
    credentials = {
        name: text
        for name, text in environment.items()
        if CREDENTIALS[provider].fullmatch(name) and name not in ELSEWHERE and text
    }
    names = CERTIFICATES & set(credentials)
    certificates = {f"certificates/{name}": read_file_to_send(Path(credentials[name])) for name in names}
    return {**credentials, **{name: f"{HOME}/certificates/{name}" for name in names}}, certificates


def read_file_to_send(path: Path) -> str:
    """Return the text of a file that is sent.

    Raises:
        UsageError: when it cannot be read, or is too large.
    """
    try:
        if path.stat().st_size > LARGEST:
            raise UsageError(f"{path} is too large to be sent to the controller", why=f"{LARGEST >> 20} MB at most")
        return path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise UsageError(f"{path} cannot be sent to the controller", why=str(error)) from error
