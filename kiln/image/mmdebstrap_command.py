"""Call mmdebstrap, which installs or downloads packages of Debian, with this machine's access to their mirrors."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import process_runner
from kiln.errors import BuildFailed, MissingTool, program_output_with_margin
from kiln.image import apt_sources

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

KEYRING = Path("/usr/share/keyrings/debian-archive-keyring.gpg")


@dataclass(frozen=True, slots=True, kw_only=True)
class AptFiles:
    """This machine's access to Debian's packages: its apt's ``sources``, if it is Debian, and ``settings``."""

    sources: Path | None
    settings: Path
    keyring: Path | None  # for machines that trust it only through signed-by


def write_apt_files(suite: str, folder: Path, *, env: Mapping[str, str]) -> AptFiles:
    """Write this machine's access to Debian's packages into a folder."""
    lines = apt_sources.sources_list_lines(suite, env=env)
    return AptFiles(
        sources=_write_private_file(folder / "sources.list", "".join(f"{line}\n" for line in lines)) if lines else None,
        settings=_write_private_file(folder / "apt.conf", apt_sources.apt_conf(env=env)),
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
        process_runner.find_program("mmdebstrap", env=env)
    except MissingTool as error:
        raise MissingTool(
            "mmdebstrap, which makes the base image, is not installed", why=error.why, hint=error.hint
        ) from error


def mmdebstrap_error(what: str, result: process_runner.ProcessResult) -> BuildFailed:
    """Return the failure of mmdebstrap, with the end of its output."""
    return BuildFailed(
        what,
        why=f"mmdebstrap ended with exit code {result.exit_code}:\n{program_output_with_margin(result.tail)}",
        hint="check that 'apt-get update' works on this machine, and that the names are Debian packages",
    )
