"""Runs that are resumed and torn down from another terminal, by what they began with."""

from __future__ import annotations

import argparse
import os
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import UsageError
from kiln.cli import main
from kiln.cli.fleet import fleet, resume, teardown
from kiln.cli.fleet.arguments import add_arguments
from kiln.cli.fleet.options import parse_options
from kiln.cli.fleet.site import artifact_layout
from kiln.fleet import run as fleet_run
from kiln.fleet.model import FleetRun
from kiln.fleet.options import FleetOptions
from kiln.fleet.records import FleetLedger
from kiln.recipe.feedstock import Feedstock

if TYPE_CHECKING:
    from pathlib import Path

RUN = FleetRun(id="r1", provider="aws", type="t", started=1.0, finished=None, number=0, lives=False)


def parsed(words: list[str], environment: dict[str, str] | None = None) -> FleetOptions:
    parser = argparse.ArgumentParser()
    add_arguments(parser)
    return parse_options(parser.parse_args(words), environment or {})


@pytest.fixture
def folder(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    """Return a feedstock, which is the current folder, with the files that options name."""
    monkeypatch.setattr(resume, "may_be_of_checkout", lambda _: False)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "meta.yaml").write_text("package: {name: small, version: 1}\n")
    (tmp_path / "more.yml").write_text("kiln_account_user: ann\n")
    (tmp_path / "image.tar").write_text("")
    (tmp_path / "prices.csv").write_text("")
    monkeypatch.chdir(tmp_path)
    return tmp_path


@pytest.mark.parametrize(
    "words",
    [
        ["run", "--provider", "aws", "--vars", "more.yml", "--zone", "us-east-1a,us-east-1b", "--zone", "us-east-1c"],
        ["run", "--provider", "aws", "--spot", "--fallback", "c6i.4xlarge,on-demand", "--lease", "45min"],
        ["run", "--provider", "aws", "--gpu-tests", "--gpu-type", "gpu-l4,gpu-t4", "--prices", "prices.csv"],
        ["run", "--provider", "local", "--image", "image.tar=tag:1", "--time-limit", "2h", "--cost-limit", "4.5"],
        ["run", "--provider", "slurm", "--slurm-folder", ".", "--slurm-memory", "64GB", "--slurm-time", "90min"],
        ["run", "--provider", "slurm", "--slurm-folder", ".", "--slurm-option=--constraint=a", "--keep-going"],
        ["test", "--provider", "aws", "--gpu", "--type", "gpu-l4", "--type", "gpu-t4"],
    ],
)
def test_a_run_is_resumed_from_another_folder_with_all_of_its_options(
    folder: Path, monkeypatch: pytest.MonkeyPatch, words: list[str]
) -> None:
    began = parsed([*words, "--all"])
    resume.store_command(began, Feedstock(root=folder), "r1", ["one", "two"])
    resume.store_command(FleetOptions(provider="local"), Feedstock(root=folder), "r1", ["of a later stage"])
    monkeypatch.chdir("/")
    namespace, environment = resume.command_of_run(Feedstock(root=folder), "r1", {})
    again = parse_options(namespace, environment)
    assert namespace.configs == ["one", "two"]
    assert again.words == began.words
    assert [path.name for path in again.vars] == [path.name for path in began.vars]
    paths = {"vars": (), "prices": None, "slurm": None}
    assert FleetOptions(**{**vars_of(again), **paths}) == FleetOptions(**{**vars_of(began), **paths})
    assert str(getattr(again.slurm, "folder", folder)) == str(folder)


def vars_of(options: FleetOptions) -> dict[str, Any]:
    return {name: getattr(options, name) for name in FleetOptions.__dataclass_fields__}


