"""``kiln fleet run --detach`` and its relatives, without a controller."""

from __future__ import annotations

import base64
import json
import os
import time
from pathlib import Path

import pytest
import yaml

from kiln.base import bootstrap, files, process
from kiln.base.errors import AlreadyRunning, MachinesUnknown, UsageError
from kiln.cli import main
from kiln.cli.fleet import detached, teardown
from kiln.cli.fleet.options import controller_charge
from kiln.cli.fleet.site import artifact_layout
from kiln.fleet import run
from kiln.fleet.detached import controller
from kiln.fleet.detached.controller import RunKey
from kiln.fleet.plan import run as fleet_plan
from kiln.recipe.feedstock import Feedstock, load
from tests.fleets import fleet_options

ROOT = Path(__file__).parents[4]


@pytest.mark.processes  # git, for the variables of builds
def test_the_settings_hold_no_token_and_no_files_of_the_home(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "BINSTAR_TOKEN", "ANACONDA_API_TOKEN", "AWS_PROFILE"):
        monkeypatch.setenv(name, f"value-of-{name}")
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_REGION", raising=False)
    monkeypatch.setenv("PIP_INDEX_URL", "https://me:word@pypi.example.org/simple")
    (tmp_path / "recipe").symlink_to(ROOT / "recipe")
    (tmp_path / ".ci_support").symlink_to(ROOT / ".ci_support")
    (tmp_path / "fleet-sizes.yml").write_text("- cores: 2\n")
    monkeypatch.setenv("BAZEL_REMOTE_EXECUTOR", "grpcs://other.example.org")
    (tmp_path / "c").mkdir()
    (tmp_path / "c" / "headers").write_text("authorization: Bearer t0ken\n")
    (tmp_path / "c" / "headers").chmod(0o600)
    executor = ("--remote-executor", "grpcs://e.example.org", "--remote-credentials", str(tmp_path / "c"))
    words = ("run", "--provider", "aws", "--all", "--detach", "--rebuild", *executor)
    options = fleet_options(*words, environment=os.environ)
    settings = detached.controller_settings(options, load(tmp_path), ["a", "b"], run="0a1b2c3d", key="ssh-ed25519 A")
    text = settings.as_json()
    assert "value-of-AWS_SECRET_ACCESS_KEY" in json.loads(text)["environment"].values()
    assert not [word for word in ("BINSTAR", "ANACONDA", "AWS_PROFILE") if word in text]
    assert settings.environment["KILN_FLEET_ID"] == "0a1b2c3d"
    charge = controller_charge(settings.environment)
    assert charge is not None
    assert (charge.name, charge.currency, charge.hourly > 0.0416) == ("t3.medium", "USD", True), "with its disk"
    assert time.time() - charge.since < 60
    assert settings.environment["PIP_INDEX_URL"].startswith("https://me:word@")
    assert settings.arguments == ("fleet", "run", "a", "b", "--provider=aws", "--json"), "what it collects it keeps"
    assert settings.environment["BAZEL_REMOTE_EXECUTOR"] == "grpcs://e.example.org"
    assert b"t0ken" in base64.b64decode(settings.environment["BAZEL_REMOTE_CREDENTIALS"]), "its content, no folder"
    assert settings.keep == 72 * 3600
    assert settings.feedstock == {"fleet-sizes.yml": "- cores: 2\n"}


def refuse_second(_: object, feedstock: Feedstock, *__: object) -> None:
    with (
        pytest.raises(AlreadyRunning),
        files.held_lock_file(artifact_layout(feedstock).common_lock_file("fleet-detach")),
    ):
        pytest.fail("another one could begin between the question and the start")
    raise AlreadyRunning("one is detached")


@pytest.mark.processes  # git, for the options of builds
def test_a_run_that_cannot_begin_gets_no_controller(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
    caplog: pytest.LogCaptureFixture,
) -> None:
    """Its offers are checked here: on the controller the fault would be found once that is paid for."""
    started: list[object] = []

    def start(*words: object) -> int:
        started.append(words)
        return 0

    monkeypatch.setattr(detached, "start_controller_run", start)
    monkeypatch.setattr(teardown, "playbook_site", lambda *_: None)
    machines: list[dict[str, object]] = []
    monkeypatch.setattr(run, "list_existing_workers", lambda _: machines)
    monkeypatch.setattr(process, "find_program", lambda *_, **__: None)
    monkeypatch.setenv("XDG_CONFIG_HOME", str(tmp_path / "config"))
    monkeypatch.delenv("AWS_REGION", raising=False)
    (tmp_path / "recipe").symlink_to(ROOT / "recipe")
    (tmp_path / ".ci_support").symlink_to(ROOT / ".ci_support")
    words = ["-C", str(tmp_path), "fleet", "run", "--provider", "aws", "--all", "--detach"]
    assert main.run([*words, "--fallback", "on-demand"]) == UsageError.exit_code
    assert "--fallback on-demand needs --spot" in capsys.readouterr().err
    assert started == []
    monkeypatch.setenv(
        "AWS_CREDENTIAL_EXPIRATION", time.strftime("%Y-%m-%dT%H:%M:%SZ", time.gmtime(time.time() + 3600))
    )
    assert main.run(words) == UsageError.exit_code
    assert "--detach needs credentials that last until the end of the run" in capsys.readouterr().err
    assert started == []
    plan = [*words[:3], "plan", *words[4:]]
    assert main.run(plan) == 0
    assert "kiln fleet run --detach will refuse these credentials: these expire in 1.0 h" in caplog.text
    caplog.clear()
    assert main.run(plan[:-1]) == 0
    assert caplog.text == "", "here they can be renewed"
    monkeypatch.delenv("AWS_CREDENTIAL_EXPIRATION")
    assert main.run(words) == 0
    assert len(started) == 1
    monkeypatch.setattr(teardown, "require_no_run_of_same_build", refuse_second)
    assert main.run(words) == AlreadyRunning.exit_code
    assert len(started) == 1, "nor does a second one"


