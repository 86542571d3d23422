"""The fleet's command line, without a provider."""

from __future__ import annotations

import json
import time
from argparse import Namespace
from pathlib import Path

import pytest
import yaml

from kiln.base import process
from kiln.base.errors import FleetLimit, KilnError, MalformedYaml, UsageError
from kiln.cli import main
from kiln.cli.main import make_pasteable
from kiln.fleet import tests as fleet_tests
from kiln.fleet.model import FleetRun, WorkerRecord, WorkerState
from kiln.fleet.options import FleetOptions
from kiln.fleet.plan.run import require_known_machine_types
from kiln.fleet.records import FleetLedger
from kiln.fleet.tests import ConfigTestResult

ROOT = Path(__file__).parents[4]


@pytest.fixture
def feedstock(tmp_path: Path) -> Path:
    """Return a feedstock with twelve configs of this one: those of a level of the processor."""
    (tmp_path / "recipe").symlink_to(ROOT / "recipe")
    (tmp_path / ".ci_support").mkdir()
    for file in (ROOT / ".ci_support").glob("linux_64_*level2*"):
        (tmp_path / ".ci_support" / file.name).symlink_to(file)
    return tmp_path


def test_an_unknown_run_is_an_error(feedstock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["-C", str(feedstock), "fleet", "status", "r9"]) == UsageError.exit_code
    assert "fleet run 'r9' not found in the ledger" in capsys.readouterr().err


