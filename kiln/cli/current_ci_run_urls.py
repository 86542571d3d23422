"""The CI's own addresses: of the repository, the run and the workflow."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping


# Without credentials, query and fragment.
WEB_ADDRESS = re.compile(r"https?://[\w.-]+(?::\d+)?(?:/[\w.~+-]+)*/?", re.ASCII)
WORKFLOW = re.compile(r"https://[\w.-]+(?::\d+)?/[\w./~+-]+@[\w./~+-]+", re.ASCII)


def repository_and_run_urls(environment: Mapping[str, str]) -> tuple[str, str]:
    """Return the URLs of the feedstock's repository and of the CI's run, without credentials; empty where unknown.

    ``remote_url`` is conda-forge's variable of the repository; the others are GitHub Actions' default variables
    (https://docs.github.com/actions/reference/workflows-and-actions/variables).
    """
    from kiln import channel_url_credentials

    server, repository, number = (environment.get(f"GITHUB_{name}") for name in ("SERVER_URL", "REPOSITORY", "RUN_ID"))
    on_github = f"{server}/{repository}" if server and repository else ""
    run = f"{on_github}/actions/runs/{number}" if on_github and number else ""
    remote = environment.get("remote_url") or on_github
    urls = (channel_url_credentials.url_without_credentials(url) for url in (remote, run))
    remote_url, ci_url = (url if WEB_ADDRESS.fullmatch(url) else "" for url in urls)
    return remote_url, ci_url


def workflow_uri(environment: Mapping[str, str]) -> str:
    """Return the URI of the CI's workflow with its revision, as Sigstore's certificates name it; empty where unknown.

    GITHUB_WORKFLOW_REF and CI_CONFIG_REF_URI are GitHub's and GitLab's variables of it.
    """
    server, workflow = environment.get("GITHUB_SERVER_URL"), environment.get("GITHUB_WORKFLOW_REF")
    uri = f"{server}/{workflow}" if server and workflow else ""
    if not uri and environment.get("CI_CONFIG_REF_URI"):
        uri = f"https://{environment['CI_CONFIG_REF_URI']}"
    return uri if WORKFLOW.fullmatch(uri) else ""
