"""Tests on a worker after a run: nothing is done before they have passed; and the JSON of costs."""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
import os
import re
from pathlib import Path
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import bootstrap, process
from kiln.base.errors import FleetLimit, ProvisionRefused, TestsFailed, UsageError
from kiln.build.job.collected import ResultsCollected
from kiln.cli import main
from kiln.cli.fleet import resume, site, tests
from kiln.cli.fleet import tests as fleet_tests
from kiln.fleet import inventory
from kiln.fleet import run as fleet
from kiln.fleet import run as fleet_run
from kiln.fleet import tests as worker_tests
from kiln.fleet.ansible.playbooks import PlaybookSite
from kiln.fleet.model import FleetRun, WorkerRecord, WorkerState
from kiln.fleet.options import FleetOptions
from kiln.fleet.plan import output
from kiln.fleet.plan.run import priced_machine_types
from kiln.fleet.protocol import Event, StartBuild
from kiln.fleet.records import PENDING, TESTS_SUFFIX, FleetLedger, RunRecorder
from kiln.fleet.supervisor import Supervisor
from kiln.publish import release
from kiln.recipe.feedstock import Feedstock
from kiln.run.report.page import cost_as_json, report_as_json
from kiln.state.results import (
    Artifact,
    ConfigRun,
    ConfigState,
    JobEstimate,
    MatrixReport,
    PackageReport,
    RunCost,
    TestReport,
    TestVerdict,
)
from kiln.state.store.layout import ArtifactLayout
from tests import runs
from tests.fleets import HOUR, Faults, Killed, NullObserver, Simulation, fleet_options, run_config

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kiln.base.errors import KilnError
    from kiln.cli.fleet.tests import GpuTestStage
    from kiln.fleet.run_config import FleetRunConfig
    from kiln.fleet.tests import PackagesToTest
    from kiln.state.results import MatrixReport

ROOT = Path(__file__).parents[4]
LEVEL_2 = sorted(path.stem for path in (ROOT / ".ci_support").glob("linux_64_*level2*"))
CUDA = [name for name in LEVEL_2 if "versionNone" not in name][:3]
CPU = next(name for name in LEVEL_2 if "versionNone" in name)
CONFIGS = (*CUDA, CPU)


class Building(Simulation):
    """Simulated workers whose builds have packages."""

    channel: Path
    changed: Sequence[str] = ()

    def _collected(self, name: str, config: str) -> Event:
        event = super()._collected(name, config)
        if not isinstance(event, ResultsCollected):
            return event
        path = self.channel / "linux-64" / f"{config}-1-0.conda"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(f"{config} again" if config in self.changed else config)
        artifact = Artifact(
            path=path,
            sha256=hashlib.sha256(config.encode()).hexdigest(),
            size=len(config),
            config=config,
            name=config,
            version="1",
            build_string="0",
            subdir="linux-64",
        )
        tests = TestReport(package=path.name, verdict=TestVerdict.PASSED, commands=1, seconds=1.0)
        package = PackageReport(artifact=artifact, build_seconds=1.0, reused=False, tests=tests)
        return dataclasses.replace(event, packages=(package,))


class Shown(NullObserver):
    """An observer that keeps what it is shown."""

    def __init__(self) -> None:
        self.states: list[tuple[str, ConfigState]] = []
        self.began: list[MatrixReport] = []
        self.ended: list[MatrixReport] = []

    def run_began(self, report: MatrixReport) -> None:
        self.began.append(report)

    def config_changed(self, config: ConfigRun) -> None:
        self.states.append((config.config, config.state))

    def run_ended(self, report: MatrixReport) -> None:
        self.ended.append(report)


