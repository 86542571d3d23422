"""The key of a detached run, what its controller gets, and what its program allows."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from kiln.base.errors import BrokenPackage, CredentialsRefused, MachinesUnknown, ProvisionRefused, UsageError
from kiln.fleet.ansible.playbooks import PlaybookResult
from kiln.fleet.detached import controller, follow
from kiln.fleet.detached.controller import HOME, ConfigInputHashes, ControllerSettings, RunKey, ssh_command_line
from kiln.recipe.feedstock import Feedstock
from tests.playbook_programs import CONTROLLER_PROGRAMS, load

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


@pytest.mark.parametrize(
    ("answers", "waited", "error"),
    [
        (["(HTTP 503)", ""], [20.0], None),
        (["(HTTP 503)"] * 9, [20.0, 40.0, 80.0, 160.0, 320.0], ProvisionRefused),
        (["Quota exceeded for cores"], [], ProvisionRefused),
        (["(HTTP 403)"], [], CredentialsRefused),
    ],
)
def test_a_controller_is_requested_again_where_the_provider_s_fault_passes(
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    answers: list[str],
    waited: list[float],
    error: type[Exception] | None,
) -> None:
    delays: list[float] = []

    class Playbooks:
        def __init__(self, _: object) -> None: ...

        def run_playbook(self, name: str, **_: object) -> PlaybookResult:
            reason = answers.pop(0) if name == "provision.yml" else ""
            return PlaybookResult(ok=not reason, reasons={"localhost": reason})

    monkeypatch.setattr(controller, "PlaybookRunner", Playbooks)
    monkeypatch.setattr("time.sleep", delays.append)
    site: Any = SimpleNamespace(folder=tmp_path)
    with pytest.raises(error) if error else contextlib.nullcontext():
        controller.provision_controller(site, "r1", kind="controller", say=lambda _: None)
    assert delays == waited


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
    assert (words[-1], options["User"]) == ("192.0.2.7", "kiln")
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
        client.fetch_exported_files(tmp_path / "new", {"state.json": None, "a": 10, "b": 4096})
    assert (tmp_path / "new" / "a.conda").stat().st_size <= 4096


def state_of(config: str = "cpu", subdir: str = "linux-64", name: str = "a-1-0.conda", size: object = 10) -> Any:
    package = {"artifact": {"subdir": subdir, "path": f"/there/{subdir}/{name}", "size": size}}
    return {"report": {"configs": [{"config": config, "packages": [package]}]}}


def test_what_was_announced_is_fetched_and_nothing_else() -> None:
    always = {"state.json", "output.log", "playbooks.log"}
    assert follow.announced_files({"report": None}).keys() == always
    files = follow.announced_files(state_of())
    assert files.keys() - always == {"logs/cpu.log", "logs/cpu.test.log", "packages/linux-64/a-1-0.conda"}
    assert {name: size for name, size in files.items() if size is not None} == {"packages/linux-64/a-1-0.conda": 10}


@pytest.mark.parametrize(
    "state",
    [
        *(state_of(size=size) for size in (-1, "1", True, None, 1.5)),
        *(state_of(config=config) for config in ("../cpu", "", "-r", "a\nb")),
        *(state_of(name=name) for name in ("a", "-a-1-0.conda", "a-1-0.conda\nb")),
        state_of(subdir="linux-64/../.."),
        {"report": ["a"]},
        {"report": {"configs": [{}]}},
        {},
    ],
)
def test_an_invalid_state_is_refused(state: Any) -> None:
    with pytest.raises(BrokenPackage):
        follow.announced_files(state)


@pytest.mark.processes
def test_an_answer_that_does_not_end_is_cut_off(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "ssh").write_text("#!/bin/sh\nexec cat /dev/zero\n")
    (tmp_path / "ssh").chmod(0o755)
    monkeypatch.setattr(controller, "LONGEST_ANSWER", 1 << 20)
    client = controller.ControllerClient(KEY, ("ssh", "host"), {"PATH": f"{tmp_path}:/usr/bin:/bin"})
    with pytest.raises(MachinesUnknown):
        client.run_state()


ROOT = Path(__file__).parents[4]
PROGRAM = f"{CONTROLLER_PROGRAMS}/kiln-controller"


@pytest.mark.parametrize(
    ("words", "allowed"),
    [
        ("--server --sender -tre.iLsfxCIvu --timeout=120 . export/", True),
        ("--server --sender -tre.LsfxCIvu --partial . export/", True),
        ("--server -tre.iLsfxCIvu . export/", False),  # it would receive
        ("--server --sender -tre.iLsfxCIvu . /etc/", False),
        ("--server --sender -tre.iLsfxCIvu . export/ /etc/", False),
        ("--server --sender -tre.iLsfxCIvu . ../", False),
        ("--server --sender -tsre.iLsfxCIvu . export/", False),  # -s: further arguments from its input
        ("--server --sender -tLre.iLsfxCIvu . export/", False),  # -L: what links point to
        ("--server --sender -tre.iLsfxCIvu --log-file=/var/lib/kiln/.ssh/rc . export/", False),
        ("--server --sender -tre.iLsfxCIvu --remove-source-files . export/", False),
        ("--server --sender -tRe.LsfxCIvu --files-from=/etc/shadow --from0 . export/", False),
    ],
)
def test_rsync_may_send_the_folder_of_results_and_nothing_else(words: str, allowed: bool) -> None:
    assert load(PROGRAM).may_send(words.split(" ")) is allowed


@pytest.mark.processes
@pytest.mark.skipif(shutil.which("rsync") is None, reason="rsync is not installed")
def test_the_controller_sends_what_the_client_asks_for_and_no_file_beside_it(tmp_path: Path) -> None:
    """The real rsync asks, and the other end, behind the gate's rule, sends with what it has been asked for."""
    export, beside = tmp_path / "there" / "export", tmp_path / "there" / "secret"
    export.mkdir(parents=True)
    (export / "linux-64").mkdir()
    (export / "linux-64" / "a-1-0.conda").write_bytes(b"package")
    beside.write_text("secret")
    asked, ssh = tmp_path / "asked", tmp_path / "ssh"
    ssh.write_text(f'#!/bin/sh\nshift\nprintf "%s" "$*" >{asked}\ncd {export.parent}\nexec "$@"\n')
    ssh.chmod(0o755)
    client = controller.ControllerClient(KEY, (str(ssh), "host"), {"PATH": os.environ["PATH"]})
    wanted = {"linux-64/a-1-0.conda": 7, "gone": None, "../secret": None, str(beside): None}
    client.fetch_exported_files(tmp_path / "here", wanted)
    words = asked.read_text().split(" ")
    assert words[0] == "rsync"
    assert load(PROGRAM).may_send(words[1:])
    assert [path.name for path in tmp_path.rglob("*") if path.is_file() and tmp_path / "here" in path.parents] == [
        "a-1-0.conda"
    ]


