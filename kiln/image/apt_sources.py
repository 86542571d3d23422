"""This machine's access to Debian's packages: the mirrors and settings of its apt."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln import process_runner, system_package_advice
from kiln.errors import MissingTool

if TYPE_CHECKING:
    from collections.abc import Mapping

# Only the settings that a connection to a mirror needs; the image has its own for everything else.
_SETTINGS = re.compile(r"Acquire::(?:https?|Retries|ForceIPv[46]|Check-Valid-Until|Check-Date)\b")
_TARGETS = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"


def sources_list_lines(suite: str, *, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the lines of a sources.list for a suite of Debian, with this machine's mirrors.

    Empty if this machine is not Debian: mmdebstrap has a default mirror.
    """
    targets = package_tool_output(("apt-get", "indextargets", "--format", _TARGETS, "Created-By: Packages"), env)
    return sources_from_index_targets(suite, targets, codename=debian_codename(system_package_advice.os_release()))


def sources_from_index_targets(suite: str, targets: str, *, codename: str) -> tuple[str, ...]:
    """Return the sources among the output of ``apt-get indextargets``: Debian's, with this machine's suite replaced."""
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


def apt_conf(*, env: Mapping[str, str]) -> str:
    """Return apt's settings on proxies, certificates and dates, in apt.conf's language."""
    return connection_settings_in_dump(package_tool_output(("apt-config", "dump"), env))


def connection_settings_in_dump(dump: str) -> str:
    """Return the lines of ``apt-config dump`` that a connection to a mirror needs."""
    return "".join(f"{line}\n" for line in dump.splitlines() if _SETTINGS.match(line))


def debian_codename(os_release: Mapping[str, str]) -> str:
    """Return the codename in the values of Debian's os-release file; empty for other systems."""
    return os_release.get("VERSION_CODENAME", "") if os_release.get("ID") == "debian" else ""


def packages_known_to_apt(*, env: Mapping[str, str]) -> frozenset[str]:
    """Return the names of all packages that this machine's apt knows."""
    return frozenset(package_tool_output(("apt-cache", "pkgnames"), env).split())


def packages_not_found(output: str) -> tuple[str, ...]:
    """Return the packages that apt did not find."""
    return tuple(re.findall(r"^E: Unable to locate package (\S+)$", output, re.MULTILINE))


def package_tool_output(argv: tuple[str, ...], env: Mapping[str, str]) -> str:
    """Return the output of one of apt's or dpkg's programs; empty if it is missing."""
    try:
        return process_runner.capture(argv, env=env, timeout=60).stdout
    except MissingTool:
        return ""