def test_the_status_of_a_repaired_ledger_names_the_sweep(feedstock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FleetRun(id="r1", provider="aws", type="t", started=1.0, finished=None, number=1, lives=True)
    path = feedstock / "build_artifacts" / "ledger.sqlite"
    with FleetLedger(path) as ledger:
        ledger.begin_fleet(run)
    assert main.run(["-C", str(feedstock), "fleet", "status", "--json"]) == 0
    output = capsys.readouterr()
    assert (json.loads(output.out)[0]["id"], "sweep" in output.err) == ("r1", False)
    path.write_bytes(b"SQLite format 3\0" + b"damaged" * 1000)
    assert main.run(["-C", str(feedstock), "fleet", "status"]) == 0
    assert make_pasteable("kiln fleet sweep --provider PROVIDER", feedstock) in capsys.readouterr().err


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home without a table of prices, for a user of no cloud."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for name in ("AWS_REGION", "OS_AUTH_URL", "OS_CLOUD", "OS_REGION_NAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


def test_a_plan_is_made_with_the_prices_of_its_region_or_without(
    feedstock: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["-C", str(feedstock), "fleet", "plan", "--provider", "aws", "--all", "--json"]
    assert main.run(plan) == 0
    selection = json.loads(capsys.readouterr().out)["chosen"]
    assert (selection["machine_type"]["region"], selection["cost"]["currency"]) == ("us-east-1", "USD")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert main.run(plan) == 0
    selection = json.loads(capsys.readouterr().out)["chosen"]
    assert [selection["cost"][key] for key in ("currency", "spent", "expected")] == [None] * 3
    assert selection["machine_type"]["hourly"] == 0.0
    assert main.run(plan[:-1]) == 0
    text = capsys.readouterr().out
    assert text.count("price unknown") == 1, "nothing is compared"
    assert "unknown for c7i.4xlarge in eu-west-1" in text
    for option in (["--cost-limit", "5"], ["--optimize", "cost"]):
        assert main.run([*plan, *option]) == UsageError.exit_code
        assert f"the price of c7i.4xlarge is unknown, so {option[0]}" in capsys.readouterr().err
    assert main.run([*plan, "--spot"]) == UsageError.exit_code
    assert "no spot price of c7i.4xlarge in eu-west-1" in capsys.readouterr().err
    table = home / "kiln" / "prices.csv"
    table.parent.mkdir(parents=True)
    table.write_text(
        "provider,region,kind,name,price,unit,currency,date,source\n"
        "aws,eu-west-1,on-demand,c7i.4xlarge,0.765,hour,USD,2026-11-20,a test\n"
    )
    assert main.run(plan) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["machine_type"]["hourly"] == 0.765
    assert main.run([*plan, "--spot"]) == UsageError.exit_code
    output = capsys.readouterr().err
    assert "no spot price of c7i.4xlarge in eu-west-1" in output
    row = "aws,eu-west-1,spot,c7i.4xlarge,PRICE,hour,CURRENCY,DATE,SOURCE"
    assert row in output
    row = row.replace("PRICE", "0.28").replace("CURRENCY", "USD").replace("DATE", "2026-11-20")
    table.write_text(f"{table.read_text()}{row}\n")
    assert main.run([*plan, "--spot"]) == 0
    selection = json.loads(capsys.readouterr().out)["chosen"]
    assert (selection["spot"], selection["machine_type"]["spot_hourly"]) == (True, 0.28)
    assert main.run([*plan, "--spot", "--fallback", "c6i.4xlarge"]) == UsageError.exit_code
    assert "or --fallback on-demand,c6i.4xlarge takes it on demand" in capsys.readouterr().err


def test_the_prices_are_shown_with_their_sources(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert main.run(["fleet", "prices", "--provider", "openstack", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["provider"] for row in rows} == {"openstack"}
    assert all(row["source"] and row["date"] for row in rows)
    assert main.run(["fleet", "prices"]) == 0
    assert "c8i.8xlarge" in capsys.readouterr().out


@pytest.mark.usefixtures("home")
def test_a_plan_gives_each_config_a_type_that_holds_it(feedstock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    plan = ["-C", str(feedstock), "fleet", "plan", "--provider", "aws", "--all", "--json"]
    (feedstock / "fleet-sizes.yml").write_text("- match: {cuda_compiler_version: '12.9'}\n  memory: 100\n")
    assert main.run([*plan, "--optimize", "cost"]) == 0
    data = json.loads(capsys.readouterr().out)
    types = {job["config"]: job["type"] for job in data["estimates"]}
    sizes = {job["config"]: job["size"]["memory"] for job in data["estimates"]}
    large = {config for config, memory in sizes.items() if memory == 100.0}
    assert {types[config] for config in large} == {"c6a.16xlarge"}, "the cheapest with 100 GB of memory"
    assert {types[config] for config in set(types) - large} == {"compute-16"}
    assert sorted(data["chosen"]["worker_types"]) == ["c6a.16xlarge", "compute-16"]
    assert main.run([*plan[:-1], "--optimize", "cost"]) == 0
    text = capsys.readouterr().out
    assert "1 compute-16 (c7i.4xlarge) + 1 c6a.16xlarge" in text
    assert [line.split()[2] for line in text.splitlines() if line.startswith("price ")] == ["USD", "USD"]
    assert {job["size"]["memory"] for job in data["estimates"]} == {0.0, 100.0}
    assert main.run([*plan, "--type", "compute-16"]) == UsageError.exit_code
    assert "needs 100 GB of memory, and compute-16 has 16 cores, 32 GB" in capsys.readouterr().err
    assert main.run([*plan, "--type", "compute-16", "--type", "gpu-t4", "--workers", "1"]) == UsageError.exit_code
    (feedstock / "fleet-sizes.yml").write_text("- {memory: 600, gpus: 1}")
    assert main.run(plan) == UsageError.exit_code
    text = capsys.readouterr().err
    assert "no machine type is large enough for " in text
    assert "needs 600 GB of memory, 1 GPU, and " in text
    assert "8xlarge has 32 cores, 128 GB of memory" in text
    (feedstock / "fleet-sizes.yml").write_text("- match: {cuda_compiler_version: '12.9'}\n  gpus: 1\n- cores: 4\n")
    text = (feedstock / "fleet-sizes.yml").read_text() + "- match: {cuda_compiler_version: None}\n  cores: 16\n"
    (feedstock / "fleet-sizes.yml").write_text(text)
    assert main.run([*plan, "--type", "compute-16", "--type", "gpu-t4", "--workers", "1"]) == UsageError.exit_code
    assert "need workers of 2 machine types, and --workers is 1" in capsys.readouterr().err


def test_a_run_whose_machine_type_is_gone_from_the_table_is_not_resumed() -> None:
    types = "compute-16, compute-72"
    run = FleetRun(id="r1", provider="aws", type=types, started=1.0, finished=None, number=1, lives=False)
    options = FleetOptions(provider="aws", types=tuple(run.machine_types))
    with pytest.raises(UsageError, match="its machine type 'compute-72' is no longer in the table") as refused:
        require_known_machine_types(options, run)
    assert "kiln fleet down r1" in refused.value.hint
    require_known_machine_types(FleetOptions(provider="aws", types=("compute-16",)), run)


@pytest.mark.usefixtures("home")
def test_another_openstack_is_planned_with_its_own_types_and_without_prices(
    feedstock: Path, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("OS_AUTH_URL", "https://keystone.example.org:5000/v3")
    types = tmp_path / "types.yml"
    row = "{provider: openstack, type: big, flavor: m1.xlarge, cores: 16, memory: 64, disk: 100}"
    types.write_text(f"kiln_machine_types:\n- {row}\n")
    plan = [
        "-C",
        str(feedstock),
        "fleet",
        "plan",
        "--provider",
        "openstack",
        "--all",
        "--offline",
        "--vars",
        str(types),
    ]
    assert main.run(plan) == 0
    text = capsys.readouterr().out
    assert "big (m1.xlarge)" in text
    assert "price   unknown for m1.xlarge in keystone.example.org" in text
    types.write_text("kiln_machine_types:\n- {provider: openstack, type: big}\n")
    assert main.run(plan) == MalformedYaml.exit_code
    assert "kiln_machine_types is not a table of machine types" in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_the_tests_on_a_gpu_are_part_of_the_plan_and_of_its_limits(
    feedstock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (feedstock / "fleet-sizes.yml").write_text("- hours: 19\n")
    plan = ["-C", str(feedstock), "fleet", "plan", "--provider", "aws", "--all", "--gpu-tests"]
    assert main.run(plan) == 0
    output = capsys.readouterr()
    count = len([path for path in (feedstock / ".ci_support").glob("*.yaml") if "versionNone" not in path.name])
    assert f"gpu     {count} configs on 1 gpu-t4 (g4dn.xlarge)" in output.out
    larger = [*plan, "--gpu-type", "gpu-l4"]
    assert main.run([*larger, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    tests, cost = data["bounds"]["tests"], data["cheapest"]["cost"]["expected"]
    assert (tests["machine_type"]["name"], len(tests["configs"])) == ("g6.xlarge", count)
    assert tests["seconds"] == 300 + count * 600 + 60
    assert main.run([*larger, "--cost-limit", f"{cost + 0.01:.3f}"]) == 0
    assert main.run([*larger, "--cost-limit", f"{cost - tests['cost'] / 2:.3f}"]) == FleetLimit.exit_code
    assert main.run([*plan, "--gpu-type", "compute-16"]) == UsageError.exit_code
    assert "compute-16 has no GPU" in capsys.readouterr().err


def test_packages_that_are_not_built_are_not_sent_to_a_gpu(feedstock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-C", str(feedstock), "fleet", "test", "--gpu", "--all"]
    assert main.run([*words, "--provider", "aws"]) == UsageError.exit_code
    error = capsys.readouterr().err
    assert "are not for CUDA, and need no GPU" in error
    assert "are not built, nor those of" in error
    assert main.run([*words, "--provider", "local"]) == UsageError.exit_code
    assert "no machine type of local has a GPU" in capsys.readouterr().err


def test_the_cost_of_tests_on_a_worker_is_in_their_table_json_and_status(
    feedstock: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    worker = WorkerRecord(
        name="kiln-a1-1",
        type="gpu-t4",
        state=WorkerState.READY,
        requested=time.time() - 3600,
        hourly=0.55,
        currency="USD",
    )

    def execute(tests: Namespace, ledger: FleetLedger, _: object) -> tuple[None, dict[str, KilnError]]:
        run = FleetRun(
            id=tests.run_config.id, provider="aws", type="gpu-t4", started=1.0, finished=None, number=0, lives=True
        )
        ledger.begin_fleet(run)
        ledger.store_worker(tests.run_config.id, worker)
        ledger.end_fleet(tests.run_config.id)
        return None, {}

    results = (ConfigTestResult(config="one", exit_code=0, seconds=60.0),)
    monkeypatch.setattr(process, "find_program", lambda program, **_: Path(program))  # none is started
    monkeypatch.setattr(fleet_tests, "run_tests_on_worker", execute)
    monkeypatch.setattr(fleet_tests, "results_of_all_configs", lambda *_: results)
    tests = Namespace(run_config=Namespace(id="a1"), tested=Namespace(packages={}))
    monkeypatch.setattr("kiln.cli.fleet.tests.worker_test_inputs", lambda *_: tests)
    words = ["-C", str(feedstock), "fleet", "test", "--provider", "aws", "--gpu", "--all"]
    assert main.run(words) == 0
    assert capsys.readouterr().out.endswith("\n\ncost 0.55 USD\n")
    assert main.run([*words, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    assert (data["run"], data["configs"][0]["config"], data["cost"]["currency"]) == ("a1", "one", "USD")
    assert data["cost"]["spent"] == pytest.approx(0.55, rel=0.01)
    assert main.run(["-C", str(feedstock), "fleet", "status"]) == 0
    assert "a1: aws, gpu-t4, tests, ended\ncost 0.55 USD\n" in capsys.readouterr().out


@pytest.mark.usefixtures("home")
def test_a_detached_plan_has_the_price_of_its_controller(
    feedstock: Path, capsys: pytest.CaptureFixture[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    (feedstock / "fleet-sizes.yml").write_text("- hours: 19\n")
    plan = ["-C", str(feedstock), "fleet", "plan", "--provider", "aws", "--all", "--optimize", "cost"]
    assert main.run([*plan, "--json"]) == 0
    data = json.loads(capsys.readouterr().out)
    cost, hours = data["chosen"]["cost"]["expected"], data["chosen"]["seconds"] / 3600
    assert data["terms"]["controller"] is None
    hourly = 0.0416 + 60 * 0.08 / 720 + 0.005
    assert main.run([*plan, "--detach", "--keep", "10h"]) == 0
    line = f"control 1 t3.medium, {hourly:.3f} USD an hour: {hourly * hours:.2f} USD more for the run, and"
    assert f"{line} {10 * hourly:.2f} USD at most while its packages wait" in capsys.readouterr().out
    assert main.run([*plan, "--detach", "--json"]) == 0
    detached = json.loads(capsys.readouterr().out)["chosen"]["cost"]
    assert (detached["controller"]["name"], detached["expected"]) == ("t3.medium", pytest.approx(cost + hourly * hours))
    enough = ["--cost-limit", f"{cost + 0.001}"]
    assert main.run([*plan, *enough]) == 0
    assert main.run([*plan, *enough, "--detach"]) == FleetLimit.exit_code, "the controller is paid for, too"
    monkeypatch.setenv("KILN_FLEET_CONTROLLER", f"{hourly} 1.0 0.0 USD t3.medium")
    assert main.run([*plan, *enough]) == FleetLimit.exit_code, "also where this process is the controller's"
    monkeypatch.delenv("KILN_FLEET_CONTROLLER")
    monkeypatch.setenv("AWS_REGION", "eu-south-2")
    assert main.run([*plan, "--optimize", "time", "--detach"]) == 0
    assert "control 1 t3.medium, price unknown: it is not counted" in capsys.readouterr().out
    assert main.run([*plan, "--detach", "--controller-type", "compute-8", "--cost-limit", "5"]) == UsageError.exit_code
    assert "the price of the controller's machine type c7i.2xlarge is unknown" in capsys.readouterr().err


def test_a_plan_names_what_is_taken_where_the_provider_refuses_and_what_losses_cost(
    feedstock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (feedstock / "fleet-sizes.yml").write_text("- hours: 19\n")
    plan = ["-C", str(feedstock), "fleet", "plan", "--provider", "aws", "--all"]
    words = ["--zone", "us-east-1b,us-east-1c", "--fallback", "c6i.4xlarge,c7a.4xlarge"]
    assert main.run([*plan, *words, "--json"]) == 0
    terms = json.loads(capsys.readouterr().out)["terms"]
    offers = [(offer["machine_type"]["name"], offer["zone"]) for offer in terms["offers"]]
    assert offers == [(f"{kind}.4xlarge", f"us-east-1{zone}") for kind in ("c7i", "c6i", "c7a") for zone in "bc"]
    assert terms["lifetime"] == 86400.0
    assert main.run([*plan, *words]) == 0
    output = capsys.readouterr().out
    assert "first   compute-16 (c7i.4xlarge) in us-east-1b" in output
    assert "else    c7a.4xlarge in us-east-1c, " in output
    most = terms["replacements"] + terms["joint_replacements"]
    assert f"losses  a lost worker is replaced, {most} times at most; " in output
    assert f"that would cost {terms['losses']:.2f} USD more: --cost-limit sets" in output
    assert main.run([*plan, "--workers", "1", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["terms"]["lifetime"] == 2 * alone["chosen"]["seconds"] > 86400.0, "it would end in the last builds"

    (feedstock / "fleet-sizes.yml").write_text("- {memory: 20, hours: 19}\n")
    for fallback, error in (
        ("on-demand", "--fallback on-demand needs --spot"),
        ("c7.huge", "aws has no machine type 'c7.huge'"),
    ):
        assert main.run([*plan, "--fallback", fallback]) == UsageError.exit_code
        assert error in capsys.readouterr().err
    assert main.run([*plan, "--fallback", "compute-8"]) == UsageError.exit_code
    assert "the fall-back compute-8 is too small for" in capsys.readouterr().err
    (tmp_path / "vars.yml").write_text("kiln_lifetime: 3600\n")
    assert main.run([*plan, "--vars", str(tmp_path / "vars.yml")]) == UsageError.exit_code
    assert "invalid kiln_lifetime '3600'" in capsys.readouterr().err


def test_the_plan_of_a_cluster_has_the_size_of_its_jobs_and_costs_nothing(
    feedstock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fleet", "plan", "--provider", "slurm", "--all", "--json", "--slurm-cores", "32", "--slurm-memory", "64GB"]
    assert main.run(["-C", str(feedstock), *words]) == 0
    plan = json.loads(capsys.readouterr().out)
    kind = plan["chosen"]["machine_type"]
    assert (kind["provider"], kind["cores"], kind["memory"], plan["chosen"]["cost"]["expected"]) == (
        "slurm",
        32,
        64.0,
        0.0,
    )
    assert plan["bounds"]["workers"] == len(plan["estimates"]), "a scheduler takes all configs at once"
    assert plan["bound"] == "nothing is charged for these workers"


def test_jobs_of_slurm_may_have_sizes_of_their_own_which_the_plan_shows(
    feedstock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """They are larger than a job without sizes, and some are expected to take longer than they may."""
    (feedstock / "fleet-sizes.yml").write_text(
        '- {cores: 64, memory: 500, disk: 90}\n- match: {cuda_compiler_version: "12.9"}\n  gpus: 1\n  time_limit: 60s\n'
    )
    words = ["-C", str(feedstock), "fleet", "plan", "--provider", "slurm", "--all"]
    assert main.run(words) == 0
    text = capsys.readouterr().out
    rows = [line for line in text.splitlines() if "64 cores, 500 GB of memory, 90 GB of disk" in line]
    limited = [line for line in rows if "12.9" in line]
    assert (len(rows), len(limited)) == (12, 4)
    assert all("1 GPU, at most 1 min 00 s" in line for line in limited), text
    assert text.count("it is ended after 1 min 00 s") == len(limited)
    assert main.run([*words, "--json"]) == 0
    sizes = [job["size"] for job in json.loads(capsys.readouterr().out)["estimates"]]
    assert sorted((size["gpus"], size["time_limit"] or 0) for size in sizes) == [(0, 0)] * 8 + [(1, 60.0)] * 4


@pytest.mark.usefixtures("home")
def test_a_fall_back_without_a_price_is_refused_within_a_budget_and_named_elsewhere(
    feedstock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Its workers would count as free, and the budget would not end the run."""
    table = yaml.safe_load((ROOT / "ansible" / "group_vars" / "all" / "machine_types.yml").read_text())
    types = [row for row in table["kiln_machine_types"] if (row["provider"], row["type"]) == ("aws", "compute-16")]
    types.append({**types[0], "type": "other", "flavor": "x9.large"})
    path = feedstock / "types.json"
    path.write_text(json.dumps({"kiln_machine_types": types}))
    words = ["--all", "--vars", str(path), "--type", "compute-16", "--fallback", "other"]
    plan = ["-C", str(feedstock), "fleet", "plan", "--provider", "aws", *words]
    assert main.run([*plan, "--cost-limit", "500"]) == UsageError.exit_code
    assert "the price of the fall-back other is unknown, so --cost-limit" in capsys.readouterr().err
    assert main.run(plan) == 0
    assert "else    other (x9.large), price unknown" in capsys.readouterr().out
