"""The policy of the how-to for AWS, judged by IAM's rules, and what a call to EC2 needs of it.

Statements only allow: each resource of a call needs one with the action, the resource and all its conditions. moto's
own enforcement looks at actions alone, and at neither the resources nor the conditions of a policy for EC2 (it says so
in ``moto/iam/access_control.py``), so `enforce` adds these to it. Which resources an action needs is in the Service
Authorization Reference (docs.aws.amazon.com/service-authorization/latest/reference/list_amazonec2.html).
"""

from __future__ import annotations

import fnmatch
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence

    import pytest

PAGE = Path(__file__).parents[1] / "docs" / "how-to" / "fleet-on-aws.md"
ACCOUNT, REGION = "123456789012", "us-east-1"  # moto's
POLICY: dict[str, Any] = json.loads(re.findall(r"```json\n(.*?)```", PAGE.read_text(encoding="utf-8"), re.DOTALL)[0])
STATEMENTS: tuple[dict[str, Any], ...] = tuple(POLICY["Statement"])
ALWAYS_ALLOWED = {"sts:GetCallerIdentity"}  # whatever policies say
# The parameters that name the resources of a call: their kind, and that of the resource's ARN.
NAMING = {
    "InstanceId": "instance",
    "GroupId": "security-group",
    "NetworkInterface.1.SecurityGroupId": "security-group",
    "NetworkInterface.1.SubnetId": "subnet",
    "VpcId": "vpc",
    "LaunchTemplateId": "launch-template",
    "ImageId": "image",
}
CREATED = {
    "RunInstances": ("instance", "volume", "network-interface"),
    "CreateSecurityGroup": ("security-group",),
    "CreateLaunchTemplate": ("launch-template",),
}


@dataclass(frozen=True, slots=True)
class Right:
    """A right that a call needs: an action on a resource, with the keys that conditions compare."""

    action: str
    resource: str
    context: Mapping[str, str]


def values(element: Any) -> list[str]:
    """Return an element of a statement as a list."""
    return element if isinstance(element, list) else [element]


def allows(statements: Iterable[Mapping[str, Any]], right: Right) -> bool:
    """Return whether a statement allows an action on a resource, each of its conditions being met."""
    return right.action in ALWAYS_ALLOWED or any(
        right.action in values(statement["Action"])
        and any(
            fnmatch.fnmatchcase(right.resource, pattern.replace("ACCOUNT", ACCOUNT))
            for pattern in values(statement["Resource"])
        )
        and all(
            right.context.get(key) in values(expected)
            for key, expected in statement.get("Condition", {}).get("StringEquals", {}).items()
        )
        for statement in statements
    )


def arn(resource: str, region: str = REGION) -> str:
    """Return the ARN of a resource of EC2, such as ``instance/i-1``; images belong to no account."""
    account = "" if resource.startswith("image/") else ACCOUNT
    return f"arn:aws:ec2:{region}:{account}:{resource}"


def needed_rights(
    action: str, parameters: Mapping[str, Sequence[str]], tags_of: Callable[[str], Mapping[str, str]]
) -> list[Right]:
    """Return the rights that a call to EC2 needs; ``tags_of`` returns the tags of a resource by its id.

    ``parameters`` are those of EC2's query protocol, such as ``InstanceId.1``.
    """
    service, _, name = action.partition(":")
    if service != "ec2" or name.startswith("Describe"):
        return [Right(action, "*", {})]  # these are not restricted to resources
    if name in {"CreateTags", "DeleteTags"}:
        ids = _numbered(parameters, "ResourceId")
        kinds = {"i": "instance", "sg": "security-group", "lt": "launch-template", "vol": "volume"}
        named = [(kinds[key.partition("-")[0]], key) for key in ids]
    else:
        named = [(kind, key) for parameter, kind in NAMING.items() for key in _numbered(parameters, parameter)]
    rights = [Right(action, arn(f"{kind}/{key}"), _resource_tags(tags_of(key))) for kind, key in named]
    template = parameters.get("LaunchTemplate.LaunchTemplateName", [""])[0]
    if template:
        rights.append(Right(action, arn(f"launch-template/{template}"), _resource_tags(tags_of(template))))
    for kind in CREATED.get(name, ()):
        context = {f"aws:RequestTag/{key}": text for key, text in _request_tags(parameters, kind).items()}
        rights.append(Right(action, arn(f"{kind}/*"), context))
        if context:
            rights.append(Right("ec2:CreateTags", arn(f"{kind}/*"), {**context, "ec2:CreateAction": name}))
    return rights


def _resource_tags(tags: Mapping[str, str]) -> dict[str, str]:
    return {f"aws:ResourceTag/{key}": text for key, text in tags.items()}


def _numbered(parameters: Mapping[str, Sequence[str]], name: str) -> list[str]:
    """Return the values of a parameter and of its numbered form, as ``GroupId`` and ``GroupId.2``."""
    return [text[0] for key, text in parameters.items() if re.fullmatch(rf"{re.escape(name)}(\.\d+)?", key)]


def _request_tags(parameters: Mapping[str, Sequence[str]], kind: str) -> dict[str, str]:
    """Return the tags that a call gives to the resources of a kind."""
    tags = {}
    for key, text in parameters.items():
        match = re.fullmatch(r"(TagSpecification\.\d+)\.Tag\.(\d+)\.Key", key)
        if match and parameters[f"{match[1]}.ResourceType"][0] == kind:
            tags[text[0]] = parameters[f"{match[1]}.Tag.{match[2]}.Value"][0]
    return tags


def enforce(monkeypatch: pytest.MonkeyPatch) -> list[tuple[Right, ...]]:
    """Have moto enforce the resources and conditions of the policy, too; return the list that gets each call's rights.

    A moto server of this process is meant, which has the policy's actions for its user.
    """
    from moto.ec2.models import ec2_backends
    from moto.iam.access_control import IAMRequest

    calls: list[tuple[Right, ...]] = []
    check_action_permitted = IAMRequest.check_action_permitted
    backend = ec2_backends[ACCOUNT][REGION]

    def tags_of(key: str) -> dict[str, str]:
        names = {template.name: template.id for template in backend.launch_templates.values()}
        return {tag["key"]: tag["value"] for tag in backend.describe_tags({"resource-id": [names.get(key, key)]})}

    def check(self: Any, resource: str) -> None:
        check_action_permitted(self, resource)
        rights = needed_rights(self._action, self._data, tags_of)
        if not all(allows(STATEMENTS, right) for right in rights):
            self._raise_access_denied()
        calls.append(tuple(rights))

    monkeypatch.setattr(IAMRequest, "check_action_permitted", check)
    return calls
