"""The site of a run: the executor's secrets, the region in which it began, and when quotas are asked for."""

from __future__ import annotations

import base64
import json
from pathlib import Path

import pytest

from kiln.base import bootstrap
from kiln.base.errors import UsageError
from kiln.cli.fleet import site
from kiln.fleet.options import FleetOptions
from kiln.recipe.feedstock import Feedstock, load
from tests import small_tensorflow
from tests.fleets import fleet_options, run_config

RUN = ("run", "--provider", "aws")
URL = "grpcs://e.example.org:443/main"
ROOT = Path(__file__).parents[4]
SERVING = ROOT / "serving"


def test_builds_get_the_address_and_the_content_of_the_credentials_as_secrets(tmp_path: Path) -> None:
    (tmp_path / "headers").write_text("authorization: Bearer t0ken\n")
    (tmp_path / "headers").chmod(0o600)
    words = ("--remote-executor", URL, "--remote-credentials", str(tmp_path), "--remote-jobs", "64")
    options = fleet_options(*RUN, *words)
    secrets = site.executor_secret_variables(options)
    assert secrets["BAZEL_REMOTE_EXECUTOR"] == URL
    credentials = json.loads(base64.b64decode(secrets["BAZEL_REMOTE_CREDENTIALS"]))
    assert credentials == {"headers": [["authorization", "Bearer t0ken"]]}
    assert options.job_options == ("--remote-jobs", "64")
    given = fleet_options(*RUN, environment=secrets)
    assert site.executor_secret_variables(given) == secrets, "a controller has them as variables"
    assert site.executor_secret_variables(fleet_options(*RUN)) == {}


def test_a_feedstock_whose_recipe_has_no_use_for_an_executor_is_refused() -> None:
    feedstock = load(SERVING)
    names = (min(path.stem for path in (SERVING / ".ci_support").glob("*.yaml")),)
    site.require_recipe_support(feedstock, names, fleet_options(*RUN))
    with pytest.raises(UsageError, match="--remote-executor"):
        site.require_recipe_support(feedstock, names, fleet_options(*RUN, "--remote-executor", URL))
    small = load(small_tensorflow.FIXTURE)
    config = next(path.stem for path in sorted((small_tensorflow.FIXTURE / ".ci_support").glob("linux_64_*.yaml")))
    site.require_recipe_support(small, (config,), fleet_options(*RUN, "--remote-executor", URL))


@pytest.fixture
def _no_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "ensure_fleet_environment", lambda *_, **__: Path("/bin/python3"))


def environment_of(folder: Path, provider: str, **environment: str) -> dict[str, str]:
    options = FleetOptions(environment=environment)
    return dict(site.playbook_site(options, Feedstock(root=folder), "r1", provider).environment)


def begin(folder: Path, provider: str, **environment: str) -> None:
    site.record_region(FleetOptions(environment=environment), site.run_folder(Feedstock(root=folder), "r1"), provider)


@pytest.mark.usefixtures("_no_environment")
@pytest.mark.parametrize(
    ("provider", "name", "began", "place"),
    [
        ("aws", "AWS_REGION", {"AWS_REGION": "there"}, "there"),
        ("aws", "AWS_REGION", {}, "us-east-1"),
        ("openstack", "OS_REGION_NAME", {"OS_REGION_NAME": "there"}, "there"),
        ("openstack", "OS_AUTH_URL", {"OS_AUTH_URL": "https://one.example.org/v3"}, "https://one.example.org/v3"),
    ],
)
def test_a_run_is_looked_for_where_it_began(
    tmp_path: Path, provider: str, name: str, began: dict[str, str], place: str
) -> None:
    """In another region its workers would count as gone, and run on."""
    assert name not in environment_of(tmp_path, provider), "of a kiln that stored none"
    begin(tmp_path, provider, **began)
    assert environment_of(tmp_path, provider)[name] == place, "as when the tear-down is in another shell"
    with pytest.raises(UsageError, match=f"the fleet run r1 is in {place}, and {name} is elsewhere") as error:
        environment_of(tmp_path, provider, **{name: "elsewhere"})
    assert f"set {name}={place}" in error.value.hint
    assert environment_of(tmp_path, "local", **{name: "elsewhere"}), "another provider has no part in it"


