"""Each variable of the playbooks that is not a text has a type."""

from __future__ import annotations

import yaml

from tests.playbook_programs import ANSIBLE

SECRET = {"kiln_pip", "kiln_environment"}  # whose values no message may show
ROWS = {"kiln_machine_types", "kiln_tags", "kiln_lease_files", "kiln_types"}  # which are data


def test_playbooks_check_the_type_of_each_variable_with_a_default_that_is_no_text() -> None:
    kinds: dict[str, str] = {}
    for path in sorted((*ANSIBLE.glob("group_vars/all/*.yml"), *ANSIBLE.glob("roles/*/defaults/main.yml"))):
        defaults = yaml.safe_load(path.read_text())
        kinds |= {name: type(value).__name__ for name, value in defaults.items() if not isinstance(value, str)}
    types = {
        name: row["type"]
        for name, row in yaml.safe_load((ANSIBLE / "group_vars/all/types.yml").read_text())["kiln_types"].items()
    }
    assert kinds.keys() - SECRET - ROWS <= types.keys()
    assert not SECRET & types.keys()
    assert {name: types[name] for name in kinds.keys() & types.keys()} == {
        name: kind for name, kind in kinds.items() if name in types
    }
