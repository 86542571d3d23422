"""The tables that the playbooks are compared with: a row for each playbook and provider, a spec for each variable."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest
import yaml

from tests.playbook_changes import LAST, PLAYBOOKS, PROVIDERS
from tests.playbook_programs import ANSIBLE

if TYPE_CHECKING:
    from pathlib import Path

ROLES = sorted(ANSIBLE.glob("roles/*"))


def test_each_playbook_has_a_row_for_each_provider() -> None:
    playbooks = {file.stem for file in ANSIBLE.glob("*.yml")} - {"requirements"}  # a list of collections
    assert set(PLAYBOOKS) == playbooks
    assert tuple(PLAYBOOKS)[-len(LAST) :] == LAST
    assert len(PROVIDERS) == 4
    assert {name: set(rows) for name, rows in PLAYBOOKS.items()} == {key: set(PROVIDERS) for key in playbooks}


def test_what_a_provider_cannot_is_what_its_role_has_no_tasks_for() -> None:
    included = {"quota": "quota", "admit": "admit"}
    for playbook, tasks in included.items():
        for provider, row in PLAYBOOKS[playbook].items():
            assert bool(row.impossible) != (ANSIBLE / f"roles/kiln_{provider}/tasks/{tasks}.yml").exists()
    impossible = {playbook for playbook, rows in PLAYBOOKS.items() for row in rows.values() if row.impossible}
    assert impossible <= set(included)


@pytest.mark.parametrize("role", ROLES, ids=lambda role: role.name)
def test_a_role_checks_each_variable_that_its_defaults_define(role: Path) -> None:
    specs = yaml.safe_load((role / "meta/argument_specs.yml").read_text())["argument_specs"]
    checked = {name for spec in specs.values() for name in spec["options"]}
    defaults = role / "defaults/main.yml"
    assert not defaults.exists() or yaml.safe_load(defaults.read_text()).keys() <= checked
