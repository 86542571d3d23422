"""The policy in the how-to for AWS allows what the role does, and nothing to what lacks kiln's tag.

`tests.iam_policy` judges it by IAM's rules; an integration test enforces it while the playbooks run.
"""

from __future__ import annotations

import json
import re

import pytest

from tests import iam_policy
from tests.iam_policy import STATEMENTS, Right, arn, values

OWN = json.loads(re.findall(r"```json\n(.*?)```", iam_policy.PAGE.read_text(encoding="utf-8"), re.DOTALL)[1])
OURS = {"aws:ResourceTag/kiln-fleet": "true"}
TAGGED = {"aws:RequestTag/kiln-fleet": "true"}


def allows(action: str, resource: str, context: dict[str, str]) -> bool:
    return iam_policy.allows(STATEMENTS, Right(f"ec2:{action}", resource, context))


def test_the_policy_only_allows_and_only_by_equality() -> None:
    assert {statement["Effect"] for statement in STATEMENTS} == {"Allow"}
    assert {operator for statement in STATEMENTS for operator in statement.get("Condition", {})} == {"StringEquals"}
    assert not [action for statement in STATEMENTS for action in values(statement["Action"]) if "*" in action]


def test_a_call_needs_a_right_for_each_of_its_resources() -> None:
    parameters = {
        "NetworkInterface.1.SecurityGroupId.1": ["sg-1"],
        "LaunchTemplate.LaunchTemplateName": ["kiln-one-spot"],
        "ImageId": ["ami-1"],
        "TagSpecification.1.ResourceType": ["volume"],
        "TagSpecification.1.Tag.1.Key": ["kiln-fleet"],
        "TagSpecification.1.Tag.1.Value": ["true"],
    }
    tags = {"sg-1": {"kiln-fleet": "true"}}
    rights = iam_policy.needed_rights("ec2:RunInstances", parameters, lambda key: tags.get(key, {}))
    assert {(right.action, right.resource.rpartition(":")[2]): dict(right.context) for right in rights} == {
        ("ec2:RunInstances", "security-group/sg-1"): OURS,
        ("ec2:RunInstances", "launch-template/kiln-one-spot"): {},
        ("ec2:RunInstances", "image/ami-1"): {},
        ("ec2:RunInstances", "instance/*"): {},
        ("ec2:RunInstances", "volume/*"): TAGGED,
        ("ec2:RunInstances", "network-interface/*"): {},
        ("ec2:CreateTags", "volume/*"): {**TAGGED, "ec2:CreateAction": "RunInstances"},
    }


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


@pytest.mark.parametrize(("user", "allowed"), [("kiln", True), ("another", False)])
def test_of_several_users_none_ends_the_machines_of_another(user: str, allowed: bool) -> None:
    condition = {key: text.replace("${aws:username}", "kiln") for key, text in OWN["StringEquals"].items()}
    own = {**STATEMENTS[-1], "Condition": {"StringEquals": condition}}
    right = Right("ec2:TerminateInstances", arn("instance/i-1"), {**OURS, "aws:ResourceTag/kiln-user": user})
    assert iam_policy.allows([*STATEMENTS[:-1], own], right) is allowed


@pytest.mark.parametrize("resource", ["security-group/sg-1", "launch-template/lt-1"])
def test_a_machine_of_ours_starts_in_no_group_and_by_no_template_of_others(resource: str) -> None:
    assert not allows("RunInstances", arn(resource), TAGGED)
