from __future__ import annotations

import pytest

from kiln.cli import options

GITHUB = {
    "GITHUB_SERVER_URL": "https://github.example",
    "GITHUB_REPOSITORY": "some/x-feedstock",
    "GITHUB_RUN_ID": "123",
}


def test_a_run_knows_its_repository_and_its_page_on_github() -> None:
    repository = "https://github.example/some/x-feedstock"
    assert options.repository_and_run_urls(GITHUB) == (repository, f"{repository}/actions/runs/123")
    assert options.repository_and_run_urls({**GITHUB, "remote_url": "https://me:secret@git.example/x.git"}) == (
        "https://git.example/x.git",
        f"{repository}/actions/runs/123",
    )
    assert options.repository_and_run_urls({}) == ("", "")


@pytest.mark.parametrize(
    "url", ["git@github.com:some/x.git", "javascript:alert(1)", "https://h/?token=secret", "file:///x"]
)
def test_only_a_web_page_without_parameters_is_recorded(url: str) -> None:
    assert options.repository_and_run_urls({"remote_url": url}) == ("", "")
    assert options.repository_and_run_urls({**GITHUB, "GITHUB_RUN_ID": "1?x=secret"})[1] == ""


@pytest.mark.parametrize(
    ("variables", "uri"),
    [
        (
            {
                "GITHUB_SERVER_URL": "https://github.com",
                "GITHUB_WORKFLOW_REF": "a/b/.github/workflows/c.yml@refs/heads/d",
            },
            "https://github.com/a/b/.github/workflows/c.yml@refs/heads/d",
        ),
        (
            {"CI_CONFIG_REF_URI": "gitlab.com/a/b//.gitlab-ci.yml@refs/heads/d"},
            "https://gitlab.com/a/b//.gitlab-ci.yml@refs/heads/d",
        ),
        ({"GITHUB_SERVER_URL": "https://me:secret@github.com", "GITHUB_WORKFLOW_REF": "a/b@c"}, ""),
        ({"GITHUB_WORKFLOW_REF": "a/b@c"}, ""),
        ({}, ""),
    ],
)
def test_a_workflow_is_named_as_in_the_certificates_of_sigstore(variables: dict[str, str], uri: str) -> None:
    assert options.workflow_uri(variables) == uri
