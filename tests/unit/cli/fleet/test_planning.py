"""When the provider is asked for quotas."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.cli.fleet.planning import has_credentials

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("provider", "environment", "known"),
    [
        ("aws", {"AWS_PROFILE": "kiln"}, True),
        ("aws", {"AWS_REGION": "us-east-1"}, False),
        ("aws", {"OS_CLOUD": "ovh"}, False),
        ("openstack", {"OS_CLOUD": "ovh"}, True),
        ("openstack", {"OS_AUTH_URL": ""}, False),
        ("aws", {"AWS_DEFAULT_PROFILE": "kiln"}, True),
        ("local", {"AWS_PROFILE": "kiln", "OS_CLOUD": "ovh"}, False),
    ],
)
def test_quotas_are_asked_for_where_the_environment_names_credentials(
    provider: str, environment: dict[str, str], known: bool
) -> None:
    assert has_credentials(provider, environment) is known


@pytest.mark.parametrize(
    ("file", "text", "known"),
    [
        ("credentials", "[default]\naws_access_key_id = AKIA\naws_secret_access_key = x\n", True),
        ("config", "[profile kiln]\nrole_arn=arn:aws:iam::1:role/kiln\nsource_profile = default\n", True),
        ("config", "[sso-session one]\n  sso_start_url = https://one.example.org\n", True),
        ("config", "[default]\nregion = us-east-1\n# aws_access_key_id = AKIA\n", False),
    ],
)
def test_the_files_of_aws_count_where_a_profile_has_credentials(
    tmp_path: Path, file: str, text: str, known: bool
) -> None:
    place = tmp_path / ".aws" / file
    place.parent.mkdir()
    place.write_text(text)
    variable = "AWS_CONFIG_FILE" if file == "config" else "AWS_SHARED_CREDENTIALS_FILE"
    assert has_credentials("aws", {"HOME": str(tmp_path)}) is known
    assert has_credentials("aws", {variable: str(place)}) is known
    assert has_credentials("aws", {"HOME": str(tmp_path), variable: str(tmp_path / "none")}) is False
    assert has_credentials("openstack", {"HOME": str(tmp_path)}) is False
