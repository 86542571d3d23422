"""The quotas of the account in which a fleet run is planned, asked from the provider if credentials are at hand."""

from __future__ import annotations

import os
import sys
import threading
from typing import TYPE_CHECKING

from kiln.cli.fleet_ansible_settings import PACKAGE_ROOT, site_of

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from kiln.fleet.quotas import Quota
    from kiln.model.feedstock import Feedstock

SECONDS = 30.0  # for the answer, Ansible's own start included
# Variables that name credentials; those of a file or a machine that none of these names are not looked for.
CREDENTIALS = {
    "aws": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE", "AWS_SHARED_CREDENTIALS_FILE"),
    "openstack": ("OS_CLOUD", "OS_AUTH_URL"),
}


def has_credentials(provider: str, environment: Mapping[str, str]) -> bool:
    """Return whether the environment names credentials of a provider that has quotas."""
    return any(environment.get(name) for name in CREDENTIALS.get(provider, ()))


def quotas_of(options: argparse.Namespace, feedstock: Feedstock) -> tuple[Quota, ...]:
    """Return the quotas of the account; none without credentials, with ``--offline``, or if the provider gives none.

    A plan never fails for lack of them, and makes no environment to ask.
    """
    from kiln import bootstrap
    from kiln.fleet.playbook_runner import PlaybookRunner
    from kiln.fleet.quotas import Quota

    if options.offline or not has_credentials(options.provider, os.environ):
        return ()
    if not bootstrap.has_fleet_environment(PACKAGE_ROOT):
        print("quotas are not known: the first 'kiln fleet run' makes the environment to ask for them", file=sys.stderr)
        return ()
    site = site_of(options, feedstock, "quota", options.provider)
    site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    playbooks = PlaybookRunner(site)
    timer = threading.Timer(SECONDS, playbooks.stop)
    timer.start()
    try:
        result = playbooks.play("quota.yml")
    finally:
        timer.cancel()
    if not result.ok or result.answer is None:
        print(f"quotas are not known: {result.reason('localhost').splitlines()[0][:200]}", file=sys.stderr)
        return ()
    return tuple(Quota.parse(row) for row in result.answer["quotas"])
