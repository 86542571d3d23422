"""The credential by which a worker deletes itself: what it may, where it is, and the clouds that do not restrict it."""

from __future__ import annotations

import ssl
import sys
import types
from pathlib import Path

import certifi
import jinja2
import pytest
import yaml

from kiln.fleet.ansible import openstack_account
from tests.playbook_programs import ANSIBLE

SERVER = "https://compute.gra11.cloud.ovh.net/v2.1/0123/servers/5ff7"
RULE = {"service": "compute", "method": "DELETE", "path": "/v2.1/0123/servers/5ff7"}


def test_the_rule_is_the_deletion_of_one_server_by_the_path_of_its_address() -> None:
    assert openstack_account.access_rule(SERVER) == RULE


@pytest.mark.parametrize(
    ("rules", "restricted"),
    [
        ([{**RULE, "id": "1"}], True),
        (None, False),
        ([], False),
        ([RULE, RULE], False),
        ([{**RULE, "path": "/v2.1/0123/servers/*"}], False),
        ([{**RULE, "method": "GET"}], False),
    ],
)
def test_a_credential_with_other_rules_than_the_one_is_not_taken(
    rules: list[dict[str, str]] | None, restricted: bool
) -> None:
    assert openstack_account.is_restricted(rules, RULE) is restricted


@pytest.mark.parametrize(
    "address", ["https://a:5000", "https://a:5000/v3/", "https://a:5000/v2.0", "https://a:5000/v3"]
)
def test_keystone_is_asked_in_its_third_version(address: str) -> None:
    assert openstack_account.identity_address(address) == "https://a:5000/v3"


def test_a_bundle_of_certificates_may_have_comments_in_any_script(tmp_path: Path) -> None:
    known = certifi.where()
    bundle = tmp_path / "bundle.pem"
    bundle.write_bytes("# NetLock Arany (Class Gold) Főtanúsítvány\n".encode() + Path(known).read_bytes())
    context = ssl.create_default_context(cadata=openstack_account.certificates(bundle))
    assert context.cert_store_stats() == ssl.create_default_context(cafile=known).cert_store_stats()
    with pytest.raises(openstack_account.RefusedCredential, match="cannot be read"):
        openstack_account.certificates(tmp_path)


def test_the_credential_of_a_server_that_was_created_after_the_list_is_kept(monkeypatch: pytest.MonkeyPatch) -> None:
    exceptions = types.ModuleType("openstack.exceptions")
    exceptions.HttpException = OSError  # type: ignore[attr-defined]
    monkeypatch.setitem(sys.modules, "openstack", types.ModuleType("openstack"))
    monkeypatch.setitem(sys.modules, "openstack.exceptions", exceptions)
    credentials = object.__new__(openstack_account.Credentials)
    rows = [
        types.SimpleNamespace(
            id=server,
            name=server,
            description=f"deletes server {server} at a of run {run} of kiln",
            project_id="p",
            access_rules=(),
        )
        for server, run in (("listed", "one"), ("new", "two"), ("gone", "two"), ("left", "one"))
    ]
    revoked: list[str] = []
    credentials.identity = types.SimpleNamespace(
        application_credentials=lambda _: rows, delete_application_credential=lambda _, key: revoked.append(key)
    )
    credentials.servers = types.SimpleNamespace(find_server={"new": object()}.get)
    credentials.user, credentials.project, credentials.place, credentials.run = "u", "p", "a", "one"
    assert credentials.revoke_all_but([{"id": "listed"}], everywhere=False) == ["left"]
    assert credentials.revoke_all_but([{"id": "listed"}], everywhere=True) == ["gone", "left"]
    assert revoked == ["left", "gone", "left"]


def test_a_time_is_written_as_keystone_reads_it() -> None:
    assert openstack_account.moment(1_790_000_000) == "2026-09-21T14:13:20.000000Z"


@pytest.mark.parametrize(
    "note", ["deletes server a at b of run c of kiln", "deletes server a of run c of kiln", "mine"]
)
def test_only_kilns_own_credentials_are_known_as_such(note: str) -> None:
    match = openstack_account.NOTE.fullmatch(note)
    assert (match is not None) is (" at b " in note)


@pytest.mark.parametrize(
    ("result", "reason"),
    [
        ({"names": [], "refused": ""}, ""),
        ({"names": [], "refused": "Keystone answered 403"}, "Keystone answered 403"),
        ({"failed": False, "msg": "Keystone answered 500"}, "Keystone answered 500"),
        ({"failed": False}, "the module ended with an error"),
    ],
)
def test_workers_are_provisioned_where_their_credentials_fail_and_the_run_says_so(
    result: dict[str, object], reason: str
) -> None:
    tasks = yaml.safe_load((ANSIBLE / "roles/kiln_openstack/tasks/create.yml").read_text())
    create, note = (
        next(task for task in tasks if task["name"].startswith(name))
        for name in ("Create the credentials", "Record that the workers cannot")
    )
    assert create["failed_when"] is False, "workers that exist would be left out of the answer"
    template = jinja2.Environment(autoescape=True).from_string(note["vars"]["kiln_openstack_reason"])
    assert template.render(kiln_openstack_credentials=result) == reason


@pytest.mark.parametrize("name", ["remove", "tidy"])
def test_credentials_are_revoked_once_nothing_is_left_that_is_charged_for(name: str) -> None:
    tasks = yaml.safe_load((ANSIBLE / f"roles/kiln_openstack/tasks/{name}.yml").read_text())
    assert ["kiln_run" in task for task in tasks] == [*(len(tasks) - 1) * [False], True]
