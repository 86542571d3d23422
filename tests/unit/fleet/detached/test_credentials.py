"""The variables and hosts that a controller gets, and credentials that have to last."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from kiln.base import masking, process
from kiln.base.errors import UsageError
from kiln.base.process import ProcessResult
from kiln.fleet.detached import credentials
from kiln.fleet.detached.controller import HOME
from kiln.fleet.detached.credentials import (
    VaultDecryption,
    require_lasting_credentials,
    static_host_from_user_ssh,
    variable_files_to_send,
    variables_read_by_playbooks,
)

ANSIBLE = Path(__file__).parents[4] / "ansible"


class Reversed(VaultDecryption):
    """A Vault whose texts are encrypted by being reversed, after its header."""

    def __init__(self) -> None:
        super().__init__(lambda: pytest.fail("the program is not asked"))
        self.decrypted: list[str] = []

    def decrypt(self, text: str, path: Path) -> str:
        """Return a text that was reversed."""
        header, _, rest = text.partition("\n")
        assert header == "$ANSIBLE_VAULT;1.1;AES256"
        self.decrypted.append(rest.strip()[::-1])
        return self.decrypted[-1]


def encrypted(text: str) -> str:
    """Return a text as `Reversed` decrypts it."""
    return f"$ANSIBLE_VAULT;1.1;AES256\n{text[::-1]}\n"


def sent(tmp_path: Path, *texts: str, provider: str = "aws", vault: VaultDecryption | None = None) -> dict[str, str]:
    """Return what is sent of files with these texts."""
    paths = [tmp_path / f"{number}.yml" for number in range(len(texts))]
    for path, text in zip(paths, texts, strict=True):
        path.write_text(text)
    return variable_files_to_send(paths, variables_read_by_playbooks(ANSIBLE, provider), vault or Reversed())


def test_of_a_vault_only_what_the_playbooks_read_is_sent(tmp_path: Path) -> None:
    content = {"kiln_aws_region": "eu-west-1", "release_token": "planted-1", "kiln_nothing_reads_this": "planted-2"}
    files = sent(tmp_path, encrypted(json.dumps(content)))
    assert {name: json.loads(text) for name, text in files.items()} == {"vars/0.yml": {"kiln_aws_region": "eu-west-1"}}
    assert "planted" not in masking.masked("planted-1"), "nor is it shown here"


def test_of_encrypted_values_only_those_are_decrypted_that_the_playbooks_read(tmp_path: Path) -> None:
    inline = encrypted("planted-3").replace("\n", "\n  ")
    text = f"ansible_become_password: !vault |\n  {encrypted('become-it').replace(chr(10), chr(10) + '  ')}\n"
    vault = Reversed()
    files = sent(tmp_path, f"{text}release_token: !vault |\n  {inline}\n", vault=vault)
    assert {name: json.loads(text) for name, text in files.items()} == {
        "vars/0.yml": {"ansible_become_password": "become-it"}
    }
    assert vault.decrypted == ["become-it"]
    assert "become-it" not in masking.masked("the password become-it")


def test_what_a_variable_mentions_is_sent_with_it_from_any_file(tmp_path: Path) -> None:
    """A usual way with Vault: the values are in one file, and their uses in another."""
    uses = (
        "kiln_pip: {PIP_INDEX_URL: 'https://me:{{ index_word }}@pypi.example.org'}\nkiln_local_options: ['{{ other }}']"
    )
    values = {"index_word": "{{ word_prefix }}word", "word_prefix": "pass", "other": "planted-4", "more": "planted-5"}
    files = sent(tmp_path, uses, encrypted(json.dumps(values)))
    assert json.loads(files["vars/1.yml"]) == {"index_word": "{{ word_prefix }}word", "word_prefix": "pass"}
    assert "planted" not in "".join(files.values())
    assert "other" not in files["vars/0.yml"], "kiln_local_options are of another provider"


def test_keys_of_existing_hosts_are_sent_for_their_own_provider_alone(tmp_path: Path) -> None:
    key = tmp_path / "id"
    key.write_text("PRIVATE KEY 1")
    hosts = json.dumps({"kiln_static_hosts": [{"address": "192.0.2.1", "key": str(key)}]})
    assert sent(tmp_path, hosts) == {"vars/0.yml": "{}"}
    files = sent(tmp_path, encrypted(hosts), provider="static")
    assert json.loads(files["vars/0.yml"])["kiln_static_hosts"][0]["key"] == f"{HOME}/keys/0"
    assert files["keys/0"] == "PRIVATE KEY 1"


def test_the_keys_of_existing_hosts_are_sent_once_and_their_places_named(tmp_path: Path) -> None:
    key, other = tmp_path / "id", tmp_path / "id2"
    key.write_text("PRIVATE KEY 1")
    other.write_text("PRIVATE KEY 2")
    hosts = [{"address": f"192.0.2.{number}", "key": str(path)} for number, path in enumerate((key, other, key))]
    mine = json.dumps({"kiln_static_hosts": hosts, "kiln_controller": "198.51.100.0/24"})
    files = sent(tmp_path, mine, provider="static")
    variables = json.loads(files.pop("vars/0.yml"))
    assert [host["key"] for host in variables["kiln_static_hosts"]] == [f"{HOME}/keys/{n}" for n in (0, 1, 0)]
    assert files == {"keys/0": "PRIVATE KEY 1", "keys/1": "PRIVATE KEY 2"}
    assert "kiln_controller" not in variables, "it is this computer's address"


def test_the_controller_gets_no_key_to_itself(tmp_path: Path) -> None:
    for name in ("id", "id2"):
        (tmp_path / name).write_text(f"PRIVATE KEY {name}")
    worker, controller = {"address": "a", "key": str(tmp_path / "id")}, {"address": "a", "key": str(tmp_path / "id2")}
    path = tmp_path / "mine.json"
    path.write_text(json.dumps({"kiln_static_hosts": [worker, {**controller, "port": "2222"}]}))
    names = variables_read_by_playbooks(ANSIBLE, "static")
    files = variable_files_to_send([path], names, Reversed(), controller=("a", 2222))
    hosts = json.loads(files.pop("vars/0.yml"))["kiln_static_hosts"]
    assert (hosts, files) == ([{"address": "a", "key": f"{HOME}/keys/0"}], {"keys/0": "PRIVATE KEY id"})
    path.write_text(json.dumps({"kiln_static_hosts": [controller]}))
    with pytest.raises(UsageError, match="no host besides the controller"):
        variable_files_to_send([path], names, Reversed(), controller=("a", 22))


@pytest.mark.parametrize(
    ("text", "fault"),
    [
        ("a: [", "is not YAML"),
        ("- 1", "holds no variables"),
        ("kiln_static_hosts: [{address: a}]", "has no key"),
        ("kiln_static_hosts: [{address: a, key: /nowhere/id}]", "cannot be sent"),
    ],
)
def test_faults_of_a_file_of_variables_name_it(tmp_path: Path, text: str, fault: str) -> None:
    with pytest.raises(UsageError, match=fault):
        sent(tmp_path, text, provider="static")


def test_the_playbooks_names_are_those_of_one_provider() -> None:
    names = variables_read_by_playbooks(ANSIBLE, "openstack")
    assert {"kiln_openstack_image", "kiln_pip", "kiln_address_service", "kiln_machine_types"} <= names
    assert not [name for name in names if name.startswith(("kiln_aws_", "kiln_static_", "kiln_local_"))]
    assert "kiln_controller" not in names
    assert "kiln_static_hosts" in variables_read_by_playbooks(ANSIBLE, "static")


@pytest.mark.processes  # what stands for the program that decrypts
def test_a_vault_that_cannot_be_decrypted_is_named_with_why(tmp_path: Path) -> None:
    program = tmp_path / "ansible-vault"
    program.write_text("#!/bin/sh\necho 'no vault secrets found' >&2\nexit 1\n")
    program.chmod(0o700)
    with pytest.raises(UsageError, match=r"0\.yml is encrypted, and cannot be decrypted here") as error:
        sent(tmp_path, encrypted("{}"), vault=VaultDecryption(lambda: (program, {})))
    assert "no vault secrets found" in error.value.why
    assert credentials.VAULT.search(encrypted("{}"))


NOON = 1795608000.0  # 2026-11-25T12:00:00Z
NAME = "AWS_CREDENTIAL_EXPIRATION"


@pytest.mark.parametrize("text", ["2026-11-25T14:00:00Z", "2026-11-25T15:00:00+01:00", "2026-11-25T14:00:00"])
def test_the_expiry_is_compared_with_the_end_of_the_plan(text: str) -> None:
    require_lasting_credentials("aws", {NAME: text}, begin=NOON, end=NOON + 7000)
    require_lasting_credentials("openstack", {NAME: text}, begin=NOON, end=NOON + 9000)
    with pytest.raises(UsageError) as refused:
        require_lasting_credentials("aws", {NAME: text}, begin=NOON, end=NOON + 9000)
    assert refused.value.why == f"these expire in 2.0 h ({NAME}), and the plan takes 2.5 h"


def test_credentials_that_have_expired_are_said_to_have() -> None:
    with pytest.raises(UsageError) as refused:
        require_lasting_credentials("aws", {NAME: "2026-11-25T09:00:00Z"}, begin=NOON, end=NOON + 60)
    assert "these expired 3.0 h ago" in refused.value.why


def test_an_expiry_that_cannot_be_read_is_noted(caplog: pytest.LogCaptureFixture) -> None:
    require_lasting_credentials("aws", {NAME: "tomorrow"}, begin=NOON, end=NOON + 60)
    assert "'tomorrow' is not a time" in caplog.text
    caplog.clear()
    require_lasting_credentials("aws", {}, begin=NOON, end=NOON + 60)
    assert caplog.text == ""


def test_a_plan_says_what_its_run_would_refuse(caplog: pytest.LogCaptureFixture) -> None:
    require_lasting_credentials("aws", {NAME: "2026-11-25T14:00:00Z"}, begin=NOON, end=NOON + 9000, begins=False)
    assert "run --detach will refuse these credentials: these expire in 2.0 h" in caplog.text
    assert "the plan takes 2.5 h" in caplog.text
    caplog.clear()
    require_lasting_credentials("aws", {NAME: "2026-11-25T14:00:00Z"}, begin=NOON, end=NOON + 7000, begins=False)
    assert caplog.text == ""


@pytest.mark.parametrize("begins", [True, False])
def test_an_expiry_before_the_time_limit_is_noted(begins: bool, caplog: pytest.LogCaptureFixture) -> None:
    environment = {NAME: "2026-11-25T14:00:00Z"}
    require_lasting_credentials("aws", environment, begin=NOON, end=NOON + 3600, limit=NOON + 7200, begins=begins)
    assert caplog.text == ""
    require_lasting_credentials("aws", environment, begin=NOON, end=NOON + 3600, limit=NOON + 7201, begins=begins)
    assert "expire in 2.0 h, before --time-limit" in caplog.text


@pytest.mark.parametrize(
    ("provider", "variable", "text"),
    [
        ("aws", "AWS_SESSION_TOKEN", f"temporary (AWS_SESSION_TOKEN), and {NAME} does not say when they expire"),
        ("openstack", "OS_TOKEN", "temporary (OS_TOKEN): they may expire before the run ends"),
    ],
)
def test_temporary_credentials_of_unknown_expiry_are_noted(
    provider: str, variable: str, text: str, caplog: pytest.LogCaptureFixture
) -> None:
    require_lasting_credentials(provider, {variable: "t"}, begin=NOON, end=NOON + 60)
    assert text in caplog.text
    caplog.clear()
    require_lasting_credentials("static", {variable: "t"}, begin=NOON, end=NOON + 60)
    assert caplog.text == ""


KNOWN = """\
# Host example.org found: line 3
example.org ssh-rsa AAAAR
|1|hash= ssh-ed25519 AAAAE comment
@revoked example.org ssh-ed25519 AAAAX
"""


def host_of(
    folder: Path, monkeypatch: pytest.MonkeyPatch, *, key: str = "id", known: str = KNOWN, **settings: str
) -> dict[str, Any]:
    """Return the host of a user with one key and one file of known hosts, whose ssh has these settings."""
    (folder / "id").touch()
    (folder / "known").touch()
    values = {"hostname": "10.0.0.5", "user": "me", "port": "22", "userknownhostsfile": f"{folder / 'known'} /absent"}
    lines = "\n".join(f"{name} {value}" for name, value in {**values, "identityfile": folder / key, **settings}.items())
    name = settings.get("hostkeyalias", "10.0.0.5" if "port" not in settings else f"[10.0.0.5]:{settings['port']}")

    def capture(words: tuple[object, ...], **_: object) -> ProcessResult:
        if words[:2] == ("ssh", "-G"):
            bad = words[2] == "bad host"
            return ProcessResult(argv=(), exit_code=255 if bad else 0, tail="no such host", seconds=0.0, stdout=lines)
        assert words == ("ssh-keygen", "-F", name, "-f", folder / "known")
        return ProcessResult(argv=(), exit_code=0, tail="", seconds=0.0, stdout=known)

    monkeypatch.setattr(process, "capture", capture)
    return static_host_from_user_ssh("bad host" if settings.get("bad") else "box", {})


def test_a_host_has_the_address_user_key_and_host_key_of_the_users_ssh(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    assert host_of(tmp_path, monkeypatch) == {
        "address": "10.0.0.5",
        "user": "me",
        "port": 22,
        "key": str(tmp_path / "id"),
        "known_hosts": "ssh-ed25519 AAAAE",
    }


def test_a_host_behind_another_one_or_at_another_port_is_found(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    host = host_of(tmp_path, monkeypatch, port="2222", proxyjump="gate")
    assert (host["port"], host["ssh_options"]) == (2222, {"ProxyJump": "gate"})
    assert "ssh_options" not in host_of(tmp_path, monkeypatch, proxyjump="none")
    assert host_of(tmp_path, monkeypatch, hostkeyalias="box.lan")["known_hosts"] == "ssh-ed25519 AAAAE"


@pytest.mark.parametrize(
    ("more", "what"),
    [
        ({"key": "absent"}, "there is no private key for box in a file"),
        ({"known": ""}, "the host key of box is unknown"),
        ({"bad": "yes"}, "ssh does not accept the host 'bad host'"),
    ],
)
def test_a_host_that_cannot_be_used_is_refused(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, more: dict[str, str], what: str
) -> None:
    with pytest.raises(UsageError) as caught:
        host_of(tmp_path, monkeypatch, **more)
    assert caught.value.what == what


def test_an_option_of_ssh_is_not_a_host() -> None:
    with pytest.raises(UsageError, match="invalid host '-oProxyCommand=id'"):
        static_host_from_user_ssh("-oProxyCommand=id", {})
