"""How this machine gets Debian's packages: its mirrors and the settings of its apt, as apt itself tells them."""

from __future__ import annotations

import contextlib
import re
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import command
from kiln.errors import MissingTool

if TYPE_CHECKING:
    from collections.abc import Mapping

# What decides whether a mirror is reached; the rest of apt's settings is the image's own affair.
_SETTINGS = re.compile(r"Acquire::(?:https?|Retries|ForceIPv[46]|Check-Valid-Until|Check-Date)\b")
_TARGETS = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"


def sources(suite: str, *, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the lines of a sources.list for a suite of Debian, with this machine's mirrors.

    Nothing when this machine is no Debian: mmdebstrap knows Debian's own mirror.
    """
    targets = _ask(("apt-get", "indextargets", "--format", _TARGETS, "Created-By: Packages"), env)
    return lines(suite, targets, codename=codename(os_release()))


def lines(suite: str, targets: str, *, codename: str) -> tuple[str, ...]:
    """Make sources of what ``apt-get indextargets`` lists: those of Debian alone, this machine's suite replaced."""
    components: dict[tuple[str, str], list[str]] = {}
    for row in targets.splitlines():
        uri, release, component, origin = (*row.split(" "), "")[:4]
        if (
            codename
            and origin == "Debian"
            and re.match(rf"{re.escape(codename)}(?:$|[-/](?:updates|security)$)", release)
        ):
            components.setdefault((uri, suite + release.removeprefix(codename)), []).append(component)
    return tuple(f"deb {uri} {release} {' '.join(names)}" for (uri, release), names in components.items())


def settings(*, env: Mapping[str, str]) -> str:
    """Return apt's settings on proxies, certificates and dates, in apt.conf's language."""
    return access(_ask(("apt-config", "dump"), env))


def access(dump: str) -> str:
    """The lines of ``apt-config dump`` that decide whether a mirror is reached."""
    return "".join(f"{line}\n" for line in dump.splitlines() if _SETTINGS.match(line))


def codename(os_release: str) -> str:
    """The codename in an os-release file of Debian; empty for every other system."""
    values = dict(re.findall(r'^(\w+)="?([^"\n]*)"?$', os_release, re.MULTILINE))
    return values.get("VERSION_CODENAME", "") if values.get("ID") == "debian" else ""


def names(*, env: Mapping[str, str]) -> frozenset[str]:
    """Return the names of all packages that this machine's apt knows of."""
    return frozenset(_ask(("apt-cache", "pkgnames"), env).split())


def unknown(said: str) -> tuple[str, ...]:
    """Return the packages of which apt says that there are none."""
    return tuple(re.findall(r"^E: Unable to locate package (\S+)$", said, re.MULTILINE))


def os_release() -> str:
    """The text of this machine's os-release file; empty when there is none."""
    with contextlib.suppress(OSError):
        return Path("/etc/os-release").read_text(encoding="utf-8")
    return ""


def _ask(argv: tuple[str, ...], env: Mapping[str, str]) -> str:
    """What apt answers; nothing where there is no apt."""
    try:
        return command.capture(argv, env=env, timeout=60).stdout
    except MissingTool:
        return ""