@pytest.mark.parametrize(
    "request_", ["", "sh", "state; id", "$(id)", "collected", "rsync --server . /", "install", "keep"]
)
def test_a_request_that_is_none_of_the_keys_is_refused(
    request_: str, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    program = load(PROGRAM)
    program.ENDED, program.STOP, program.COLLECTED = (tmp_path / name for name in ("ended", "stop", "collected"))
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", request_)
    with pytest.raises(SystemExit):
        program.gate()
    assert "does not allow" in capsys.readouterr().err
    assert list(tmp_path.iterdir()) == []


def test_a_run_that_goes_on_can_be_stopped_and_one_that_is_over_collected(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    program = load(PROGRAM)
    program.ENDED, program.STOP, program.COLLECTED = (tmp_path / name for name in ("ended", "stop", "collected"))
    program.FOLDER = tmp_path
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", "stop")
    program.gate()
    assert program.STOP.exists()
    program.ENDED.write_text('{"exit_code": 0, "ended": 1.0}')
    monkeypatch.setenv("SSH_ORIGINAL_COMMAND", "collected")
    assert program.is_over(1e12) is False
    assert program.is_over(1.0) is True, "nobody came in time"
    program.gate()
    assert program.is_over(1e12) is True


SENDER = """
import sys
from pathlib import Path
from tests.playbook_programs import load
program = load(sys.argv[1])
program.FOLDER = Path(sys.argv[2])
program.gate()
"""


@pytest.mark.processes
def test_the_machine_stays_until_all_that_fetch_the_results_have_them(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """The lock is that of the program which becomes rsync, here one that sends until its input ends."""
    program = load(PROGRAM)
    program.FOLDER = tmp_path
    program.ENDED, program.STOP, program.COLLECTED = (tmp_path / name for name in ("ended", "stop", "collected"))
    program.ENDED.write_text('{"exit_code": 0, "ended": 1.0}')
    rsync = tmp_path / "bin" / "rsync"
    rsync.parent.mkdir()
    rsync.write_text("#!/bin/sh\necho sending\nread line\n")
    rsync.chmod(0o755)
    request = "rsync --server --sender -tre.iLsfxCIvu --timeout=120 . export/"
    environment = {"PATH": f"{rsync.parent}:/usr/bin:/bin", "SSH_ORIGINAL_COMMAND": request}
    words = [sys.executable, "-c", SENDER, PROGRAM, str(tmp_path)]
    pipe = subprocess.PIPE
    with subprocess.Popen(words, stdin=pipe, stdout=pipe, cwd=ROOT, env=environment, text=True) as sender:
        assert sender.stdout is not None
        assert sender.stdout.readline() == "sending\n"
        monkeypatch.setenv("SSH_ORIGINAL_COMMAND", "collected")
        program.gate()
        assert json.loads(capsys.readouterr().out) == {"waits": True}
        assert program.is_over(1e12) is False, "another one still fetches"
        assert program.is_over(1.0) is True, "at the end of the time for it, it is cut off"
        sender.communicate("\n")
    program.gate()
    assert json.loads(capsys.readouterr().out) == {"waits": False}
    assert program.is_over(1e12) is True


@pytest.mark.processes
@pytest.mark.parametrize("text", ["plain", 'a "b" \\ c', "$HOME `id` $(id)", "tab\tand 'quotes'"])
def test_a_variable_is_quoted_as_systemd_and_a_shell_read_it(text: str) -> None:
    """systemd.exec(5): double quotes as in a POSIX shell."""
    words = ("sh", "-c", f'X={load(PROGRAM).quoted(text)}; printf %s "$X"')
    assert subprocess.run(words, check=True, capture_output=True, text=True).stdout == text


def test_files_are_written_for_their_reader_alone(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    program = load(PROGRAM)
    owners: list[tuple[str, str]] = []
    monkeypatch.setattr(program.shutil, "chown", lambda path, user, _: owners.append((Path(path).name, user)))
    (tmp_path / "secret").symlink_to(tmp_path / "elsewhere")
    program.write(tmp_path / "secret", "x", user="root")
    assert (tmp_path / "secret").read_text() == "x"
    assert not (tmp_path / "elsewhere").exists()
    assert (tmp_path / "secret").stat().st_mode & 0o777 == 0o600
    assert owners == [(".secret.new", "root")]


ENVIRONMENT = {
    "AWS_ACCESS_KEY_ID": "AKIA1",
    "AWS_SECRET_ACCESS_KEY": "secret-a",
    "AWS_BEARER_TOKEN_BEDROCK": "secret-b",
    "AWS_PROFILE": "work",
    "AWS_SHARED_CREDENTIALS_FILE": "/home/me/.aws/credentials",
    "OS_AUTH_URL": "https://cloud.example.org/v3",
    "OS_PASSWORD": "secret-o",
    "OS_CLOUD": "mine",
    "BINSTAR_TOKEN": "secret-t",
    "ANACONDA_API_TOKEN": "secret-t",
    "HOME": "/home/me",
}


@pytest.mark.parametrize(
    ("provider", "names"),
    [
        ("aws", {"AWS_ACCESS_KEY_ID", "AWS_SECRET_ACCESS_KEY"}),
        ("openstack", {"OS_AUTH_URL", "OS_PASSWORD"}),
        ("static", set()),
    ],
)
def test_only_the_providers_own_credentials_are_sent(provider: str, names: set[str]) -> None:
    variables, files = controller.credentials_to_send(provider, ENVIRONMENT)
    assert set(variables) == names
    assert files == {}


def test_credentials_in_files_are_refused_with_what_exports_them() -> None:
    with pytest.raises(UsageError, match="needs the credentials of aws") as error:
        controller.credentials_to_send("aws", {"AWS_PROFILE": "work"})
    assert "AWS_ACCESS_KEY_ID, AWS_SECRET_ACCESS_KEY is not set" in error.value.why
    assert "aws configure export-credentials" in error.value.hint


def test_a_certificate_is_sent_as_a_file(tmp_path: Path) -> None:
    authority = tmp_path / "ca.pem"
    authority.write_text("CERTIFICATE")
    variables, files = controller.credentials_to_send("openstack", {**ENVIRONMENT, "OS_CACERT": str(authority)})
    assert variables["OS_CACERT"] == f"{HOME}/certificates/OS_CACERT"
    assert files == {"certificates/OS_CACERT": "CERTIFICATE"}


def test_settings_do_not_show_their_secrets() -> None:
    settings = ControllerSettings(
        run="r",
        arguments=("fleet",),
        key="ssh-ed25519 A",
        keep=1.0,
        environment={"X": "secret-a"},
        files={"keys/0": "PRIVATE KEY"},
    )
    assert "secret-a" not in repr(settings)
    assert "PRIVATE" not in repr(settings)
    assert json.loads(settings.as_json())["environment"] == {"X": "secret-a"}
