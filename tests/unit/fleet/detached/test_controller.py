"""The key of a detached run: what it holds, who can read it, and what is not taken from one."""

from __future__ import annotations

import contextlib
import dataclasses
import json
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BrokenPackage, MachinesUnknown, UsageError
from kiln.fleet.detached import controller, follow
from kiln.fleet.detached.controller import ConfigInputHashes, RunKey, ssh_command_line
from kiln.recipe.feedstock import Feedstock

if TYPE_CHECKING:
    from pathlib import Path

KEY = RunKey(
    run="0a1b2c3d",
    provider="static",
    machine="kiln-0a1b2c3d-controller",
    address="192.0.2.7",
    port=2222,
    host_key="ssh-ed25519 AAAA",
    private_key="-----BEGIN OPENSSH PRIVATE KEY-----\n",
    options={"ProxyJump": "gate"},
    inputs={"linux_64_": ConfigInputHashes(group="cpu", shared="1", key="2")},
)


def test_a_key_is_read_as_it_was_written_and_only_by_its_owner(tmp_path: Path) -> None:
    path = tmp_path / "run" / "key.json"
    KEY.write_key_file(path)
    assert path.stat().st_mode & 0o777 == 0o600
    assert controller.read_run_key(path) == KEY
    assert controller.read_run_key(path.parent) == KEY
    assert "PRIVATE KEY" not in repr(KEY)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"run": "../../x"}, "invalid run"),
        ({"address": "-oProxyCommand=touch /tmp/x"}, "invalid address"),
        ({"address": "a b"}, "invalid address"),
        ({"host_key": "ssh-ed25519 AAAA\n* ssh-ed25519 BBBB"}, "host key"),
        ({"options": {"ProxyCommand": "touch /tmp/x"}}, "unknown options of ssh: ProxyCommand"),
        ({"options": {"ProxyJump": "gate;touch /tmp/x"}}, "invalid ProxyJump 'gate;touch /tmp/x'"),
        ({"options": {"ProxyJump": "$(touch x)"}}, "invalid ProxyJump"),
        ({"options": {"ProxyJump": "-oProxyCommand=x"}}, "invalid ProxyJump"),
    ],
)
def test_a_key_that_would_run_commands_here_is_refused(tmp_path: Path, change: dict[str, object], fault: str) -> None:
    path = tmp_path / "key.json"
    dataclasses.replace(KEY, **change).write_key_file(path)  # type: ignore[arg-type]
    with pytest.raises(UsageError) as error:
        controller.read_run_key(path)
    assert fault in error.value.why


@pytest.mark.parametrize(
    "jump", ["gate", "%r@gate", "me@gate.example.org:2222,ssh://me@192.0.2.1:22", "[2001:db8::1]:22"]
)
def test_a_key_with_the_ways_that_ssh_takes_is_read(tmp_path: Path, jump: str) -> None:
    key = dataclasses.replace(KEY, options={"ProxyJump": jump, "AddressFamily": "inet6"})
    key.write_key_file(tmp_path / "key.json")
    assert controller.read_run_key(tmp_path / "key.json") == key


@pytest.mark.parametrize("text", ["", "{}", "[]", '{"run": 1}'])
def test_a_file_that_is_no_key_is_refused_with_where_keys_are(tmp_path: Path, text: str) -> None:
    path = tmp_path / "key.json"
    path.write_text(text)
    with pytest.raises(UsageError, match="is not the key of a detached run") as error:
        controller.read_run_key(path)
    assert "--detach" in error.value.hint


def test_the_only_run_needs_no_name_and_several_do(tmp_path: Path) -> None:
    feedstock = Feedstock(root=tmp_path)
    with pytest.raises(UsageError, match="no detached fleet run"):
        controller.key_of_run(feedstock, None)
    for run in ("0a1b2c3d", "ffffffff"):
        dataclasses.replace(KEY, run=run).write_key_file(feedstock.artifacts / "fleet" / run / controller.NAME)
        if run == KEY.run:
            assert controller.key_of_run(feedstock, None) == KEY
    with pytest.raises(UsageError) as error:
        controller.key_of_run(feedstock, None)
    assert "0a1b2c3d, ffffffff" in error.value.hint
    assert controller.key_of_run(feedstock, "0a1b2c3d") == KEY


def test_ssh_uses_this_key_this_host_key_and_nothing_of_the_user(tmp_path: Path) -> None:
    words = ssh_command_line(KEY, private=tmp_path / "key", hosts=tmp_path / "hosts")
    options = dict(word[2:].split("=", 1) for word in words if word.startswith("-o"))
    assert words[:3] == ("ssh", "-F", "/dev/null")
    assert words[-3:] == ("-l", "kiln", "192.0.2.7")
    assert (options["StrictHostKeyChecking"], options["IdentitiesOnly"], options["IdentityAgent"]) == (
        "yes",
        "yes",
        "none",
    )
    assert (options["Port"], options["ProxyJump"]) == ("2222", "gate")
    assert "PRIVATE" not in json.dumps(words)


@pytest.mark.processes
@pytest.mark.parametrize(("size", "is_taken"), [(4096, True), (4097, False), (10**6, False)])
def test_a_controller_that_sends_more_than_it_announced_is_stopped(size: int, is_taken: bool, tmp_path: Path) -> None:
    words = f"#!/bin/sh\nfor target; do :; done\nhead -c {size} /dev/zero >$target/a.conda\n"
    (tmp_path / "rsync").write_text(words)
    (tmp_path / "rsync").chmod(0o755)
    client = controller.ControllerClient(KEY, ("ssh", "host"), {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    with (
        pytest.MonkeyPatch.context() as patch,
        contextlib.nullcontext() if is_taken else pytest.raises(MachinesUnknown),
    ):
        patch.setattr(controller, "LONGEST_LOG", 1024)
        client.fetch_exported_files(tmp_path / "new", sizes=[10, 4096])
    assert (tmp_path / "new" / "a.conda").stat().st_size <= 4096


@pytest.mark.parametrize("size", [-1, "1", True, None, 1.5])
def test_sizes_that_are_none_are_refused(size: object) -> None:
    state = {"report": {"configs": [{"packages": [{"artifact": {"size": size}}]}]}}
    with pytest.raises(BrokenPackage):
        follow.announced_sizes(state)
    invalid: tuple[dict[str, Any], ...] = ({"report": ["a"]}, {"report": {"configs": [{}]}}, {})
    for broken in invalid:
        with pytest.raises(BrokenPackage):
            follow.announced_sizes(broken)
    assert follow.announced_sizes({"report": None}) == []
