"""Credentials of clouds that are missing or wrong."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from typing import TYPE_CHECKING
from urllib.request import Request, urlopen

import pytest
from moto.server import ThreadedMotoServer

from kiln.base.errors import CredentialsRefused, UnsupportedPython
from kiln.cli.fleet import detached
from kiln.fleet.model import WorkerState
from kiln.recipe.feedstock import load
from tests.fleets import fleet_options
from tests.integration.fleet.helpers import PLANTED, ROOT, assert_given_back, ledgered, words
from tests.openstack_api import Cloud, serve

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


KEYS = ("AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY", "AWS_SESSION_TOKEN", "AWS_PROFILE")
pytestmark = [
    pytest.mark.needs("docker", "ssh", "ssh-keygen", "rsync", "nginx"),
    pytest.mark.skipif(sys.version_info < (3, 11), reason=f"{UnsupportedPython.__name__}: Ansible needs Python 3.11"),
]


@pytest.fixture
def moto() -> Iterator[str]:
    """An AWS server without users: every call must be signed by a user, so every call is refused."""
    server = ThreadedMotoServer(port=0, verbose=False)
    server.start()
    host, port = server.get_host_and_port()
    before = calls_without_a_user(server, "0")
    yield f"http://{host}:{port}"
    calls_without_a_user(server, before)
    server.stop()


def calls_without_a_user(server: ThreadedMotoServer, number: str) -> str:
    """Let so many calls pass that nobody has signed; returns how many it were."""
    host, port = server.get_host_and_port()
    kind = {"Content-Type": "text/plain"}
    with urlopen(Request(f"http://{host}:{port}/moto-api/reset-auth", data=number.encode(), headers=kind)) as answer:
        return str(json.load(answer)["PREVIOUS_INITIAL_NO_AUTH_ACTION_COUNT"])


@pytest.fixture
def cloud() -> Iterator[Cloud]:
    """An OpenStack with another password."""
    yield from serve(Cloud(password="another"))


@pytest.mark.sampled
def test_no_credentials_are_told_as_such_and_leave_nothing(small: Path) -> None:
    """AWS without any credentials, on a computer that must not find some elsewhere."""
    nowhere = {"AWS_EC2_METADATA_DISABLED": "true", "AWS_SHARED_CREDENTIALS_FILE": "/dev/null"}
    assert "credentials" in refused_credentials(small, "aws", {}, AWS_CONFIG_FILE="/dev/null", **nowhere)


@pytest.mark.trial
def test_wrong_credentials_of_aws_are_told_as_such_and_leave_nothing(small: Path, moto: str) -> None:
    wrong = {"AWS_ACCESS_KEY_ID": "AKIANOBODY", "AWS_SECRET_ACCESS_KEY": PLANTED, "AWS_REGION": "us-east-1"}
    assert "InvalidClientTokenId" in refused_credentials(small, "aws", {"kiln_aws_endpoint": moto}, **wrong)


@pytest.mark.trial
def test_a_wrong_password_of_openstack_is_told_as_such_and_leaves_nothing(
    small: Path, cloud: Cloud, tmp_path: Path
) -> None:
    environment = {**cloud.environment(PLANTED), "XDG_CONFIG_HOME": str(tmp_path)}
    assert "HTTP 401" in refused_credentials(small, "openstack", {}, **environment)
    assert cloud.servers == {}


def refused_credentials(root: Path, provider: str, told: dict[str, str], **environment: str) -> str:
    """Run the fleet where nobody is let in: returns what is said of that, once it is seen that nothing is left."""
    file = root.parent / "told.json"
    file.write_text(json.dumps({"kiln_controller": "192.0.2.1", **told}))
    kept = {name: text for name, text in os.environ.items() if name not in KEYS and not name.startswith("OS_")}
    ended = subprocess.run(
        words(root, "run", "--all", "--provider", provider, "--vars", str(file)),
        cwd=ROOT,
        text=True,
        capture_output=True,
        env={**kept, **environment},
        check=False,
    )
    assert ended.returncode == CredentialsRefused.exit_code, ended.stderr
    assert "does not accept the credentials" in ended.stderr
    assert PLANTED not in ended.stderr
    (run,) = ledgered(root)
    assert {worker.state for worker in run.workers} == {WorkerState.REFUSED}
    assert_given_back(root)
    return ended.stderr


@pytest.mark.trial
def test_a_detached_controller_gets_what_it_needs_of_a_vault_and_no_password(
    small: Path, tmp_path: Path, fleet_python: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """By Ansible's own programs: a file that is encrypted as a whole, and one with encrypted values."""
    password, whole, values = tmp_path / "password", tmp_path / "whole.yml", tmp_path / "values.yml"
    password.write_text("planted-password\n")
    monkeypatch.setenv("ANSIBLE_VAULT_PASSWORD_FILE", str(password))
    monkeypatch.setenv("OS_AUTH_URL", "https://cloud.example.org/v3")
    whole.write_text(json.dumps({"kiln_openstack_network": "inner", "index_word": "word-1", "release": "planted-1"}))

    def vault(*words: str, text: str = "") -> str:
        argv = (str(fleet_python.with_name("ansible-vault")), *words)
        return subprocess.run(argv, check=True, capture_output=True, text=True, input=text).stdout

    vault("encrypt", str(whole))
    inline = [vault("encrypt_string", "--stdin-name", name, text=f"planted-{name}") for name in ("kiln_pip", "token")]
    values.write_text("\n".join(["kiln_aws_tags: '{{ token }}'", "kiln_run_user: '{{ index_word }}'", *inline]))
    words = ("run", "--provider", "openstack", "--detach", "--vars", str(whole), "--vars", str(values))
    options = fleet_options(*words, environment=os.environ)
    settings = detached.controller_settings(options, load(small), ["c"], run="0a1b2c3d", key="ssh-ed25519 A")
    assert json.loads(settings.files["vars/0.yml"]) == {"kiln_openstack_network": "inner"}
    assert json.loads(settings.files["vars/1.yml"]) == {"kiln_pip": "planted-kiln_pip"}
    text = settings.as_json()
    assert not [word for word in ("planted-1", "planted-token", "planted-password", "VAULT", "word-1") if word in text]
