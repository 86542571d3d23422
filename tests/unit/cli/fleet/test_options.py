"""The options of ``kiln fleet``: what is invalid or has no effect is refused before anything is contacted."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.base.text import duration_seconds
from kiln.cli import main
from kiln.cli.fleet import detached, fleet, slurm, teardown, tests
from kiln.cli.fleet import site as fleet_site
from kiln.fleet.plan.prices import price_region
from kiln.recipe import feedstock as recipe_feedstock
from tests.fleets import fleet_options

if TYPE_CHECKING:
    from pathlib import Path

EXECUTOR = "grpcs://e.example.org:443/main"


@pytest.mark.parametrize(("text", "value"), [("10h", 36000.0), ("90min", 5400.0), ("45 s", 45.0), ("1.5", 5400.0)])
def test_times_are_hours_unless_they_have_a_unit(text: str, value: float) -> None:
    assert duration_seconds(text) == value


@pytest.mark.parametrize(
    ("words", "error"),
    [
        ("run --provider aws --lease soon", "invalid time 'soon'"),
        ("run --provider aws --poll soon", "invalid time 'soon'"),
        ("run --provider aws --capacity-timeout soon", "invalid time 'soon'"),
        ("run --provider aws --unreachable-timeout soon", "invalid time 'soon'"),
        ("plan --provider aws --time-limit soon", "invalid time 'soon'"),
        ("run --provider aws --detach --keep soon", "invalid time 'soon'"),
        ("sweep --provider aws --every soon", "invalid time 'soon'"),
        ("run --provider aws --cost-limit x", "invalid amount of money 'x'"),
        ("test --provider aws --cost-limit=-1", "invalid amount of money '-1'"),
        ("run --provider aws --image a=b", "invalid image 'a=b'"),
        ("run --provider aws --vars absent.yml", "absent.yml cannot be read"),
        ("plan --provider aws --prices absent.csv", "absent.csv not found"),
        ("plan --provider aws --gpu-type gpu-l4", "--gpu-type requires --gpu-tests"),
        ("run --provider openstack --gpu-tests", "tests on a GPU need an image with NVIDIA's driver"),
        ("test --provider openstack --gpu", "tests on a GPU need an image with NVIDIA's driver"),
        # options of other providers
        ("plan --provider slurm --type compute-16", "--type is not an option of --provider slurm"),
        ("plan --provider slurm --cache static", "--cache is not an option of --provider slurm"),
        ("plan --provider slurm --cost-limit 3", "--cost-limit is not an option of --provider slurm"),
        ("plan --provider slurm --fallback job", "--fallback is not an option of --provider slurm"),
        ("run --provider slurm --additional", "--additional is not an option of --provider slurm"),
        ("run --provider static --capacity-timeout 2h", "--capacity-timeout is not an option of --provider static"),
        ("plan --provider local --zone a", "--zone is not an option of --provider local"),
        ("plan --provider static --spot", "--spot is not an option of --provider static"),
        ("test --provider openstack --spot", "--spot is not an option of --provider openstack"),
        ("plan --provider aws --slurm-folder /s", "--slurm-folder is not an option of --provider aws"),
        # those of Slurm
        ("plan --provider slurm --slurm-cores 0", "--slurm-cores is 0"),
        ("plan --provider slurm --slurm-time soon", "invalid time 'soon'"),
        ("plan --provider slurm --slurm-partition a/b", "invalid name 'a/b' of a partition"),
        ("plan --provider slurm --slurm-option=--wrap=id", "--wrap of sbatch is set by kiln"),
        # zones of another region
        ("plan --provider aws --zone eu-west-1a,eu-central-1b", "the zone eu-central-1b is not in eu-west-1"),
        ("plan --provider openstack --zone nova,gra11", "gra11 is a region, and no zone"),
        # a detached run
        ("run --provider slurm --detach", "--detach requires --provider aws, openstack or static"),
        ("run --provider local --detach", "--detach requires --provider"),
        ("run --provider static --detach", "requires --controller HOST"),
        ("run --provider aws --controller h", "--controller requires --detach"),
        ("run --provider aws --controller-type t", "--controller-type requires --detach"),
        ("run --provider aws --keep 2h", "--keep requires --detach"),
        # a remote executor
        ("run --provider aws --remote-jobs 4", "--remote-jobs requires --remote-executor"),
        ("run --provider aws --remote-fallback", "--remote-fallback requires --remote-executor"),
        (f"run --provider aws --remote-executor {EXECUTOR} --cache c", "--cache cannot be used with --remote-executor"),
        ("run --provider aws --remote-executor grpcs://u:p$'w@e", "characters that cannot be passed"),
    ],
)
def test_a_fault_of_the_options_is_found_before_anything_is_contacted(
    words: str, error: str, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for module in (fleet_site, fleet, teardown, tests, detached):
        monkeypatch.setattr(module, "playbook_site", lambda *_, **__: pytest.fail("a provider is contacted"))
    monkeypatch.setattr(slurm, "slurm_run_site", lambda *_: pytest.fail("Slurm is contacted"))
    monkeypatch.setattr(recipe_feedstock, "load", lambda _: pytest.fail("a feedstock is read"))
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    monkeypatch.setenv("OS_REGION_NAME", "GRA11")
    assert main.run(["fleet", *words.split()]) == UsageError.exit_code
    message = capsys.readouterr().err
    assert error in message
    assert "p$'w" not in message


def test_images_stay_here_when_a_run_is_detached(tmp_path: Path) -> None:
    (tmp_path / "a").touch()
    with pytest.raises(UsageError, match="--image cannot be used with --detach"):
        fleet_options("run", "--provider", "aws", "--detach", "--image", f"{tmp_path}/a=b")


def test_the_controllers_run_gets_the_options_of_this_one() -> None:
    words = ("--provider", "aws", "--all", "--detach", "--type", "compute-48", "--spot", "--cost-limit", "40", "--json")
    more = ("--time-limit", "10h", "--keep", "2h", "--poll", "1s", "--type", "a", "--zone", "us-east-1a,us-east-1b")
    options = fleet_options("run", *words, *more, "CONFIG")
    assert options.controller_words == (
        "--provider=aws",
        "--type=compute-48",
        "--type=a",
        "--spot",
        "--time-limit=36000.0s",
        "--poll=1.0s",
        "--zone=us-east-1a,us-east-1b",
        "--cost-limit=40.0",
    )
    again = fleet_options("run", *options.controller_words)
    for name in ("types", "zones", "spot", "cost_limit", "time_limit", "poll", "lease"):
        assert getattr(again, name) == getattr(options, name), name


def test_a_controller_names_its_run_as_it_was_told() -> None:
    words = ("run", "--provider", "aws")
    assert fleet_options(*words, environment={"KILN_FLEET_ID": "0a1b2c3d"}).own_run == "0a1b2c3d"
    for name in ("", "../x", "0A1B2C3D"):
        assert fleet_options(*words, environment={"KILN_FLEET_ID": name}).own_run == ""


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
    options = fleet_options("run", "--provider", "aws", *words)
    assert options.loss_limits(workers=6, worker_seconds=hours * 3600.0) == limits


@pytest.mark.parametrize(
    ("environment", "region"),
    [
        ({}, "OVH"),
        ({"OS_CLOUD": "ovh-builds"}, "OVH"),
        ({"OS_AUTH_URL": "https://auth.cloud.ovh.net/v3", "OS_REGION_NAME": "GRA11"}, "OVH"),
        ({"OS_AUTH_URL": "https://auth.cloud.ovh.net/v3", "OS_REGION_NAME": "EU-WEST-PAR"}, "OVH 3AZ"),
        ({"OS_CLOUD": "ovh", "OS_REGION_NAME": "eu-west-lz-bru-a"}, "OVH EU-WEST-LZ-BRU-A"),
        ({"OS_AUTH_URL": "https://keystone.example.org:5000/v3"}, "keystone.example.org"),
        ({"OS_AUTH_URL": "https://notovh.net/v3"}, "notovh.net"),
        ({"OS_CLOUD": "elastx"}, "elastx"),
    ],
)
def test_an_openstack_that_is_not_ovh_s_has_not_its_prices(environment: dict[str, str], region: str) -> None:
    assert price_region(fleet_options("plan", "--provider", "openstack", environment=environment)) == region


def test_the_region_of_aws_is_that_of_the_playbooks(tmp_path: Path) -> None:
    def region(*files: Path, provider: str = "aws", **environment: str) -> str:
        words = [word for file in files for word in ("--vars", str(file))]
        return price_region(fleet_options("plan", "--provider", provider, *words, environment=environment))

    file, tagged, secret = (tmp_path / name for name in ("vars.yml", "tagged.yml", "secret.yml"))
    file.write_text("kiln_aws_region: eu-west-3\n")
    tagged.write_text("kiln_aws_region: eu-west-3\npassword: !vault |\n  $ANSIBLE_VAULT;1.1;AES256\n  3132\n")
    secret.write_text("$ANSIBLE_VAULT;1.1;AES256\n3132\n")
    assert region(tagged) == "eu-west-3"
    assert region(file, secret, AWS_REGION="us-west-2") == "eu-west-3"
    assert region(secret, AWS_REGION="us-west-2") == "us-west-2"
    assert (region(), region(provider="static")) == ("us-east-1", "here")
