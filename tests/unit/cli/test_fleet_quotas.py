"""When the provider is asked for quotas."""

from __future__ import annotations

import pytest

from kiln.cli.fleet_quotas import has_credentials


@pytest.mark.parametrize(
    ("provider", "environment", "known"),
    [
        ("aws", {"AWS_PROFILE": "kiln"}, True),
        ("aws", {"AWS_REGION": "us-east-1"}, False),
        ("aws", {"OS_CLOUD": "ovh"}, False),
        ("openstack", {"OS_CLOUD": "ovh"}, True),
        ("openstack", {"OS_AUTH_URL": ""}, False),
        ("local", {"AWS_PROFILE": "kiln", "OS_CLOUD": "ovh"}, False),
    ],
)
def test_quotas_are_asked_for_where_the_environment_names_credentials(
    provider: str, environment: dict[str, str], known: bool
) -> None:
    assert has_credentials(provider, environment) is known