@pytest.mark.parametrize(
    ("began", "now", "expected"),
    [
        ({"AWS_PROFILE": "a", "AWS_SECRET_ACCESS_KEY": "secret"}, {}, {"AWS_PROFILE": "a"}),
        ({"AWS_ENDPOINT_URL": "http://fake"}, {}, {"AWS_ENDPOINT_URL": "http://fake"}),
        ({"AWS_PROFILE": "a"}, {"AWS_PROFILE": "b"}, {"AWS_PROFILE": "b"}),
        ({"AWS_PROFILE": "a"}, {"AWS_ACCESS_KEY_ID": "k"}, {"AWS_ACCESS_KEY_ID": "k"}),
    ],
)
def test_a_lost_terminal_s_place_of_the_credentials_is_kept_and_no_secret(
    folder: Path, began: dict[str, str], now: dict[str, str], expected: dict[str, str]
) -> None:
    resume.store_command(FleetOptions(provider="aws", environment=began), Feedstock(root=folder), "r1", ())
    assert "secret" not in (folder / "build_artifacts" / "fleet" / "r1" / resume.FILE).read_text()
    made = resume.options_of_run(FleetOptions(environment=now), Feedstock(root=folder), "r1")
    assert (made.provider, dict(made.environment)) == ("aws", expected)


def test_a_run_is_torn_down_with_its_own_variables_even_without_its_ledger(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    resume.store_command(parsed(["run", "--provider", "aws", "--vars", "more.yml"]), Feedstock(root=folder), "r1", ())
    assert main.run(["-C", str(folder), "fleet", "status", "r1"]) == UsageError.exit_code
    assert "fleet resume r1 finds its workers" in capsys.readouterr().err
    seen: list[tuple[FleetOptions, str]] = []
    monkeypatch.setattr(teardown, "playbook_site", lambda options, _, __, provider: seen.append((options, provider)))
    monkeypatch.setattr(fleet_run, "tear_down_run", lambda *_: None)
    assert main.run(["-C", str(folder), "fleet", "down", "r1"]) == 0
    ((options, provider),) = seen
    (folder / "more.yml").rename(folder / "moved.yml")
    assert main.run(["-C", str(folder), "fleet", "down", "r1"]) == UsageError.exit_code
    assert "fleet down r1 --vars FILE names another file" in capsys.readouterr().err
    assert main.run(["-C", str(folder), "fleet", "down", "r1", "--vars", "moved.yml"]) == 0
    assert [options.variables for options, _ in seen] == [{"kiln_account_user": "ann"}] * 2
    assert (options.vars, options.variables, provider) == (
        (folder / "more.yml",),
        {"kiln_account_user": "ann"},
        "aws",
    )


def test_resume_runs_the_command_that_began_the_run(
    folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    (folder / ".ci_support").mkdir()
    (folder / ".ci_support" / "one.yaml").write_text("target_platform:\n- linux-64\n")
    assert main.run(["-C", str(folder), "fleet", "resume", "r1"]) == UsageError.exit_code
    assert "fleet run 'r1' not found" in capsys.readouterr().err
    began = parsed(["run", "--provider", "aws", "--workers", "3"])
    resume.store_command(began, Feedstock(root=folder), "r1", ["one"])
    with FleetLedger(artifact_layout(Feedstock(root=folder)).ledger) as ledger:
        ledger.begin_fleet(RUN)
    seen: list[tuple[Any, ...]] = []

    def run(options: FleetOptions, _: Feedstock, names: tuple[str, ...]) -> int:
        seen.append((options.provider, options.workers, names, options.environment.get("HOME")))
        return 0

    monkeypatch.setattr(fleet, "run_fleet", run)
    assert main.run(["-C", str(folder), "fleet", "resume", "r1"]) == 0
    assert seen == [("aws", 3, ("one",), os.environ.get("HOME"))]


@pytest.mark.parametrize(
    "text", ['{"words": 3}', '{"words": ["run", "--lease"]}', '{"words": ["walk"]}', '{"words": [1]}', "{}"]
)
def test_a_damaged_command_is_named(folder: Path, capfd: pytest.CaptureFixture[str], text: str) -> None:
    file = folder / "build_artifacts" / "fleet" / "r1" / resume.FILE
    file.parent.mkdir(parents=True)
    file.write_text(text)
    assert main.run(["-C", str(folder), "fleet", "resume", "r1"]) == UsageError.exit_code
    told = capfd.readouterr().err
    assert f"{file} is damaged" in told
    assert "usage" not in told
