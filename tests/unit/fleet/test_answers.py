"""What providers answer, told apart by their documented codes, each with a cure that fits."""

from __future__ import annotations

import pytest

from kiln.fleet.answers import AnswerKind, ProviderAnswer, classify, credentials_error, provider_answers
from kiln.fleet.options import CLOUDS

ROWS = [row for row in provider_answers() if row.codes]
BOTO = "An error occurred ({}) when calling the RunInstances operation (reached max retries: 4): {}"


@pytest.mark.parametrize(
    ("provider", "reason", "kind"),
    [
        ("aws", BOTO.format("RequestLimitExceeded", "Request limit exceeded."), "transient"),
        ("aws", BOTO.format("InternalError", "An internal error has occurred"), "transient"),
        ("aws", BOTO.format("Unavailable", "The service is unavailable. Please try again shortly."), "transient"),
        ("aws", BOTO.format("503", "Service Unavailable"), "transient"),
        ("aws", BOTO.format("InsufficientInstanceCapacity", "We currently do not have sufficient"), "capacity"),
        ("aws", BOTO.format("VcpuLimitExceeded", "You have requested more vCPU capacity than"), "quota"),
        ("aws", BOTO.format("MaxSpotInstanceCountExceeded", "Max spot instance count exceeded"), "quota"),
        (
            "aws",
            BOTO.format("UnauthorizedOperation", "You are not authorized to perform this operation."),
            "permission",
        ),
        ("aws", BOTO.format("AuthFailure.ServiceLinkedRoleCreationNotPermitted", "The provided"), "permission"),
        ("aws", BOTO.format("AuthFailure", "AWS was not able to validate the provided access"), "credentials"),
        ("aws", BOTO.format("RequestExpired", "Request has expired."), "credentials"),
        ("aws", "Unable to locate credentials", "credentials"),
        ("aws", BOTO.format("Unsupported", "Your requested instance type is not supported"), "other"),
        ("aws", "Could not connect to the endpoint URL", "unreachable"),
        ("openstack", "HttpException: 503: Server Error for url: https://c/servers, Service Unavailable", "transient"),
        ("openstack", "Request has been rate limited. (HTTP 429)", "transient"),
        ("openstack", "No valid host was found. There are not enough hosts available.", "capacity"),
        (
            "openstack",
            "ForbiddenException: 403: Client Error for url: u, Quota exceeded for cores: Requested 8",
            "quota",
        ),
        ("openstack", "ConflictException: 409: Client Error, Quota exceeded for resources: ['port'].", "quota"),
        ("openstack", "ForbiddenException: 403: Client Error for url: u, Policy doesn't allow x to be", "permission"),
        ("openstack", "The request you have made requires authentication. (HTTP 401)", "credentials"),
        ("openstack", "Unable to establish connection to https://c: Max retries exceeded with url", "unreachable"),
        ("local", "Cannot connect to the Docker daemon", "unreachable"),
        ("local", "a disk of 403 GB and 500 cores", "other"),
        ("slurm", "sbatch: error: invalid partition specified: nosuch", "other"),
    ],
)
def test_answers_are_told_apart(provider: str, reason: str, kind: str) -> None:
    assert classify(reason, provider).kind == AnswerKind(kind)
    assert provider not in CLOUDS or classify(reason).kind == AnswerKind(kind), "where the provider is not known"


@pytest.mark.parametrize("row", ROWS, ids=lambda row: f"{row.provider} {row.kind.value}")
def test_each_code_means_what_its_row_says(row: ProviderAnswer) -> None:
    for code in row.codes:
        text = f"An error occurred ({code.strip('()')}) when" if code.isalnum() or "(" in code else f"Error: {code}: it"
        assert classify(text, row.provider) == row, code
    assert row.source


@pytest.mark.parametrize("provider", ["aws", "openstack", "static", "local", "slurm"])
@pytest.mark.parametrize("reason", ["a message of nobody's table", "VcpuLimitExceeded", "Quota exceeded for cores"])
def test_a_cure_names_options_of_its_provider_alone(provider: str, reason: str) -> None:
    cure = classify(reason, provider).cure
    assert ("--type" in cure, "quota" in cure) <= (provider in CLOUDS, provider in CLOUDS)
    assert ("--slurm" in cure) == (provider == "slurm")
    assert cure


@pytest.mark.parametrize(
    ("reason", "what"),
    [
        (
            BOTO.format(
                "UnauthorizedOperation", "User: arn:aws:iam::1:user/a is not authorized to perform: ec2:RunTags"
            ),
            "the credentials lack the permission ec2:RunTags",
        ),
        (BOTO.format("UnauthorizedOperation", "You may not"), "the credentials lack the permission RunInstances"),
        (
            "(HTTP 403) Policy doesn't allow os_compute_api:servers:create to be performed.",
            "os_compute_api:servers:create",
        ),
        (
            "You are not authorized to perform the requested action: identity:list_users. (HTTP 403)",
            "the permission identity:list_users",
        ),
        ("(HTTP 403)", "the credentials lack a permission"),
        (BOTO.format("AuthFailure", "AWS was not able"), "the provider does not accept the credentials"),
    ],
)
def test_a_permission_that_is_missing_is_named_and_wrong_credentials_are_not_it(reason: str, what: str) -> None:
    assert what in credentials_error(reason).what
