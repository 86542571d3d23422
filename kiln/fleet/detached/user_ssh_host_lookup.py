"""A machine as the user's own ssh reaches it, as a host of the static provider."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import process_runner
from kiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

PREFERRED = ("ssh-ed25519", "ecdsa-sha2-nistp256", "rsa-sha2-512", "ssh-rsa")


def static_host_from_user_ssh(text: str, environment: Mapping[str, str]) -> dict[str, Any]:
    """Return the host that ``ssh TEXT`` reaches, by the user's settings, known hosts and keys.

    Raises:
        UsageError: when its host key is unknown, or no private key exists as a file.
    """
    if text.startswith("-"):
        raise UsageError(f"invalid host {text!r}", hint="write it as ssh takes it: [USER@]HOST")
    result = process_runner.capture(("ssh", "-G", text), env=environment)
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
            lines += process_runner.capture(("ssh-keygen", "-F", name, "-f", file), env=environment).stdout
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
