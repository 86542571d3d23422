"""What a Python package and its requirements are called in conda's world."""

from __future__ import annotations

import csv
import re
from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.utils import canonicalize_name
from packaging.version import Version

from kiln import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.requirements import Requirement
    from packaging.specifiers import Specifier

NAMES = Path(__file__).with_name("names.csv")
_STARRED = re.compile(r"\.\*$")


class Layout(Enum):
    """Where a wheel's files go: to site-packages, or to the prefix's own lib, bin and include."""

    PYTHON = "python"
    LIBRARIES = "libraries"


@dataclass(frozen=True, slots=True, kw_only=True)
class KnownName:
    """A row of names.csv; ``source`` is where the conda name was seen.

    ``exported_by`` is the package whose ``run_exports`` bring this one: itself, its ``-dev`` package or none.
    """

    pypi: str
    conda: str
    layout: Layout
    exported_by: str
    source: str


@cache
def digest() -> str:
    """Return a hash of names.csv: what was made with other names is made anew."""
    return files.sha256(NAMES)


@cache
def known() -> Mapping[str, KnownName]:
    """Return the rows of names.csv by normalized PyPI name."""
    with NAMES.open(encoding="utf-8", newline="") as file:
        return {
            row["pypi"]: KnownName(
                pypi=row["pypi"],
                conda=row["conda"],
                layout=Layout(row["layout"]),
                exported_by=row["exported_by"],
                source=row["source"],
            )
            for row in csv.DictReader(file)
        }


def conda_name(pypi: str) -> str:
    """Return the conda name of a PyPI package; one that names.csv does not have keeps its normalized name."""
    name = canonicalize_name(pypi)
    return known()[name].conda if name in known() else name


def layout(pypi: str) -> Layout:
    """Return where a package's files go."""
    name = canonicalize_name(pypi)
    return known()[name].layout if name in known() else Layout.PYTHON


def exported_by(pypi: str) -> str:
    """Return the conda package whose run_exports bring this one, or nothing when none does."""
    name = canonicalize_name(pypi)
    return known()[name].exported_by if name in known() else ""


def conda_requirements(
    requirements: Iterable[Requirement], environment: Mapping[str, str], *, extras: Iterable[str] = ()
) -> tuple[str, ...]:
    """Return the match specs of those requirements that hold in a marker environment, sorted, each once.

    Extras that a requirement asks of another package are dropped: conda has none.
    """
    asked = ("", *extras)
    specs = {
        conda_spec(requirement)
        for requirement in requirements
        if requirement.marker is None
        or any(requirement.marker.evaluate({**environment, "extra": extra}) for extra in asked)
    }
    return tuple(sorted(specs))


def conda_spec(requirement: Requirement) -> str:
    """Return a requirement as a match spec: ``typing-extensions~=4.12`` is ``typing_extensions >=4.12,4.*``."""
    versions = [conda_constraint(specifier) for specifier in requirement.specifier]
    return " ".join([conda_name(requirement.name), ",".join(sorted(versions))]).rstrip()


def conda_constraint(specifier: Specifier) -> str:
    """Return a PEP 440 version specifier in conda's language.

    The two differ in three things that matter: conda has no ``===``; a plain ``==1.2.*`` is written ``1.2.*``; and
    ``<2`` lets ``2.0rc1`` in unless it says ``<2a0``. ``~=`` is spelled out, which every conda client understands. One
    difference stays: ``>1.2`` lets ``1.2.post1`` in, which pip does not.
    """
    operator, version = specifier.operator, specifier.version
    if operator == "~=":
        return f">={Version(version)},{_series(version)}.*"
    if operator == "==" and version.endswith(".*"):
        return version
    if operator in {"==", "==="}:
        return f"=={_normal(version)}"
    if operator == "<" and not _is_special(version):
        return f"<{Version(version)}a0"
    return f"{operator}{_normal(version)}"


def _series(version: str) -> str:
    """Return what ``~=`` keeps: all numbers of the release but the last, as they were written."""
    parsed = Version(version)
    epoch = f"{parsed.epoch}!" if parsed.epoch else ""
    return epoch + ".".join(str(number) for number in parsed.release[:-1])


def _is_special(version: str) -> bool:
    parsed = Version(version)
    return parsed.is_prerelease or parsed.is_postrelease or parsed.local is not None


def _normal(version: str) -> str:
    """Return a version in PEP 440's normal form, its asterisk kept; what is no such version stays as it is."""
    if _STARRED.search(version):
        return f"{Version(_STARRED.sub('', version))}.*"
    try:
        return str(Version(version))
    except ValueError:
        return version
