"""Every command that prints a run on workers as JSON gives its cost and its times in one shape."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import process
from kiln.cli import main
from kiln.cli.fleet import tests
from kiln.fleet import run as fleet_run
from kiln.fleet.model import FleetRun, WorkerRecord, WorkerState
from kiln.fleet.plan import output
from kiln.fleet.records import FleetLedger
from kiln.fleet.supervisor import Supervisor
from kiln.run.report.page import cost_as_json, report_as_json
from kiln.state.results import ConfigState, RunCost
from tests import runs
from tests.fleets import Simulation

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.base.errors import KilnError
    from kiln.fleet.records import RunRecorder
    from kiln.fleet.run_config import FleetRunConfig
    from kiln.state.results import MatrixReport

ROOT = Path(__file__).parents[4]
PAGE = ROOT / "docs" / "reference" / "cost-json.md"
KEYS = ["currency", "spent", "expected", "controller", "start", "end", "configs"]
RUN = ["fleet", "run", "--provider", "aws", "--all", "--workers", "3"]


def printed(root: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main.run(["-C", str(root), *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def feedstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a feedstock with the configs of this one, for a user who has no table of prices."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AWS_REGION", raising=False)
    (tmp_path / "recipe").symlink_to(ROOT / "recipe")
    (tmp_path / ".ci_support").symlink_to(ROOT / ".ci_support")
    return tmp_path


def test_all_commands_have_the_documented_shape(
    feedstock: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    shapes: dict[str, Any] = {}

    def execute(
        run_config: FleetRunConfig, site: object, recorder: RunRecorder, *, keep: object
    ) -> tuple[MatrixReport, Mapping[str, KilnError]]:
        supervisor = Supervisor(run_config, executor=Simulation(run_config.estimates), recorder=recorder)
        return supervisor.execute_run(), supervisor.state.errors

    def look(ledger: FleetLedger, number: int, cost: RunCost) -> None:
        """Ask for the state of the run by the other commands, once configs run and others wait."""
        update(ledger, number, cost)
        report = None if "report" in shapes else ledger.run_report(number)
        states = set() if report is None else {config.state for config in report.configs}
        if states == {ConfigState.RUNNING, ConfigState.WAITING}:
            shapes["status"] = printed(feedstock, ["fleet", "status"], capsys)[0]["cost"]
            shapes["report"] = printed(feedstock, ["report"], capsys)["cost"]

    update = FleetLedger.update_cost
    monkeypatch.setattr(FleetLedger, "update_cost", look)
    monkeypatch.setattr(process, "find_program", lambda program, **_: Path(program))  # none is started
    monkeypatch.setattr("kiln.cli.fleet.fleet.playbook_site", lambda *_, **__: None)  # nobody is asked for a worker
    monkeypatch.setattr(fleet_run, "execute_fleet_run", execute)
    plan = printed(feedstock, ["fleet", "plan", *RUN[2:]], capsys)
    shapes |= {name: plan[name]["cost"] for name in ("chosen", "cheapest", "fastest")}
    shapes["run"] = printed(feedstock, [*RUN, "--additional"], capsys)["cost"]
    assert {name: list(shape) for name, shape in shapes.items()} == dict.fromkeys(shapes, KEYS)
    assert shapes["report"]["configs"] == shapes["status"]["configs"]
    assert {shape["currency"] for shape in shapes.values()} == {"USD"}
    names = {path.stem for path in (feedstock / ".ci_support").glob("*.yaml")}
    for shape in (shapes["chosen"], shapes["report"]):
        assert shape["configs"].keys() == names
        assert all(shape["start"] < item["start"] < item["end"] <= shape["end"] for item in shape["configs"].values())
    assert shapes["run"]["configs"] == {}
    planned_cost = shapes["chosen"]["expected"] - 0.09 * len(names)  # the simulated packages are empty: no traffic
    assert shapes["run"]["spent"] == shapes["run"]["expected"] == pytest.approx(planned_cost, rel=0.02)
    length, planned = (shapes[name]["end"] - shapes[name]["start"] for name in ("run", "chosen"))
    assert length == pytest.approx(planned, rel=0.02)


def test_the_tests_on_a_worker_have_the_same_shape() -> None:
    worker = WorkerRecord(name="w", type="t", state=WorkerState.READY, requested=1.0)
    run = FleetRun(
        id="r", provider="aws", type="t", started=1.0, finished=None, number=0, lives=True, workers=(worker,)
    )
    cost = RunCost(spent=1.0, expected=1.0, currency="USD", end=0.0)
    shape = tests.results_of_tests_as_json("r", (), run, cost)["cost"]
    assert list(shape) == KEYS
    assert (shape["start"], shape["end"]) == (1.0, None)
    assert output.status_as_json([run], {})[0]["cost"] is None


def test_a_cost_without_a_known_price_is_null() -> None:
    cost = RunCost(spent=0.0, expected=0.0, currency="", end=9.0, config_ends={"a": 8.0}, config_starts={"a": 7.0})
    shape = cost_as_json(cost, start=1.0, running={})
    assert shape is not None
    assert [shape[key] for key in ("currency", "spent", "expected")] == [None] * 3
    assert shape["configs"] == {"a": {"start": 7.0, "end": 8.0}}
    assert report_as_json(runs.worked_through(runs.variants(("None",), ("3.11",))))["cost"] is None


def test_the_page_names_the_keys_in_their_order() -> None:
    text = PAGE.read_text(encoding="utf-8")
    match = re.search(r"```json\n(.*?)```", text, re.DOTALL)
    assert match
    example = json.loads(match[1])
    assert list(example) == KEYS
    assert re.findall(r"(?m)^\| `(\w+)` \|", text.split("| key |")[1]) == KEYS
    assert list(example["controller"]) == ["hourly", "billed", "since", "currency", "name"]
