"""Machine types: the tables of them, existing hosts, and the choice for each config."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import MalformedYaml, UsageError
from kiln.cli import main
from kiln.fleet.ansible import existing_hosts
from kiln.fleet.plan import choice
from kiln.fleet.plan.choice import host_type_name, types_of_existing_hosts
from kiln.fleet.plan.plan import FleetLimits, plan_fleet
from kiln.fleet.plan.run import machine_type_table
from kiln.state.results import JobSize
from tests.fleets import MACHINE, estimates, fleet_options
from tests.unit.feedstock.test_sizes import SMALL
from tests.unit.fleet.plan.test_plan import SOME

if TYPE_CHECKING:
    from pathlib import Path

UNKNOWN = dataclasses.replace(MACHINE, provider="static", type="static", cores=0, memory=0.0, disk=0.0, hourly=0.0)
BIG = {"address": "big", "cores": 64, "memory": 256, "gpus": 1}
SMALL_HOSTS: list[dict[str, Any]] = [{"address": f"s{number}", "cores": 16, "memory": 32.5} for number in range(3)]


def test_hosts_of_one_size_are_of_one_type_of_which_there_are_so_many() -> None:
    big, small, unknown = types_of_existing_hosts([BIG, *SMALL_HOSTS, {"address": "x"}], UNKNOWN)
    assert (big.type, big.cores, big.memory, big.disk, big.gpus, big.limit) == (
        "static-64cores-256memory-1gpus",
        64,
        256.0,
        0.0,
        1,
        1,
    )
    assert (small.type, small.limit) == ("static-16cores-32.5memory", 3)
    assert unknown == dataclasses.replace(UNKNOWN, limit=1)
    assert types_of_existing_hosts(None, UNKNOWN) == [UNKNOWN], "an encrypted list is not known here"


def test_no_existing_hosts_are_planned_that_nobody_names() -> None:
    with pytest.raises(UsageError, match="no existing machine is named") as caught:
        machine_type_table(fleet_options("plan", "--provider", "static"))
    assert "--vars FILE" in caught.value.hint


@pytest.mark.parametrize("host", [BIG, *SMALL_HOSTS, {"address": "x"}, {"disk": 100, "memory": 0}])
def test_the_playbooks_name_types_in_the_same_way(host: dict[str, Any]) -> None:
    assert existing_hosts.type_name(host) == host_type_name(host)


@pytest.mark.parametrize("value", ["64", -1, True, 1e9, None])
def test_an_invalid_size_of_a_host_is_refused(value: object) -> None:
    with pytest.raises(UsageError, match="of the host h in kiln_static_hosts"):
        types_of_existing_hosts([{"address": "h", "memory": value}], UNKNOWN)


def test_each_config_goes_to_a_host_that_holds_it_and_no_host_is_idle() -> None:
    first, *rest = estimates(7, hours=1, warm=0.5, groups=7)
    jobs = [dataclasses.replace(first, size=JobSize(gpus=1)), *rest]
    kinds = dict.fromkeys(types_of_existing_hosts([BIG, *SMALL_HOSTS], UNKNOWN), jobs)
    made = plan_fleet(kinds, assumptions=SOME, bounds=FleetLimits(workers=4), optimize="time")
    types = {job.config: job.type for job in made.estimates}
    assert types["config00"] == "static-64cores-256memory-1gpus"
    assert sorted(kind.type for kind in made.selection.worker_types) == [
        *["static-16cores-32.5memory"] * 3,
        "static-64cores-256memory-1gpus",
    ]


def test_a_plan_that_no_host_holds_is_refused_with_the_config_and_its_need(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    root, hosts = tmp_path / "small", tmp_path / "hosts.json"
    for name in (".ci_support", "recipe"):
        (root / name).mkdir(parents=True)
        for file in (SMALL / name).iterdir():
            if file.is_file():
                (root / name / file.name).write_bytes(file.read_bytes())
    (root / "conda-forge.yml").write_bytes((SMALL / "conda-forge.yml").read_bytes())
    (root / "fleet-sizes.yml").write_text("- match: {cuda_compiler_version: '12.9'}\n  memory: 300\n")
    hosts.write_text(json.dumps({"kiln_static_hosts": [BIG, *SMALL_HOSTS]}))
    words = ["-C", str(root), "fleet", "plan", "--provider", "static", "--vars", str(hosts), "--all", "--json"]
    assert main.run(words) == UsageError.exit_code
    error = capsys.readouterr().err
    assert "large enough for linux_64_cuda_compiler_version12.9interpreter3.11" in error
    assert "it needs 300 GB of memory, and static-64cores-256memory-1gpus has 64 cores, 256 GB of memory" in error
    hosts.write_text(json.dumps({"kiln_static_hosts": [{**BIG, "memory": 512}, *SMALL_HOSTS]}))
    assert main.run(words) == 0
    data = json.loads(capsys.readouterr().out)
    types = {job["type"] for job in data["estimates"] if "12.9" in job["config"]}
    assert types == {"static-64cores-512memory-1gpus"}


ROW = """
- {provider: cloud, type: small, flavor: t3.small, cores: 2, memory: 2, disk: 8, gpus: 0, gpu: ""}
"""


def test_machine_types_are_selected_by_provider_and_name(tmp_path: Path) -> None:
    path = tmp_path / "machine_types.yml"
    path.write_text(f"kiln_machine_types:{ROW}{ROW.replace('small, ', 'large, ', 1)}")
    table = choice.read_machine_types(path)
    selection = choice.select_types_by_name(table, provider="cloud", types=("large", "small"))
    assert [machine_type.type for machine_type in selection] == ["large", "small"]
    assert (table[0].name, table[0].billed, table[0].gpus) == ("t3.small", 1.0, 0)
    (by_flavor,) = choice.select_types_by_name(table, provider="cloud", types=("t3.small",))
    assert by_flavor.type == "small", "of two types of a flavor the first"
    with pytest.raises(UsageError, match="cloud has no machine type 'huge'"):
        choice.select_types_by_name(table, provider="cloud", types=("huge",))
    with pytest.raises(UsageError, match="unknown provider 'clou'") as unknown:
        choice.select_types_by_name(table, provider="clou", types=("large",))
    assert "did you mean 'cloud'?" in unknown.value.hint


@pytest.mark.parametrize("text", ["[", "a: b", "kiln_machine_types:\n- {provider: x}\n"])
def test_an_invalid_table_is_refused(text: str, tmp_path: Path) -> None:
    path = tmp_path / "machine_types.yml"
    path.write_text(text)
    with pytest.raises(MalformedYaml, match="is not a table of machine types"):
        choice.read_machine_types(path)
