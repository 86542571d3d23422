"""A run is looked for where it began: in another region its workers would count as gone, and run on."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest

from kiln.base import bootstrap
from kiln.base.errors import UsageError
from kiln.cli.fleet import site as fleet_site
from kiln.cli.fleet.site import playbook_site, record_region, run_folder
from kiln.recipe.feedstock import Feedstock


@pytest.fixture(autouse=True)
def _environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "ensure_fleet_environment", lambda *_, **__: Path("/bin/python3"))
    for name in ("AWS_REGION", "OS_REGION_NAME", "OS_AUTH_URL", "OS_CLOUD"):
        monkeypatch.delenv(name, raising=False)


def options_of(*files: Path) -> Any:
    return SimpleNamespace(vars=list(files), image=[], container=None, poll="5s")


def environment_of(folder: Path, provider: str, *files: Path) -> dict[str, str]:
    site = playbook_site(options_of(*files), Feedstock(root=folder), "r1", provider)
    return dict(site.environment)


def begin(folder: Path, provider: str, *files: Path) -> None:
    record_region(options_of(*files), run_folder(Feedstock(root=folder), "r1"), provider)


@pytest.mark.parametrize(("provider", "name"), [("aws", "AWS_REGION"), ("openstack", "OS_REGION_NAME")])
def test_a_run_is_torn_down_in_the_region_in_which_it_began(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, provider: str, name: str
) -> None:
    monkeypatch.setenv(name, "there")
    begin(tmp_path, provider)
    monkeypatch.delenv(name)
    assert environment_of(tmp_path, provider)[name] == "there", "as when the tear-down is in another shell"
    monkeypatch.setenv(name, "elsewhere")
    with pytest.raises(UsageError, match=f"the fleet run r1 is in there, and {name} is elsewhere") as error:
        environment_of(tmp_path, provider)
    assert f"set {name}=there" in error.value.hint


def test_a_run_of_the_default_region_is_not_looked_for_in_another(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    begin(tmp_path, "aws")
    assert environment_of(tmp_path, "aws")["AWS_REGION"] == "us-east-1"
    monkeypatch.setenv("AWS_REGION", "eu-west-1")
    with pytest.raises(UsageError, match="is in us-east-1"):
        environment_of(tmp_path, "aws")


def test_a_region_in_a_file_of_variables_counts(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "vars.yml").write_text("kiln_aws_region: eu-south-2\n")
    monkeypatch.setenv("AWS_REGION", "eu-west-1")  # the file prevails
    begin(tmp_path, "aws", tmp_path / "vars.yml")
    monkeypatch.delenv("AWS_REGION")
    assert environment_of(tmp_path, "aws")["AWS_REGION"] == "eu-south-2", "the tear-down does not need the file"


def test_another_cloud_is_refused_and_an_earlier_run_has_none(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("OS_AUTH_URL", "https://auth.one.example.org/v3")
    assert "OS_REGION_NAME" not in environment_of(tmp_path, "openstack"), "of a kiln that stored none"
    begin(tmp_path, "openstack")
    monkeypatch.setenv("OS_AUTH_URL", "https://auth.two.example.org/v3")
    with pytest.raises(UsageError, match="is in https://auth"):
        environment_of(tmp_path, "openstack")
    assert environment_of(tmp_path, "aws"), "another provider has no part in it"


def test_a_run_that_begins_stores_its_region_and_one_that_is_resumed_does_not_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(fleet_site, "worker_build_variables", lambda _: {})
    monkeypatch.setenv("AWS_REGION", "eu-west-1")

    def begin_run(previous: object) -> dict[str, str]:
        run_config: Any = SimpleNamespace(previous_run=previous, key="k", lease=1.0, lifetime=2.0)
        site = playbook_site(options_of(), Feedstock(root=tmp_path), "r1", "aws", run_config=cast("Any", run_config))
        return dict(site.environment)

    begin_run(None)
    stored = tmp_path / "build_artifacts" / "fleet" / "r1" / "region.json"
    assert json.loads(stored.read_text())["place"] == {"AWS_REGION": "eu-west-1"}
    monkeypatch.delenv("AWS_REGION")
    assert begin_run("a run")["AWS_REGION"] == "eu-west-1"


def test_ansible_gets_the_name_of_a_user_whom_the_system_does_not_know() -> None:
    environment = {"LOGNAME": "uid4321", "HOME": "/tmp/home", "API_TOKEN": "x", "OS_CLOUD": "ovh", "PATH": "/bin"}
    passed = fleet_site.playbook_environment(environment, Path("/fleet/bin/python"))
    assert passed == {
        "LOGNAME": "uid4321",
        "HOME": "/tmp/home",
        "OS_CLOUD": "ovh",
        "PATH": "/fleet/bin:/bin",
        "LC_ALL": "C.UTF-8",
    }
