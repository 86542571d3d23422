"""Refuse packages that contain a secret of their script."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import files
from kiln.conda_package import reader
from kiln.errors import SecretInPackage
from kiln.masking.secret_search import CHUNK, SecretSearch, secret_variables

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

SHOWN = 5  # files in a message


def require_no_secrets(package: Path, variables: Mapping[str, str]) -> None:
    """Search every file of a package for the values of variables, in each form in which they may be written.

    Raises:
        SecretInPackage: with variables and files, without values.
    """
    search = SecretSearch.for_secrets(secret_variables(variables))
    if not search.masks:
        return
    files_by_variable: dict[str, list[str]] = {}
    with reader.open_package_members(package) as members:
        for member, content in members:
            if content is not None:
                for name in search.names_of_secrets_in(files.read_chunks(content, CHUNK)):
                    files_by_variable.setdefault(name, []).append(member.name)
    if files_by_variable:
        raise _leaked_secret_error(package, files_by_variable)


def _leaked_secret_error(package: Path, files_by_variable: Mapping[str, list[str]]) -> SecretInPackage:
    places = "; ".join(
        f"{name} in {', '.join(files[:SHOWN])}{f' and {len(files) - SHOWN} more' if len(files) > SHOWN else ''}"
        for name, files in sorted(files_by_variable.items())
    )
    return SecretInPackage(
        f"{package.name} contains the value of {places}",
        why="the caller passed it to the package's script, and everyone who installs the package could read it",
        hint="keep it out of the installed files; write a value that is not secret into the recipe",
    )