class Run:
    """A run of `CONFIGS` with simulated builds and tests; each attempt is a process of its own."""

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self.feedstock = Feedstock(root=root)
        self.site = PlaybookSite(folder=root / "run", playbooks=root, python=root, variables={}, environment={})
        self.faults: dict[str, Any] = {}
        self.tests: Simulation | None = None
        self.changed: Sequence[str] = ()
        self.shown = Shown()
        self.options = fleet_options("run", "--provider", "aws", "--all", "--gpu-tests")
        monkeypatch.setattr(fleet_tests, "playbook_site", lambda *_, **__: self.site)
        monkeypatch.setattr(worker_tests, "WorkerTestExecutor", self._executor)

    def _executor(self, _: PlaybookSite, tested: PackagesToTest) -> Simulation:
        if self.tests is None:
            self.tests = Simulation(
                worker_tests.jobs_for_tests(tested, seconds=600.0), faults=Faults(**self.faults), home=0.1
            )
        else:
            self.tests.revive()
        return self.tests

    def stage(self, ledger: FleetLedger) -> GpuTestStage:
        configs: Any = [SimpleNamespace(config=name) for name in CONFIGS]
        return fleet_tests.gpu_test_stage(self.options, self.feedstock, configs, ledger)

    def build(self, ledger: FleetLedger, previous: Any = None, run: str = "r1", **faults: Any) -> Any:
        """Return the builds of the run as its command begins them."""
        estimates = tuple(JobEstimate(config=name, group=name, cold=HOUR, warm=HOUR) for name in CONFIGS)
        executor = Building(estimates, faults=Faults(**faults))
        executor.channel, executor.changed = self.feedstock.root / "build_artifacts", self.changed
        configs: Any = [SimpleNamespace(config=name) for name in CONFIGS]
        config = run_config(
            estimates,
            id=run,
            command="kiln fleet run",
            key="inputs",
            previous_run=previous,
            cost_limit=self.options.cost_limit,
            tests=fleet_tests.gpu_test_plan(self.stage(ledger), (), configs),
        )
        return functools.partial(fleet.execute_fleet_run, config, self.site, executor=executor)

    def execute(self, ledger: FleetLedger, build: Any, cached: Sequence[ConfigRun] = (), previous: Any = None) -> Any:
        return fleet_tests.build_and_test(
            self.stage(ledger), build, cached, previous, key="inputs", ledger=ledger, observer=self.shown
        )

    def tested(self) -> list[str]:
        """Return the configs whose tests were begun."""
        commands = () if self.tests is None else self.tests.commands
        return [command.config.removesuffix(TESTS_SUFFIX) for command in commands if isinstance(command, StartBuild)]


