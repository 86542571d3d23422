"""The credentials and variables that a controller gets, and when they expire."""

from __future__ import annotations

import datetime as dt
import json
import logging
import re
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kiln.base import masking, process
from kiln.base.errors import UsageError
from kiln.fleet.detached.controller import HOME, read_file_to_send

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence


LOGGER = logging.getLogger(__name__)

EXPIRY = {"aws": "AWS_CREDENTIAL_EXPIRATION"}  # as `aws configure export-credentials --format env` writes it
# The variables of credentials that are temporary, whatever their expiry is.
TEMPORARY = {"aws": ("AWS_SESSION_TOKEN", "AWS_SECURITY_TOKEN"), "openstack": ("OS_TOKEN", "OS_AUTH_TOKEN")}
HINT = "take a longer session of the role, or keys of a user for this alone, or more --workers"


def require_lasting_credentials(
    provider: str,
    environment: Mapping[str, str],
    *,
    begin: float,
    end: float,
    limit: float | None = None,
    begins: bool = True,
) -> None:
    """Refuse credentials that expire before the planned ``end`` of a run; note what else may end them before it.

    That is an expiry before the run's ``limit``, and one that is unknown. For a plan that no run ``begins``, note that
    they will be refused.

    Raises:
        UsageError: when they expire before.
    """
    text = environment.get(EXPIRY.get(provider, ""), "").strip()
    expiry = _parse_expiry_time(text)
    if expiry is not None and expiry < end:
        remaining, needed = (expiry - begin) / 3600, (end - begin) / 3600
        when = f"expire in {remaining:.1f} h" if remaining > 0 else f"expired {-remaining:.1f} h ago"
        fault = f"these {when} ({EXPIRY[provider]}), and the plan takes {needed:.1f} h"
        if begins:
            raise UsageError("--detach needs credentials that last until the end of the run", why=fault, hint=HINT)
        LOGGER.warning("warning: kiln fleet run --detach will refuse these credentials: %s\n  try: %s", fault, HINT)
    elif note := _expiry_note(provider, environment, text, expiry, begin=begin, limit=limit):
        LOGGER.warning("note: %s", note)


def _expiry_note(
    provider: str, environment: Mapping[str, str], text: str, expiry: float | None, *, begin: float, limit: float | None
) -> str:
    """Return why credentials may expire before the end of a run whose plan they outlast; empty if nothing says so."""
    if expiry is not None:
        if limit is None or expiry >= limit:
            return ""
        hours = (expiry - begin) / 3600
        return (
            f"the credentials expire in {hours:.1f} h, before --time-limit: a run that takes longer than planned fails"
        )
    if text:
        return f"{EXPIRY[provider]}={text[:40]!r} is not a time: the credentials may expire before the run ends"
    temporary = next((name for name in TEMPORARY.get(provider, ()) if environment.get(name)), "")
    if not temporary:
        return ""
    known = f", and {EXPIRY[provider]} does not say when they expire" if provider in EXPIRY else ""
    return f"the credentials are temporary ({temporary}){known}: they may expire before the run ends"


def _parse_expiry_time(text: str) -> float | None:
    """Return a time in seconds since the epoch; None for a text that is none."""
    try:
        moment = dt.datetime.fromisoformat(text[:-1] + "+00:00" if text.endswith("Z") else text)
    except ValueError:
        return None
    return (moment if moment.tzinfo else moment.replace(tzinfo=dt.timezone.utc)).timestamp()


PREFERRED = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "ssh-rsa")


def static_host_from_user_ssh(text: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the host that ``ssh TEXT`` reaches, by the user's settings, known hosts and keys.

    Raises:
        UsageError: when its host key is unknown, or no private key exists as a file.
    """
    if text.startswith("-"):
        raise UsageError(f"invalid host {text!r}", hint="write it as ssh takes it: [USER@]HOST")
    result = process.capture(("ssh", "-G", text), env=environment)
    if not result.ok:
        raise UsageError(f"ssh does not accept the host {text!r}", why=result.tail)
    settings = parse_ssh_settings(result.stdout)
    keys = [Path(name).expanduser() for name in settings.get("identityfile", ())]
    key = next((path for path in keys if path.is_file()), None)
    if key is None:
        hint = "ssh-keygen creates one; or describe the machine in kiln_static_hosts of a file for --vars"
        raise UsageError(f"there is no private key for {text} in a file", hint=hint)
    options = {"ProxyJump": jump} if (jump := settings.get("proxyjump", ["none"])[0]) != "none" else {}
    return {
        "address": settings["hostname"][0],
        "user": settings["user"][0],
        "port": int(settings["port"][0]),
        "key": str(key),
        "known_hosts": _known_host_key(text, settings, environment),
        **({"ssh_options": options} if options else {}),
    }


def parse_ssh_settings(text: str) -> dict[str, list[str]]:
    """Return what ``ssh -G`` prints: the values of each setting, which may have several."""
    settings: dict[str, list[str]] = {}
    for line in text.splitlines():
        name, _, value = line.partition(" ")
        settings.setdefault(name, []).append(value)
    return settings


def _known_host_key(text: str, settings: Mapping[str, list[str]], environment: Mapping[str, str]) -> str:
    address, port = settings["hostname"][0], settings["port"][0]
    name = settings.get("hostkeyalias", [address if port == "22" else f"[{address}]:{port}"])[0]
    files = [
        *settings.get("userknownhostsfile", [""])[0].split(),
        *settings.get("globalknownhostsfile", [""])[0].split(),
    ]
    lines = ""
    for file in (Path(name).expanduser() for name in files):
        if file.is_file():
            lines += process.capture(("ssh-keygen", "-F", name, "-f", file), env=environment).stdout
    if key := preferred_host_key(lines.splitlines()):
        return key
    raise UsageError(
        f"the host key of {text} is unknown",
        why=f"{name} is not in {', '.join(files)}",
        hint=f"log in once, and compare the key that is shown with the machine's own: ssh {text}",
    )


def preferred_host_key(lines: Iterable[str]) -> str:
    """Return the preferred key of a host's lines of known hosts, with its type; empty without one."""
    keys: dict[str, str] = {}
    for line in lines:
        words = line.split()
        if len(words) >= 3 and not line.startswith(("#", "@")):
            keys.setdefault(words[1], f"{words[1]} {words[2]}")
    return next((keys[kind] for kind in PREFERRED if kind in keys), next(iter(keys.values()), ""))


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
        """Return the content of a Vault, which is the file ``path`` or a value in it."""
        program, environment = self._find()
        words = (program, "decrypt", "--output", "-", "-")
        result = process.capture(words, env=environment, stdin=text.strip() + "\n", timeout=SECONDS)
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
