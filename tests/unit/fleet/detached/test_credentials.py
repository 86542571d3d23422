"""The variables that a controller gets: those that its playbooks read, decrypted, without any other."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.base import masking
from kiln.base.errors import UsageError
from kiln.fleet.detached import credentials
from kiln.fleet.detached.controller import HOME
from kiln.fleet.detached.credentials import VaultDecryption, variable_files_to_send, variables_read_by_playbooks

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