@pytest.fixture
def run(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Run:
    (tmp_path / "recipe").symlink_to(ROOT / "recipe")
    (tmp_path / ".ci_support").mkdir()
    for file in (ROOT / ".ci_support").glob("linux_64_*level2*"):
        (tmp_path / ".ci_support" / file.name).symlink_to(file)
    (tmp_path / "build_artifacts").mkdir()
    return Run(tmp_path, monkeypatch)


def ledger_of(run: Run) -> FleetLedger:
    return FleetLedger(ArtifactLayout.for_feedstock(run.feedstock).ledger)


def test_what_is_built_is_done_when_its_tests_have_passed(run: Run) -> None:
    with ledger_of(run) as ledger:
        report, errors = run.execute(ledger, run.build(ledger))
        (fleet_run,), stored = ledger.fleet_runs(), ledger.run_report()
        assert len(ledger.run_numbers()) == 1
    assert errors == {}
    assert stored is not None
    assert (stored.configs, {config.state for config in stored.configs}) == (report.configs, {ConfigState.DONE})
    assert sorted(run.tested()) == CUDA, "the other needs no GPU"
    assert (len(run.shown.began), len(run.shown.ended)) == (1, 1)
    states = [state for config, state in run.shown.states if config == CUDA[0]]
    assert [state for number, state in enumerate(states) if state not in states[number - 1 : number]] == [
        ConfigState.RUNNING,
        ConfigState.WAITING,
        ConfigState.RUNNING,
        ConfigState.DONE,
    ]
    assert {worker.type for worker in fleet_run.workers} == {"compute-16", "gpu-t4"}
    assert (fleet_run.type, fleet_run.number) == ("compute-16", report.run)
    (config,) = (config for config in report.configs if config.config == CUDA[0])
    assert config.packages


def test_the_price_of_the_tests_is_in_the_cost_in_the_end_and_in_the_limit(run: Run) -> None:
    costs_shown: list[Any] = []
    run.shown.run_cost_changed = costs_shown.append  # type: ignore[assignment, method-assign]
    with ledger_of(run) as ledger:
        plan = fleet_tests.gpu_test_plan(run.stage(ledger), (), [SimpleNamespace(config=name) for name in CONFIGS])  # type: ignore[misc]
        assert plan is not None
        run.execute(ledger, run.build(ledger))
    first = costs_shown[0]
    without = 4 * 0.8
    assert first.expected == pytest.approx(without + plan.cost, rel=0.1)
    assert first.end - run.shown.began[0].started > 2 * HOUR + plan.seconds
    run.options = dataclasses.replace(run.options, cost_limit=without + plan.cost / 2)
    with ledger_of(run) as ledger, pytest.raises(FleetLimit) as error:
        run.execute(ledger, run.build(ledger))
    assert f"the tests that follow need {plan.cost:.2f}" in error.value.why


def test_a_failed_test_keeps_the_packages_and_is_run_again_by_the_next_command(run: Run) -> None:
    run.faults = {"codes": {f"{CUDA[1]}{TESTS_SUFFIX}": TestsFailed.exit_code}}
    with ledger_of(run) as ledger:
        report, errors = run.execute(ledger, run.build(ledger))
    states = {config.config: config.state for config in report.configs}
    assert (states[CUDA[1]], set(states.values())) == (ConfigState.FAILED, {ConfigState.DONE, ConfigState.FAILED})
    assert {name: error.exit_code for name, error in errors.items()} == {CUDA[1]: TestsFailed.exit_code}
    (failed,) = (config for config in report.configs if config.config == CUDA[1])
    assert failed.packages[0].artifact.path.is_file()
    assert (failed.is_built, len(release.latest_packages_of_configs(run.feedstock, CUDA))) == (True, 3)
    assert "its packages are built, and their tests on kiln-r1-test-" in failed.reason
    cached = [dataclasses.replace(config, state=ConfigState.CACHED) for config in report.configs]
    run.tests, run.faults = None, {}
    with ledger_of(run) as ledger:
        fleet_tests.record_cached_as_passed(run.stage(ledger), [cached[0]], ledger)
        assert len(ledger.run_numbers()) == 1, "its last state is good"
        fleet_tests.record_cached_as_passed(run.stage(ledger), [cached[1]], ledger)
        last = ledger.run_report()
        assert last is not None
        assert [config.state for config in last.configs] == [ConfigState.CACHED]
        again, errors = run.execute(ledger, None, cached)
        assert fleet_tests.gpu_test_plan(run.stage(ledger), again.configs, ()) is None, "nothing is left to test"
        first, second = ledger.fleet_runs()
    assert (run.tested(), errors, {config.state for config in again.configs}) == (
        [CUDA[1]],
        {},
        {ConfigState.CACHED},
    )
    assert {len(first.workers), len(second.workers)} == {1, 3}


def test_a_run_that_is_killed_during_its_tests_is_done_only_after_the_others(run: Run) -> None:
    run.faults = {"killed": 240.0 + 600 + 300}
    with ledger_of(run) as ledger:
        with pytest.raises(Killed):
            run.execute(ledger, run.build(ledger))
        (previous,), report = ledger.fleet_runs(), ledger.run_report()
        assert report is not None
        states = {config.config: config.state for config in report.configs}
        assert [states[name] for name in CUDA] == [ConfigState.DONE, ConfigState.RUNNING, ConfigState.WAITING]
        assert report.configs[2].reason == PENDING
        assert [config.is_built for config in report.configs] == [False, True, True, False]
        assert previous.finished is None
        cached = [
            dataclasses.replace(config, state=ConfigState.CACHED, reason="up to date", started=None)
            for config in report.configs
        ]
        torn_down: list[Any] = []
        resumed = fleet_tests.resumable_run_or_tear_down(
            previous, builds=False, ledger=ledger, tear_down=torn_down.append
        )
        assert (resumed, torn_down) == (previous, [])
        begun = run.tested()
        report, errors = run.execute(ledger, None, cached, previous)
        (last,) = ledger.fleet_runs()
    assert errors == {}
    assert {config.state for config in report.configs} == {ConfigState.CACHED}
    assert begun + run.tested()[len(begun) :] == CUDA, "each is begun once, also the one that went on"
    assert [worker.name for worker in last.workers if worker.type == "gpu-t4"] == ["kiln-r1-test-3"]
    cost = inventory.recorded_run_cost(last, None, last.started)
    assert cost is not None


def test_a_run_that_is_killed_while_it_builds_has_no_done_config_for_a_gpu(run: Run) -> None:
    with ledger_of(run) as ledger:
        with pytest.raises(Killed):
            run.execute(ledger, run.build(ledger, killed=1.5 * HOUR))
        report = ledger.run_report()
    assert report is not None
    states = {config.config: config.state for config in report.configs}
    assert ConfigState.DONE not in {states[name] for name in CUDA}
    assert PENDING in {config.reason for config in report.configs}


@pytest.mark.parametrize("changed", [(), CUDA[:1]])
def test_rebuilt_packages_that_are_those_that_have_passed_are_done(run: Run, changed: list[str]) -> None:
    """Builds are reproducible: the tests of the same packages are not run again, and nothing waits for them."""
    with ledger_of(run) as ledger:
        run.execute(ledger, run.build(ledger))
        tested, run.tests = run.tested(), None
        run.changed = changed
        report, errors = run.execute(ledger, run.build(ledger, run="r2"))
        stored = ledger.run_report()
    assert (sorted(tested), run.tested(), errors) == (CUDA, list(changed), {})
    assert stored is not None
    assert {config.state for config in (*report.configs, *stored.configs)} == {ConfigState.DONE}
    assert {config.state for config in run.shown.ended[-1].configs} == {ConfigState.DONE}


def test_a_detached_run_says_what_it_leaves_untested(run: Run, capsys: pytest.CaptureFixture[str]) -> None:
    with ledger_of(run) as ledger:
        built, _ = run.build(ledger)(RunRecorder(ledger, run.shown))
        fleet_tests.print_untested_configs_note(run.stage(ledger), built.configs)
        assert f"3 configs built before stay untested, such as {CUDA[0]}" in capsys.readouterr().err
        run.execute(ledger, None, built.configs)
        capsys.readouterr()
        fleet_tests.print_untested_configs_note(run.stage(ledger), built.configs)
        run.options = dataclasses.replace(run.options, gpu_tests=False)
        fleet_tests.print_untested_configs_note(run.stage(ledger), built.configs)
    assert "untested" not in capsys.readouterr().err


def test_workers_of_another_stage_are_terminated_first(run: Run) -> None:
    run.faults = {"killed": 500.0}
    with ledger_of(run) as ledger:
        with pytest.raises(Killed):
            run.execute(ledger, run.build(ledger))
        (previous,) = ledger.fleet_runs()

        def tear_down(torn: Any) -> None:
            ledger.end_fleet(torn.id)

        again = fleet_tests.resumable_run_or_tear_down(previous, builds=True, ledger=ledger, tear_down=tear_down)
        assert again is not None
        assert {worker.state.value for worker in again.workers} == {"terminated"}
        only = dataclasses.replace(previous, workers=previous.workers[-1:])
        assert fleet_tests.resumable_run_or_tear_down(only, builds=False, ledger=ledger, tear_down=tear_down) is only


def test_a_refused_worker_leaves_the_packages_untested(run: Run) -> None:
    run.faults = {"no_capacity": (0.0, 10 * HOUR)}
    with ledger_of(run) as ledger:
        with pytest.raises(ProvisionRefused):
            run.execute(ledger, run.build(ledger))
        report = ledger.run_report()
    assert report is not None
    assert report.finished is not None
    assert {config.config for config in report.configs if config.state is ConfigState.DONE} == {CPU}


def test_the_other_types_of_gpu_type_are_taken_where_the_first_is_refused(run: Run) -> None:
    words = ("run", "--provider", "aws", "--gpu-tests")
    options = fleet_options(*words, "--gpu-type", "gpu-l4,gpu-t4", "--zone", "us-east-1a,us-east-1b")
    texts = [str(offer) for offer in fleet_tests.gpu_worker_offers(options)]
    assert texts == [
        f"{kind} in us-east-1{zone}" for kind in ("gpu-l4 (g6.xlarge)", "gpu-t4 (g4dn.xlarge)") for zone in "ab"
    ]
    with pytest.raises(UsageError, match="compute-16 has no GPU"):
        fleet_tests.gpu_worker_offers(fleet_options(*words, "--gpu-type", "gpu-l4,compute-16"))
    with pytest.raises(UsageError, match=r"no spot price of g4dn\.xlarge"):
        fleet_tests.gpu_worker_offers(fleet_options(*words, "--spot"))
    (offer,) = fleet_tests.gpu_worker_offers(run.options)
    assert offer.machine_type in priced_machine_types(run.options, [])


def test_openstack_tests_on_its_own_types_with_an_image_that_has_a_driver(
    run: Run, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OS_AUTH_URL", "https://auth.cloud.ovh.net/v3")
    (tmp_path / "gpu.json").write_text('{"kiln_openstack_gpu_image": "with a driver"}')
    words = ("run", "--provider", "openstack", "--gpu-tests", "--vars", str(tmp_path / "gpu.json"))
    (offer,) = fleet_tests.gpu_worker_offers(fleet_options(*words, environment=os.environ))
    assert (str(offer), offer.hourly_price, offer.machine_type.currency) == ("gpu-l4 (l4-90)", 0.75, "EUR")
    own = tmp_path / "types.yml"
    sizes = "memory: 90, disk: 400, billed: 3600"
    own.write_text(
        "kiln_machine_types:\n"
        f"- {{provider: openstack, type: compute-16, flavor: c3-32, cores: 16, gpus: 0, gpu: '', {sizes}}}\n"
        f"- {{provider: openstack, type: gpu-l40s, flavor: l40s-90, cores: 15, gpus: 1, gpu: L40S, {sizes}}}\n"
    )
    plan = [
        "-C",
        str(run.feedstock.root),
        "fleet",
        "plan",
        "--provider",
        "openstack",
        "--all",
        "--gpu-tests",
        "--offline",
    ]
    plan += ["--vars", str(own)]
    assert main.run([*plan, "--gpu-type", "gpu-l40s"]) == 0
    text = capsys.readouterr().out
    assert "on 1 gpu-l40s (l40s-90)" in text
    assert "price unknown, after the builds" in text
    assert main.run([*plan, "--gpu-type", "gpu-l40s", "--cost-limit", "100"]) == UsageError.exit_code


def test_hosts_that_test_need_no_container_engine(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Tests run on the machine itself, and a host that reaches no network could not install Docker."""
    monkeypatch.setattr(bootstrap, "ensure_fleet_environment", lambda *_, **__: Path("/bin/python3"))
    monkeypatch.setattr(site, "worker_build_variables", lambda *_: {})  # those of git
    options, config = FleetOptions(provider="static"), run_config((), lease=60.0, lifetime=90.0)
    made = site.playbook_site(options, Feedstock(root=tmp_path), "r1", "static", run_config=config, builds=False)
    assert made.options == ("--container", "none")
    assert (made.variables["kiln_lease"], made.variables["kiln_lifetime"]) == (60, 90)


PAGE = ROOT / "docs" / "reference" / "cost-json.md"
KEYS = ["currency", "spent", "expected", "controller", "start", "end", "configs"]
RUN = ["fleet", "run", "--provider", "aws", "--all", "--workers", "3"]


def printed(root: Path, words: list[str], capsys: pytest.CaptureFixture[str]) -> Any:
    assert main.run(["-C", str(root), *words, "--json"]) == 0
    return json.loads(capsys.readouterr().out)


@pytest.fixture
def feedstock(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a feedstock with twelve configs of this one, for a user who has no table of prices."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setattr(resume, "may_be_of_checkout", lambda _: False)
    (tmp_path / "recipe").symlink_to(ROOT / "recipe")
    (tmp_path / ".ci_support").mkdir()
    for file in (ROOT / ".ci_support").glob("linux_64_*level2*"):
        (tmp_path / ".ci_support" / file.name).symlink_to(file)
    return tmp_path


def test_all_commands_have_the_documented_shape(
    feedstock: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (feedstock / "fleet-sizes.yml").write_text("- hours: 19\n")
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
    (command,) = (feedstock / "build_artifacts" / "fleet").glob("*/command.json")
    assert main.run(["-C", str(feedstock), "fleet", "resume", command.parent.name]) == 0
    again = json.loads(capsys.readouterr().out)
    assert again["cost"]["expected"] == pytest.approx(planned_cost, rel=0.02), "with its configs, provider and --json"


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
