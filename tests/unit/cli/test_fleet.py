"""The fleet's command line, without a provider."""

from __future__ import annotations

import json
from argparse import ArgumentParser, Namespace
from pathlib import Path

import pytest

from kiln import cli
from kiln.cli.command_hints import pasteable
from kiln.cli.fleet_arguments import arguments, loss_limits, seconds
from kiln.cli.fleet_prices import region_of
from kiln.errors import UsageError
from kiln.fleet import price_table
from kiln.fleet.price_table import Price
from kiln.ledger.fleet import FleetLedger
from kiln.model.fleet import FleetRun

ROOT = Path(__file__).parents[3]


@pytest.fixture
def feedstock(tmp_path: Path) -> Path:
    """Return a feedstock with the configs of this one."""
    (tmp_path / "recipe").symlink_to(ROOT / "recipe")
    (tmp_path / ".ci_support").symlink_to(ROOT / ".ci_support")
    return tmp_path


@pytest.mark.parametrize(("text", "value"), [("10h", 36000.0), ("90min", 5400.0), ("45 s", 45.0), ("1.5", 5400.0)])
def test_times_are_hours_unless_they_have_a_unit(text: str, value: float) -> None:
    assert seconds(text) == value


def test_an_invalid_time_is_refused_with_examples() -> None:
    with pytest.raises(UsageError, match="invalid time 'soon'") as error:
        seconds("soon")
    assert "90min" in error.value.hint


@pytest.mark.parametrize(
    ("words", "hours", "limits"),
    [
        ((), 3, (3, 10)),
        ((), 600, (3, 600)),
        (("--spot",), 600, (10, 60)),
        (("--spot", "--attempts", "2", "--replacements", "0"), 600, (2, 0)),
        (("--attempts", "5"), 3, (5, 10)),
    ],
)
def test_the_losses_of_a_run_are_limited_by_its_size(
    words: tuple[str, ...], hours: int, limits: tuple[int, int]
) -> None:
    parser = ArgumentParser()
    arguments(parser)
    options = parser.parse_args(("run", "--provider", "aws", "--all", *words))
    assert loss_limits(options, workers=6, worker_seconds=hours * 3600.0) == limits


def test_an_unknown_run_is_an_error(feedstock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["-C", str(feedstock), "fleet", "status", "r9"]) == UsageError.exit_code
    assert "fleet run 'r9' not found in the ledger" in capsys.readouterr().err


def test_the_status_of_a_repaired_ledger_names_the_sweep(feedstock: Path, capsys: pytest.CaptureFixture[str]) -> None:
    run = FleetRun(id="r1", provider="aws", type="t", started=1.0, finished=None, number=1, lives=True)
    path = feedstock / "build_artifacts" / "ledger.sqlite"
    with FleetLedger(path) as ledger:
        ledger.begin_fleet(run)
    assert cli.run(["-C", str(feedstock), "fleet", "status", "--json"]) == 0
    output = capsys.readouterr()
    assert (json.loads(output.out)[0]["id"], "sweep" in output.err) == ("r1", False)
    path.write_bytes(b"SQLite format 3\0" + b"damaged" * 1000)
    assert cli.run(["-C", str(feedstock), "fleet", "status"]) == 0
    assert pasteable("kiln fleet sweep --provider PROVIDER", feedstock) in capsys.readouterr().err