@pytest.mark.usefixtures("_no_environment")
def test_a_region_in_a_file_of_variables_prevails(tmp_path: Path) -> None:
    options = FleetOptions(variables={"kiln_aws_region": "eu-south-2"}, environment={"AWS_REGION": "eu-west-1"})
    site.record_region(options, site.run_folder(Feedstock(root=tmp_path), "r1"), "aws")
    assert environment_of(tmp_path, "aws")["AWS_REGION"] == "eu-south-2", "the tear-down does not need the file"


@pytest.mark.usefixtures("_no_environment")
def test_a_run_that_begins_stores_its_region_and_one_that_is_resumed_does_not_change_it(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(site, "worker_build_variables", lambda *_: {})

    def begin_run(previous: object, **environment: str) -> str:
        config = run_config((), previous_run=previous, key="k")
        options = FleetOptions(environment=environment)
        begun = site.playbook_site(options, Feedstock(root=tmp_path), "r1", "aws", run_config=config)
        return begun.environment["AWS_REGION"]

    begin_run(None, AWS_REGION="eu-west-1")
    stored = tmp_path / "build_artifacts" / "fleet" / "r1" / "region.json"
    assert json.loads(stored.read_text())["place"] == {"AWS_REGION": "eu-west-1"}
    assert begin_run("a run") == "eu-west-1"


def test_ansible_gets_the_name_of_a_user_whom_the_system_does_not_know() -> None:
    environment = {"LOGNAME": "uid4321", "HOME": "/tmp/home", "API_TOKEN": "x", "OS_CLOUD": "ovh", "PATH": "/bin"}
    passed = site.playbook_environment(environment, Path("/fleet/bin/python"))
    assert passed == {
        "LOGNAME": "uid4321",
        "HOME": "/tmp/home",
        "OS_CLOUD": "ovh",
        "PATH": "/fleet/bin:/bin",
        "LC_ALL": "C.UTF-8",
    }


@pytest.mark.parametrize(
    ("provider", "environment", "known"),
    [
        ("aws", {"AWS_PROFILE": "kiln"}, True),
        ("aws", {"AWS_REGION": "us-east-1"}, False),
        ("aws", {"OS_CLOUD": "ovh"}, False),
        ("openstack", {"OS_CLOUD": "ovh"}, True),
        ("openstack", {"OS_AUTH_URL": ""}, False),
        ("aws", {"AWS_DEFAULT_PROFILE": "kiln"}, True),
        ("local", {"AWS_PROFILE": "kiln", "OS_CLOUD": "ovh"}, False),
    ],
)
def test_quotas_are_asked_for_where_the_environment_names_credentials(
    provider: str, environment: dict[str, str], known: bool
) -> None:
    assert site.has_credentials(provider, environment) is known


@pytest.mark.parametrize(
    ("file", "text", "known"),
    [
        ("credentials", "[default]\naws_access_key_id = AKIA\naws_secret_access_key = x\n", True),
        ("config", "[profile kiln]\nrole_arn=arn:aws:iam::1:role/kiln\nsource_profile = default\n", True),
        ("config", "[sso-session one]\n  sso_start_url = https://one.example.org\n", True),
        ("config", "[default]\nregion = us-east-1\n# aws_access_key_id = AKIA\n", False),
    ],
)
def test_the_files_of_aws_count_where_a_profile_has_credentials(
    tmp_path: Path, file: str, text: str, known: bool
) -> None:
    place = tmp_path / ".aws" / file
    place.parent.mkdir()
    place.write_text(text)
    variable = "AWS_CONFIG_FILE" if file == "config" else "AWS_SHARED_CREDENTIALS_FILE"
    assert site.has_credentials("aws", {"HOME": str(tmp_path)}) is known
    assert site.has_credentials("aws", {variable: str(place)}) is known
    assert site.has_credentials("aws", {"HOME": str(tmp_path), variable: str(tmp_path / "none")}) is False
    assert site.has_credentials("openstack", {"HOME": str(tmp_path)}) is False
