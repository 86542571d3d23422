"""The quotas of the account in which a fleet run is planned, asked from the provider if credentials are at hand."""

from __future__ import annotations

import os
import re
import sys
import threading
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.cli.fleet_run_folder_and_variables import PACKAGE_ROOT, playbook_site
from kiln.files import text_or_empty

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping

    from kiln.fleet.quotas import Quota
    from kiln.model.feedstock import Feedstock

SECONDS = 30.0  # for the answer, Ansible's own start included
# Variables that name credentials, and the files that have them otherwise, with the variables that name these. Those of
# a machine, such as an instance's role, are not looked for: the search alone takes seconds without any.
CREDENTIALS = {
    "aws": ("AWS_ACCESS_KEY_ID", "AWS_PROFILE", "AWS_DEFAULT_PROFILE", "AWS_WEB_IDENTITY_TOKEN_FILE"),
    "openstack": ("OS_CLOUD", "OS_AUTH_URL"),
}
FILES = {"aws": {"AWS_SHARED_CREDENTIALS_FILE": ".aws/credentials", "AWS_CONFIG_FILE": ".aws/config"}}
# The keys of a profile from which botocore has credentials (botocore/credentials.py); a region alone does not count.
PROFILE = re.compile(
    r"^\s*(aws_access_key_id|role_arn|web_identity_token_file|credential_process|sso_start_url|login_session)\s*=",
    re.MULTILINE,
)


def has_credentials(provider: str, environment: Mapping[str, str]) -> bool:
    """Return whether the environment, or a file of the user's, names credentials of a provider that has quotas."""
    home = Path(environment.get("HOME", "/"))
    files = (home / environment.get(name, path) for name, path in FILES.get(provider, {}).items())
    return any(environment.get(name) for name in CREDENTIALS.get(provider, ())) or any(
        PROFILE.search(text_or_empty(file)) for file in files
    )


def account_quotas(options: argparse.Namespace, feedstock: Feedstock) -> tuple[Quota, ...]:
    """Return the quotas of the account; none without credentials, with ``--offline``, or if the provider gives none.

    The controller that ``--detach`` provisions has its part of them. A plan never fails for lack of them, and makes no
    environment to ask.
    """
    from kiln import bootstrap
    from kiln.cli.fleet_planning import priced_controller_type
    from kiln.fleet.playbook_runner import PlaybookRunner
    from kiln.fleet.quotas import Quota

    if options.offline or not has_credentials(options.provider, os.environ):
        return ()
    if not bootstrap.has_fleet_environment(PACKAGE_ROOT):
        print("quotas are not known: the first 'kiln fleet run' makes the environment to ask for them", file=sys.stderr)
        return ()
    site = playbook_site(options, feedstock, "quota", options.provider)
    site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    playbooks = PlaybookRunner(site)
    timer = threading.Timer(SECONDS, playbooks.stop_all_playbooks)
    timer.start()
    try:
        result = playbooks.run_playbook("quota.yml")
    finally:
        timer.cancel()
    if not result.ok or result.answer is None:
        reason = result.failure_reason("localhost").splitlines()[0][:200]
        print(f"quotas are not known: {reason}; see {site.folder / 'playbooks.log'}", file=sys.stderr)
        return ()
    controller = priced_controller_type(options)
    return tuple(Quota.from_provider_answer(row, controller) for row in result.answer["quotas"])
