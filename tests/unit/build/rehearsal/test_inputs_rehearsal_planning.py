"""Plans of rehearsals, and their Pythons: the one that the user names, the calling one, or another of this machine."""

from __future__ import annotations

import os
import platform
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import UnsupportedPython
from kiln.build.job.job import HostMachine
from kiln.build.rehearsal import python_search
from kiln.build.rehearsal.inputs import RehearsalPlanner
from kiln.feedstock import matrix
from kiln.recipe.feedstock import Feedstock
from tests import builders

if TYPE_CHECKING:
    from kiln.build.rehearsal.python_search import Interpreter


@pytest.mark.parametrize("insists", [True, False])
def test_a_named_python_that_cannot_be_used_is_refused(insists: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    def probe(executable: Path, **_: Any) -> Interpreter:
        raise UnsupportedPython(f"{executable} cannot be used")

    monkeypatch.setattr(python_search, "probe_interpreter", probe)
    monkeypatch.setattr(python_search, "first_available_interpreter", lambda **_: None)
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
            planner._preferred_pythons()
    else:
        assert planner._preferred_pythons() == ()


@pytest.mark.processes
@pytest.mark.skipif(platform.system() != "Linux", reason="a rehearsal is of Linux")
def test_a_package_for_python_is_planned(tmp_path: Path) -> None:
    python = f"{sys.version_info.major}.{sys.version_info.minor}"
    recipe = "package: {name: a, version: 1}\nrequirements: {host: [python], run: [python]}\n"
    feedstock = builders.feedstock(tmp_path / "feedstock", recipe, f"python:\n- {python}.* *_cpython\n")
    environment = {"PATH": os.defpath}  # every Python on PATH would be started
    planner = RehearsalPlanner(
        feedstock=feedstock,
        machine=HostMachine(environment=environment, python=Path(sys.executable)),
        store=tmp_path / "store",
        folder=None,
        mirror=None,
        on_host=True,
        env=environment,
    )
    (config, *_) = matrix.configs(feedstock)
    assert planner.plan(config).python == python
