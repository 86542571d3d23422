"""The variables of playbooks that a controller gets: those that the playbooks read, decrypted here.

The password of a Vault opens everything that it was ever used for, so it stays on this computer, and so does every
variable that no playbook of the workers' provider reads.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kiln import masking, process_runner
from kiln.errors import UsageError
from kiln.fleet.detached.settings_sent_to_controller import HOME, read_file_to_send

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence

VAULT = re.compile(r"\A\$ANSIBLE_VAULT|!vault\b")
OWN = re.compile(r"\bkiln_\w+")
WORD = re.compile(r"[A-Za-z_]\w*")
# The controller has another address than this computer; it asks for its own.
HERE = frozenset({"kiln_controller"})
PROVIDERS = ("aws", "openstack", "static", "local")
ANOTHER = "a machine that builds cannot be the controller, too: name another --controller"
SECONDS = 60.0  # for a decryption: the program that knows the password may ask somebody


class EncryptedValue(str):
    """A value that Ansible Vault has encrypted."""

    __slots__ = ()


class VaultYamlLoader(yaml.SafeLoader):
    """Reads values that Ansible Vault has encrypted as `EncryptedValue`."""


def _construct_encrypted_value(loader: yaml.SafeLoader, node: yaml.Node) -> EncryptedValue:
    assert isinstance(node, yaml.ScalarNode), "its tag is for texts"
    return EncryptedValue(loader.construct_scalar(node))


VaultYamlLoader.add_constructor("!vault", _construct_encrypted_value)
VaultYamlLoader.add_constructor("!vault-encrypted", _construct_encrypted_value)


class VaultDecryption:
    """Decrypts by ``ansible-vault``, with the password of this computer's settings.

    ``find`` returns the program and its environment; it is called when something is to be decrypted, for the program
    is in the fleet's environment, which may have to be set up.
    """

    def __init__(self, find: Callable[[], tuple[Path, Mapping[str, str]]]) -> None:
        self._find = find

    def decrypt(self, text: str, path: Path) -> str:
        """Return the content of a Vault, which is the file ``path`` or a value in it.

        Raises:
            UsageError: when it cannot be decrypted here.
        """
        program, environment = self._find()
        words = (program, "decrypt", "--output", "-", "-")
        result = process_runner.capture(words, env=environment, stdin=text.strip() + "\n", timeout=SECONDS)
        if not result.ok:
            raise UsageError(
                f"{path} is encrypted, and cannot be decrypted here",
                why=result.tail[-500:],
                hint="ANSIBLE_VAULT_PASSWORD_FILE names a file with its password, or a program that prints it",
            )
        return result.stdout


def variables_read_by_playbooks(folder: Path, provider: str) -> frozenset[str]:
    """Return the variables of kiln that the playbooks in a folder read with the workers of a provider."""
    names: set[str] = set()
    for path in sorted(folder.rglob("*")):
        if path.suffix in {".yml", ".j2"}:
            names.update(OWN.findall(path.read_text(encoding="utf-8")))
    others = tuple(f"kiln_{other}_" for other in PROVIDERS if other != provider)
    return frozenset(name for name in names if not name.startswith(others)) - HERE


def variable_files_to_send(
    paths: Sequence[Path],
    names: Collection[str],
    vault: VaultDecryption,
    *,
    controller: tuple[str, int] | None = None,
) -> dict[str, str]:
    """Return the files of variables for the playbooks on the controller, and the keys of existing hosts.

    They have the variables in ``names``, Ansible's own (``ansible_``), and those that these mention; others are
    neither sent nor, by themselves, decrypted. An existing host that is the ``controller``, by its address and port,
    is left out, with its key.

    Raises:
        UsageError: when a file is invalid, or cannot be decrypted.
    """
    tables = [_read_variable_file(path, vault) for path in paths]
    known = {name for table in tables for name in table}
    pending = {name for name in known if name in names or name.startswith("ansible_")}
    sent: list[dict[str, Any]] = [{} for _ in tables]
    done: set[str] = set()
    while pending:
        name = pending.pop()
        done.add(name)
        for table, path, target in zip(tables, paths, sent, strict=True):
            if name in table:
                target[name] = _decrypt_nested_values(table[name], path, vault)
                pending |= (set(_template_words(target[name])) & known) - done
    files: dict[str, str] = {}
    for number, (path, table) in enumerate(zip(paths, sent, strict=True)):
        if isinstance(hosts := table.get("kiln_static_hosts"), list) and hosts:
            table["kiln_static_hosts"] = [host for host in hosts if not _is_host_at_address(host, controller)]
            if not table["kiln_static_hosts"]:
                raise UsageError(f"kiln_static_hosts in {path} has no host besides the controller", hint=ANOTHER)
        for host in table.get("kiln_static_hosts") or ():
            add_private_key_of_host(host, files, path)
        files[f"vars/{number}.yml"] = json.dumps(table, default=str)
    return files


def _read_variable_file(path: Path, vault: VaultDecryption) -> dict[str, Any]:
    """Return the variables of a file, of which values may be encrypted."""
    text = read_file_to_send(path)
    if is_vault := text.startswith("$ANSIBLE_VAULT"):
        text = vault.decrypt(text, path)
    try:
        variables = yaml.load(text, VaultYamlLoader) or {}  # noqa: S506 - it is safe_load's
    except yaml.YAMLError as error:
        raise UsageError(f"{path} is not YAML", why=str(error)) from error
    if not isinstance(variables, dict):
        raise UsageError(f"{path} holds no variables", hint="write NAME: VALUE lines, or a JSON object")
    if is_vault:
        secrets = {name: text for name, text in variables.items() if isinstance(text, str)}
        masking.register_secrets(masking.secrets_of_environment(secrets))
    return {str(name): value for name, value in variables.items() if name not in HERE}


def _decrypt_nested_values(value: Any, path: Path, vault: VaultDecryption) -> Any:
    """Return a value with everything in it decrypted."""
    match value:
        case EncryptedValue():
            text = vault.decrypt(value, path)
            masking.register_secrets([text])
            return text
        case dict():
            return {name: _decrypt_nested_values(item, path, vault) for name, item in value.items()}
        case list():
            return [_decrypt_nested_values(item, path, vault) for item in value]
    return value


def _template_words(value: Any) -> Iterator[str]:
    """Return the words of the templates in a value, the names of other variables among them."""
    match value:
        case str() if "{{" in value or "{%" in value:
            yield from WORD.findall(value)
        case dict():
            for item in value.values():
                yield from _template_words(item)
        case list():
            for item in value:
                yield from _template_words(item)


def _is_host_at_address(host: Any, place: tuple[str, int] | None) -> bool:
    if place is None or not isinstance(host, dict):
        return False
    return (host.get("address"), str(host.get("port", 22))) == (place[0], str(place[1]))


def add_private_key_of_host(host: Any, files: dict[str, str], path: Path) -> None:
    """Send the private key of an existing host along, and point the host at it."""
    if not isinstance(host, dict) or not isinstance(host.get("key"), str):
        raise UsageError(f"a host of kiln_static_hosts in {path} has no key", hint="key: the path of a private key")
    text = read_file_to_send(Path(host["key"]).expanduser())
    names = {content: name for name, content in files.items() if name.startswith("keys/")}
    name = names.get(text, f"keys/{len(names)}")
    files[name] = text
    host["key"] = f"{HOME}/{name}"