@pytest.fixture
def home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a home without a table of prices, for a user of no cloud."""
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "home"))
    for name in ("AWS_REGION", "OS_AUTH_URL", "OS_CLOUD", "OS_REGION_NAME"):
        monkeypatch.delenv(name, raising=False)
    return tmp_path / "home"


SPOT = {
    "AvailabilityZone": "eu-west-1a",
    "InstanceType": "c7i.4xlarge",
    "ProductDescription": "Linux/UNIX",
    "SpotPrice": "0.28",
    "Timestamp": "2026-11-20T10:04:33+00:00",
}


def test_a_plan_is_made_with_the_prices_of_its_region_or_not_at_all(
    feedstock: Path, home: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["-C", str(feedstock), "fleet", "plan", "--provider", "aws", "--all", "--json"]
    assert cli.run(plan) == 0
    selection = json.loads(capsys.readouterr().out)["chosen"]
    assert (selection["machine_type"]["region"], selection["currency"]) == ("us-east-1", "USD")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    assert cli.run(plan) == UsageError.exit_code
    assert "no price of c7i.4xlarge in aws's region 'eu-west-1' is known" in capsys.readouterr().err
    own = Price(
        provider="aws",
        region="eu-west-1",
        kind="on-demand",
        name="c7i.4xlarge",
        price=0.765,
        unit="hour",
        currency="USD",
        date="2026-11-20",
        source="a test",
    )
    price_table.write(home / "kiln" / "prices.csv", [own])
    assert cli.run(plan) == 0
    assert json.loads(capsys.readouterr().out)["chosen"]["machine_type"]["hourly"] == 0.765
    assert cli.run([*plan, "--spot"]) == UsageError.exit_code
    assert "no spot price of c7i.4xlarge in eu-west-1" in capsys.readouterr().err
    lists = home / "spot.json"
    lists.write_text(json.dumps({"SpotPriceHistory": [SPOT]}))
    assert cli.run(["fleet", "prices", "--from", str(lists)]) == 0
    assert f"1 prices read, 2 are in {home / 'kiln' / 'prices.csv'}" in capsys.readouterr().err
    assert cli.run([*plan, "--spot"]) == 0
    selection = json.loads(capsys.readouterr().out)["chosen"]
    assert (selection["spot"], selection["machine_type"]["spot_hourly"]) == (True, 0.28)


def test_the_prices_are_shown_with_their_sources(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert cli.run(["fleet", "prices", "--provider", "openstack", "--json"]) == 0
    rows = json.loads(capsys.readouterr().out)
    assert {row["provider"] for row in rows} == {"openstack"}
    assert all(row["source"] and row["date"] for row in rows)
    assert cli.run(["fleet", "prices"]) == 0
    assert "c8i.8xlarge" in capsys.readouterr().out
    assert cli.run(["fleet", "prices", "--prices", str(home / "missing.csv")]) == UsageError.exit_code


@pytest.mark.parametrize(
    ("environment", "region"),
    [
        ({}, "OVH"),
        ({"OS_CLOUD": "ovh-builds"}, "OVH"),
        ({"OS_AUTH_URL": "https://auth.cloud.ovh.net/v3", "OS_REGION_NAME": "GRA11"}, "OVH"),
        ({"OS_AUTH_URL": "https://auth.cloud.ovh.net/v3", "OS_REGION_NAME": "EU-WEST-PAR"}, "OVH 3AZ"),
        ({"OS_AUTH_URL": "https://keystone.example.org:5000/v3"}, "keystone.example.org"),
        ({"OS_AUTH_URL": "https://notovh.net/v3"}, "notovh.net"),
        ({"OS_CLOUD": "elastx"}, "elastx"),
    ],
)
def test_an_openstack_that_is_not_ovh_s_has_not_its_prices(environment: dict[str, str], region: str) -> None:
    assert region_of(Namespace(provider="openstack", vars=[]), environment) == region


def test_the_region_of_aws_is_that_of_the_playbooks(tmp_path: Path) -> None:
    file = tmp_path / "vars.yml"
    file.write_text("kiln_aws_region: eu-west-3\n")
    tagged = tmp_path / "tagged.yml"
    tagged.write_text("kiln_aws_region: eu-west-3\npassword: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  3132\n")
    assert region_of(Namespace(provider="aws", vars=[tagged]), {}) == "eu-west-3"
    secret = tmp_path / "secret.yml"
    secret.write_text("$ANSIBLE_VAULT;1.1;AES256\n3132\n")
    options = Namespace(provider="aws", vars=[file, secret])
    assert region_of(options, {"AWS_REGION": "us-west-2"}) == "eu-west-3"
    assert region_of(Namespace(provider="aws", vars=[secret]), {"AWS_REGION": "us-west-2"}) == "us-west-2"
    assert region_of(Namespace(provider="aws", vars=[]), {}) == "us-east-1"
    assert region_of(Namespace(provider="static", vars=[]), {}) == "here"


@pytest.mark.usefixtures("home")
def test_a_plan_takes_a_type_that_is_large_enough_for_every_config(
    feedstock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["-C", str(feedstock), "fleet", "plan", "--provider", "aws", "--all", "--json"]
    (feedstock / "fleet-sizes.yml").write_text("- match: {cuda_compiler_version: '12.9'}\n  memory: 100\n")
    assert cli.run(plan) == 0
    data = json.loads(capsys.readouterr().out)
    assert data["chosen"]["machine_type"]["type"] == "compute-64"
    assert {job["size"]["memory"] for job in data["estimates"]} == {0.0, 100.0}
    assert cli.run([*plan, "--type", "compute-16"]) == UsageError.exit_code
    assert "needs 100 GB of memory, and compute-16 has 16 cores, 32 GB" in capsys.readouterr().err


@pytest.mark.usefixtures("home")
def test_a_plan_names_what_is_taken_where_the_provider_refuses_and_what_losses_cost(
    feedstock: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    plan = ["-C", str(feedstock), "fleet", "plan", "--provider", "aws", "--all"]
    words = ["--zone", "us-east-1b,us-east-1c", "--fallback", "c6i.4xlarge,c7a.4xlarge"]
    assert cli.run([*plan, *words, "--json"]) == 0
    terms = json.loads(capsys.readouterr().out)["terms"]
    offers = [(offer["machine_type"]["name"], offer["zone"]) for offer in terms["offers"]]
    assert offers == [(f"{kind}.4xlarge", f"us-east-1{zone}") for kind in ("c7i", "c6i", "c7a") for zone in "bc"]
    assert terms["lifetime"] == 86400.0
    assert cli.run([*plan, *words]) == 0
    output = capsys.readouterr().out
    assert "first   compute-16 (c7i.4xlarge) in us-east-1b" in output
    assert "else    c7a.4xlarge in us-east-1c, " in output
    hours = terms["replacements"]
    assert f"losses  {hours} lost workers are replaced, which costs {terms['losses']:.2f} USD more at most" in output
    assert cli.run([*plan, "--workers", "1", "--json"]) == 0
    alone = json.loads(capsys.readouterr().out)
    assert alone["terms"]["lifetime"] == 2 * alone["chosen"]["seconds"] > 86400.0, "it would end in the last builds"

    (feedstock / "fleet-sizes.yml").write_text("- memory: 20\n")
    assert cli.run([*plan, "--fallback", "compute-8"]) == UsageError.exit_code
    assert "the fall-back compute-8 is too small for" in capsys.readouterr().err
    (tmp_path / "vars.yml").write_text("kiln_lifetime: 3600\n")
    assert cli.run([*plan, "--vars", str(tmp_path / "vars.yml")]) == UsageError.exit_code
    assert "invalid kiln_lifetime '3600'" in capsys.readouterr().err


@pytest.mark.parametrize(
    ("words", "error"),
    [
        (("--provider", "slurm", "--type", "compute-16"), "--type is no option of --provider slurm"),
        (("--provider", "slurm", "--cache", "static"), "--cache is no option of --provider slurm"),
        (("--provider", "slurm", "--budget", "3"), "--budget is no option of --provider slurm"),
        (("--provider", "slurm", "--slurm-cores", "0"), "--slurm-cores is 0"),
        (("--provider", "slurm", "--slurm-partition", "a b"), "invalid name 'a b' in --slurm-partition"),
        (("--provider", "slurm", "--slurm-option=--wrap=id"), "--wrap of sbatch is set by kiln"),
        (("--provider", "aws", "--slurm-folder", "/s"), "--slurm-folder is no option of --provider aws"),
        (("--provider", "local", "--zone", "a"), "--zone is no option of --provider local"),
        (("--provider", "slurm", "--fallback", "job"), "--fallback is no option of --provider slurm"),
        (("--provider", "aws", "--fallback", "on-demand"), "--fallback on-demand needs --spot"),
        (("--provider", "aws", "--fallback", "c7.huge"), "aws has no machine type 'c7.huge'"),
    ],
)
def test_options_of_another_provider_are_refused(
    feedstock: Path, capsys: pytest.CaptureFixture[str], words: tuple[str, ...], error: str
) -> None:
    assert cli.run(["-C", str(feedstock), "fleet", "plan", "--all", *words]) == UsageError.exit_code
    assert error in capsys.readouterr().err


def test_the_plan_of_a_cluster_has_the_size_of_its_jobs_and_costs_nothing(
    feedstock: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    words = ["fleet", "plan", "--provider", "slurm", "--all", "--json", "--slurm-cores", "32", "--slurm-memory", "64GB"]
    assert cli.run(["-C", str(feedstock), *words]) == 0
    plan = json.loads(capsys.readouterr().out)
    kind = plan["chosen"]["machine_type"]
    assert (kind["provider"], kind["cores"], kind["memory"], plan["chosen"]["cost"]) == ("slurm", 32, 64.0, 0.0)
    assert plan["bounds"]["workers"] == len(plan["estimates"]), "a scheduler takes all configs at once"
    assert plan["bound"] == "nothing is charged for these workers"


def test_jobs_of_slurm_may_have_sizes_of_their_own(feedstock: Path) -> None:
    (feedstock / "fleet-sizes.yml").write_text("- {cores: 64, memory: 500, time_limit: 8h}\n")
    assert cli.run(["-C", str(feedstock), "fleet", "plan", "--provider", "slurm", "--all"]) == 0