def test_the_users_lifetime_of_workers_does_not_end_a_controller(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """It outlives the run by the time for which its packages are kept; the last file of variables prevails."""
    mine = tmp_path / "mine.yml"
    mine.write_text("kiln_lifetime: 3600\nkiln_machine_types: []\nkiln_aws_region: eu-west-1\n")
    monkeypatch.setattr(bootstrap, "ensure_fleet_environment", lambda *_, **__: Path("/python"))
    options = fleet_options("run", "--provider", "aws", "--detach", "--time-limit", "10h", "--vars", str(mine))
    site, kind = detached.controller_site_and_type(options, Feedstock(root=tmp_path), "0a1b2c3d")
    values: dict[str, object] = {**site.variables}
    for path in site.variable_files:
        values |= yaml.safe_load(path.read_text())
    assert values["kiln_lifetime"] == (10 + 24 + 72) * 3600
    assert values["kiln_machine_types"] == [fleet_plan.controller_type_row("aws")]
    assert (kind, values["kiln_aws_region"]) == (fleet_plan.CONTROLLER_TYPE, "eu-west-1")


@pytest.mark.parametrize(("begins", "removed"), [(False, ["controller"]), (True, ["controller", "workers at aws"])])
def test_a_start_that_fails_leaves_nothing_behind(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, begins: bool, removed: list[str]
) -> None:
    """A run that may have begun when its controller was removed has perhaps requested workers."""
    calls: list[str] = []
    key = RunKey(run="0a1b2c3d", provider="aws", machine="m", address="a", port=22, host_key="k", private_key="p")

    def fail(*_: object, **__: object) -> None:
        raise MachinesUnknown("the run could not be started on its controller")

    monkeypatch.setattr(controller, "create_ssh_key_pair", lambda *_: ("private", "public"))
    monkeypatch.setattr(controller, "provision_controller", (lambda *_, **__: None) if begins else fail)
    monkeypatch.setattr(controller, "run_key_of_prepared_controller", lambda *_: key)
    monkeypatch.setattr(controller, "start_run_on_controller", fail)
    monkeypatch.setattr(detached, "controller_settings", lambda *_, **__: None)
    monkeypatch.setattr(detached, "controller_site_and_type", lambda *_: ("site", "controller"))
    monkeypatch.setattr(detached, "playbook_site", lambda *words: words[3])
    monkeypatch.setattr(detached, "remove_controller", lambda *_: calls.append("controller"))
    monkeypatch.setattr(run, "tear_down_run", lambda site, _: calls.append(f"workers at {site}"))
    with pytest.raises(MachinesUnknown):
        detached.start_controller_run(
            fleet_options("run", "--provider", "aws", "--detach"), Feedstock(root=tmp_path), ()
        )
    assert calls == removed
    assert not list(tmp_path.rglob("key.json"))


@pytest.mark.parametrize("action", ["attach", "collect", "logs"])
def test_a_key_that_does_not_exist_is_named(action: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    words = ["-C", str(tmp_path), "fleet", action, "--key", str(tmp_path / "nothing")]
    assert main.run(words) == UsageError.exit_code
    assert f"{tmp_path / 'nothing'} is not the key of a detached run" in capsys.readouterr().err


@pytest.mark.parametrize("provider", ["aws", "openstack"])
def test_a_small_controller_is_a_row_as_those_of_the_playbooks_table(provider: str) -> None:
    path = ROOT / "ansible" / "group_vars" / "all" / "machine_types.yml"
    rows = yaml.safe_load(path.read_text())["kiln_machine_types"]
    assert set(fleet_plan.controller_type_row(provider)) == set(rows[0])
    assert fleet_plan.controller_type_row(provider)["provider"] == provider
    billed = {row["billed"] for row in rows if row["provider"] == provider}
    assert billed == {fleet_plan.controller_type_row(provider)["billed"]}
