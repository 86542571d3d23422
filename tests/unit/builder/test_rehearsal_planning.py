"""The Python of a plan: the one that the user names, or the calling one, or another one of this machine."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kiln import rehearse
from kiln.builder.rehearsal_planning import RehearsalPlanner
from kiln.errors import UnsupportedPython
from kiln.job.host_machine_facts import HostMachine
from kiln.model.feedstock import Feedstock


@pytest.mark.parametrize("insists", [True, False])
def test_a_named_python_that_cannot_be_used_is_refused(insists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(executable: Path, **_: Any) -> rehearse.Interpreter:
        raise UnsupportedPython(f"{executable} cannot be used")

    monkeypatch.setattr(rehearse, "probe", probe)
    monkeypatch.setattr(rehearse, "first_available", lambda **_: None)
    planner = RehearsalPlanner(
        feedstock=Feedstock(root=Path("/feedstock")),
        machine=HostMachine(environment={}, python=Path("/named"), insists=insists),
        store=Path("/store"),
        folder=None,
        mirror=None,
        on_host=True,
        env={},
    )
    if insists:
        with pytest.raises(UnsupportedPython, match="/named cannot be used"):
            planner._preferred()
    else:
        assert planner._preferred() == ()
