"""Debian's packages by mmdebstrap, with this machine's access to their mirrors."""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import process
from kiln.base.errors import BuildFailed, MissingTool, program_output_with_margin

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


# Only the settings that a connection to a mirror needs; the image has its own for everything else.
_SETTINGS = re.compile(r"Acquire::(?:https?|Retries|ForceIPv[46]|Check-Valid-Until|Check-Date)\b")
_TARGETS = "$(REPO_URI) $(RELEASE) $(COMPONENT) $(ORIGIN)"


def sources_list_lines(suite: str, *, env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the lines of a sources.list for a suite of Debian, with this machine's mirrors.

    Empty if this machine is not Debian: mmdebstrap has a default mirror.
    """
    targets = package_tool_output(("apt-get", "indextargets", "--format", _TARGETS, "Created-By: Packages"), env)
    return sources_from_index_targets(suite, targets, codename=debian_codename(process.os_release()))


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
        return process.capture(argv, env=env, timeout=60).stdout
    except MissingTool:
        return ""


KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True, slots=True, kw_only=True)
class AptFiles:
    """This machine's access to Debian's packages: its apt's ``sources``, if it is Debian, and ``settings``."""

    sources: Path | None
    settings: Path
    keyring: Path | None  # for machines that trust it only through signed-by


def write_apt_files(suite: str, folder: Path, *, env: Mapping[str, str]) -> AptFiles:
    """Write this machine's access to Debian's packages into a folder."""
    lines = sources_list_lines(suite, env=env)
    return AptFiles(
        sources=_write_private_file(folder / "sources.list", "".join(f"{line}\n" for line in lines)) if lines else None,
        settings=_write_private_file(folder / "apt.conf", apt_conf(env=env)),
        keyring=KEYRING if KEYRING.exists() else None,
    )


def _write_private_file(path: Path, text: str) -> Path:
    """Write a file that may contain the password of a proxy or mirror."""
    path.touch(mode=0o600)
    path.write_text(text, encoding="utf-8")
    return path


def mmdebstrap_command(
    suite: str, packages: Iterable[str], target: Path, *options: str, apt: AptFiles
) -> tuple[str, ...]:
    """Return mmdebstrap's command line; without apt's sources it uses Debian's default mirror."""
    return (
        "mmdebstrap",
        f"--include={','.join(packages)}",
        *([f"--keyring={apt.keyring}"] if apt.keyring else []),
        f"--aptopt={apt.settings}",
        *options,
        suite,
        str(target),
        *([str(apt.sources)] if apt.sources else []),
    )


def require_mmdebstrap(env: Mapping[str, str]) -> None:
    """Raise MissingTool, with the command that installs it, if mmdebstrap is missing."""
    try:
        process.find_program("mmdebstrap", env=env)
    except MissingTool as error:
        raise MissingTool(
            "mmdebstrap, which makes the base image, is not installed", why=error.why, hint=error.hint
        ) from error


def mmdebstrap_error(what: str, result: process.ProcessResult) -> BuildFailed:
    """Return the failure of mmdebstrap, with the end of its output."""
    return BuildFailed(
        what,
        why=f"mmdebstrap ended with exit code {result.exit_code}:\n{program_output_with_margin(result.tail)}",
        hint="check that 'apt-get update' works on this machine, and that the names are Debian packages",
    )
