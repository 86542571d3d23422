"""The policy in the how-to for AWS allows what the role does, and nothing to what lacks kiln's tag.

It is evaluated by IAM's rules for statements that only allow: each resource of a call needs a statement with the
action, the resource and all its conditions. moto's enforcement does not look at the conditions of such statements.
"""

from __future__ import annotations

import fnmatch
import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

if TYPE_CHECKING:
    from collections.abc import Mapping

PAGE = Path(__file__).parents[2] / "docs" / "how-to" / "fleet-on-aws.md"
STATEMENTS = json.loads(re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0])["Statement"]
OURS = {"aws:ResourceTag/kiln-fleet": "true"}
TAGGED = {"aws:RequestTag/kiln-fleet": "true"}


def arn(resource: str, region: str = "us-east-1") -> str:
    account = "" if resource.startswith("image/") else "ACCOUNT"
    return f"arn:aws:ec2:{region}:{account}:{resource}"


def values(element: Any) -> list[str]:
    return element if isinstance(element, list) else [element]


def allows(action: str, resource: str, context: Mapping[str, str]) -> bool:
    return any(
        f"ec2:{action}" in values(statement["Action"])
        and any(fnmatch.fnmatchcase(resource, pattern) for pattern in values(statement["Resource"]))
        and all(
            context.get(key) in values(expected)
            for key, expected in statement.get("Condition", {}).get("StringEquals", {}).items()
        )
        for statement in STATEMENTS
    )


def test_the_policy_only_allows_and_only_by_equality() -> None:
    assert {statement["Effect"] for statement in STATEMENTS} == {"Allow"}
    assert {operator for statement in STATEMENTS for operator in statement.get("Condition", {})} == {"StringEquals"}
    assert not [action for statement in STATEMENTS for action in values(statement["Action"]) if "*" in action]


@pytest.mark.parametrize(
    ("action", "resources"),
    [
        (
            "RunInstances",
            {
                "instance/i-1": TAGGED,
                "volume/vol-1": TAGGED,
                "security-group/sg-1": OURS,
                "launch-template/lt-1": OURS,
                "image/ami-1": {},
                "subnet/subnet-1": {},
                "network-interface/eni-1": {},
            },
        ),
        ("CreateSecurityGroup", {"security-group/sg-1": TAGGED, "vpc/vpc-1": {}}),
        ("CreateLaunchTemplate", {"launch-template/lt-1": TAGGED}),
        ("CreateTags", {"instance/i-1": {"ec2:CreateAction": "RunInstances"}, "security-group/sg-1": OURS}),
        ("AuthorizeSecurityGroupIngress", {"security-group/sg-1": OURS}),
        ("DeleteSecurityGroup", {"security-group/sg-1": OURS}),
        ("DeleteLaunchTemplate", {"launch-template/lt-1": OURS}),
        ("TerminateInstances", {"instance/i-1": OURS}),
    ],
)
def test_what_the_role_does_is_allowed(action: str, resources: dict[str, dict[str, str]]) -> None:
    assert [name for name, context in resources.items() if not allows(action, arn(name), context)] == []
    assert not any(
        allows(action, arn(name, "eu-west-1"), context) for name, context in resources.items() if "image" not in name
    )


@pytest.mark.parametrize(
    ("action", "resource"),
    [
        ("RunInstances", "instance/i-1"),
        ("RunInstances", "volume/vol-1"),
        ("RunInstances", "security-group/sg-1"),
        ("RunInstances", "launch-template/lt-1"),
        ("CreateSecurityGroup", "security-group/sg-1"),
        ("CreateLaunchTemplate", "launch-template/lt-1"),
        ("CreateTags", "instance/i-1"),
        ("DeleteTags", "instance/i-1"),
        ("TerminateInstances", "instance/i-1"),
        ("ModifyInstanceAttribute", "instance/i-1"),
        ("AuthorizeSecurityGroupIngress", "security-group/sg-1"),
        ("DeleteSecurityGroup", "security-group/sg-1"),
    ],
)
@pytest.mark.parametrize("context", [{}, {"aws:RequestTag/kiln-fleet": "false"}, {"aws:ResourceTag/Name": "true"}])
def test_nothing_is_made_changed_or_ended_without_the_tag(action: str, resource: str, context: dict[str, str]) -> None:
    assert not allows(action, arn(resource), context)


@pytest.mark.parametrize("resource", ["security-group/sg-1", "launch-template/lt-1"])
def test_a_machine_of_ours_starts_in_no_group_and_by_no_template_of_others(resource: str) -> None:
    assert not allows("RunInstances", arn(resource), TAGGED)
