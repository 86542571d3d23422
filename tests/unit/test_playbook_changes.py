"""Each variable of a role has a spec."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from tests.playbook_programs import ANSIBLE

if TYPE_CHECKING:
    from pathlib import Path

ROLES = sorted(ANSIBLE.glob("roles/*"))


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_checks_each_variable_that_its_defaults_define(role: Path) -> None:
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]
    checked = {name for spec in specs.values() for name in spec["options"]}
    defaults = role / "defaults/main.yml"
    assert not defaults.exists() or yaml.safe_load(defaults.read_text()).keys() <= checked
