"""A controller gets of the credentials and files of this computer what it needs, and nothing else."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.fleet.detached import controller
from kiln.fleet.detached.controller import HOME, ControllerSettings

if TYPE_CHECKING:
    from pathlib import Path

ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIA1",
    "AWS_SECRET_ACCESS_KEY": "secret-a",
    "AWS_BEARER_TOKEN_BEDROCK": "secret-b",
    "AWS_PROFILE": "work",
    "AWS_SHARED_CREDENTIALS_FILE": "/home/me/.aws/credentials",
    "OS_AUTH_URL": "https://cloud.example.org/v3",
    "OS_PASSWORD": "secret-o",
    "OS_CLOUD": "mine",
    "BINSTAR_TOKEN": "secret-t",
    "ANACONDA_API_TOKEN": "secret-t",
    "HOME": "/home/me",
}


@pytest.mark.parametrize(
    ("provider", "names"),
    [
        ("aws", {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}),
        ("openstack", {"OS_AUTH_URL", "OS_PASSWORD"}),
        ("static", set()),
    ],
)
def test_only_the_providers_own_credentials_are_sent(provider: str, names: set[str]) -> None:
    variables, files = controller.credentials_to_send(provider, ENVIRONMENT)
    assert set(variables) == names
    assert files == {}


def test_credentials_in_files_are_refused_with_what_exports_them() -> None:
    with pytest.raises(UsageError, match="needs the credentials of aws") as error:
        controller.credentials_to_send("aws", {"AWS_PROFILE": "work"})
    assert "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY is not set" in error.value.why
    assert "aws configure export-credentials" in error.value.hint


def test_a_certificate_is_sent_as_a_file(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("CERTIFICATE")
    variables, files = controller.credentials_to_send("openstack", {**ENVIRONMENT, "OS_CACERT": str(authority)})
    assert variables["OS_CACERT"] == f"{HOME}/certificates/OS_CACERT"
    assert files == {"certificates/OS_CACERT": "CERTIFICATE"}


def test_settings_do_not_show_their_secrets() -> None:
    settings = ControllerSettings(
        run="r",
        arguments=("fleet",),
        key="ssh-ed25519 A",
        keep=1.0,
        environment={"X": "secret-a"},
        files={"keys/0": "PRIVATE KEY"},
    )
    assert "secret-a" not in repr(settings)
    assert "PRIVATE" not in repr(settings)
    assert json.loads(settings.as_json())["environment"] == {"X": "secret-a"}
