"""The conda names and match specs of Python packages and their requirements, and the PyPI names and pip's of these."""

from __future__ import annotations

from dataclasses import dataclass
from enum import Enum
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, Specifier, SpecifierSet
from packaging.utils import canonicalize_name
from packaging.version import Version

from kiln import files
from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from packaging.requirements import Requirement

NAMES = Path(__file__).with_name("names.csv")
_STARRED = lazy_pattern(r"\.\*$")
_CLAUSE = lazy_pattern(r"(==|!=|<=|>=|~=|<|>|=)?\s*(\S+)")


class WheelLayout(Enum):
    """The install location of a wheel's files: site-packages, or the prefix's lib, bin and include."""

    PYTHON = "python"
    LIBRARIES = "libraries"


@dataclass(frozen=True, slots=True, kw_only=True)
class NameMapping:
    """A row of names.csv; ``source`` is the origin of the conda name.

    ``exported_by`` is the package whose ``run_exports`` add this one: itself, its ``-dev`` package or none.
    """

    conda: str
    layout: WheelLayout = WheelLayout.PYTHON
    exported_by: str = ""
    source: str = ""


@cache
def names_table_digest() -> str:
    """Return a hash of names.csv, so that a change of names makes new packages."""
    return files.sha256(NAMES)


@cache
def name_mappings() -> Mapping[str, NameMapping]:
    """Return the rows of names.csv by normalized PyPI name."""
    return {
        row["pypi"]: NameMapping(
            conda=row["conda"],
            layout=WheelLayout(row["layout"]),
            exported_by=row["exported_by"],
            source=row["source"],
        )
        for row in files.csv_rows(NAMES)
    }


def abi_spec(python: str) -> str:
    """Return the match spec of the ABI of a Python, ``3.11``: ``python_abi 3.11.* *_cp311``."""
    return f"python_abi {python}.* *_cp{python.replace('.', '')}"


def name_mapping(pypi: str) -> NameMapping:
    """Return the row of a PyPI package; without one, the package keeps its normalized name and has no run_exports."""
    name = canonicalize_name(pypi)
    return name_mappings().get(name) or NameMapping(conda=name)


def conda_name(pypi: str) -> str:
    """Return the conda name of a PyPI package, by default its normalized name."""
    return name_mapping(pypi).conda


def requirements_missing_in_wheel(pypi: str, python: str) -> tuple[str, ...]:
    """Return the PyPI projects that a conda package requires and its wheel does not, for a Python, ``3.11``.

    conda-forge/pip-feedstock: until Python 3.12, pip brings setuptools and wheel, and many recipes rely on that.
    """
    minor = int(python.partition(".")[2])
    return ("setuptools", "wheel") if canonicalize_name(pypi) == "pip" and minor <= 12 else ()


def run_exports_missing_in_wheel(pypi: str, version: Version) -> tuple[str, ...]:
    """Return the run exports of a Python package on conda-forge, of which its wheel knows nothing.

    conda-forge/numpy-feedstock: what is compiled with NumPy 2 runs with the oldest supported release, and below 3.
    """
    return ("numpy >=1.23,<3",) if canonicalize_name(pypi) == "numpy" and version >= Version("2") else ()


def conda_requirements(requirements: Iterable[Requirement], environment: Mapping[str, str]) -> tuple[str, ...]:
    """Return the distinct match specs of the requirements that apply in a marker environment, sorted.

    Extras are dropped, the wheel's and those of the required packages, because conda has none.
    """
    environment = {**environment, "extra": ""}
    specs = {
        conda_spec(requirement)
        for requirement in requirements
        if requirement.marker is None or requirement.marker.evaluate(environment)
    }
    return tuple(sorted(specs))


def conda_spec(requirement: Requirement) -> str:
    """Return a requirement as a match spec: ``typing-extensions~=4.12`` is ``typing_extensions >=4.12,4.*``."""
    versions = [conda_constraint(specifier) for specifier in requirement.specifier]
    return " ".join([conda_name(requirement.name), ",".join(sorted(versions))]).rstrip()


def conda_constraint(specifier: Specifier) -> str:
    """Return a PEP 440 version specifier in conda's syntax.

    There are three relevant differences: conda has no ``===``; a plain ``==1.2.*`` is written ``1.2.*``; and ``<2``
    admits ``2.0rc1`` unless written as ``<2a0``. ``~=`` is written out, which every conda client understands. One
    difference remains: ``>1.2`` admits ``1.2.post1``, which pip does not.
    """
    operator, version = specifier.operator, specifier.version
    if operator == "~=":
        return f">={Version(version)},{_compatible_release_prefix(version)}.*"
    if operator == "==" and version.endswith(".*"):
        return version
    if operator in {"==", "==="}:
        return f"=={_normalized_version(version)}"
    if operator == "<" and not _is_pre_post_or_local(version):
        return f"<{Version(version)}a0"
    return f"{operator}{_normalized_version(version)}"


def _compatible_release_prefix(version: str) -> str:
    """Return the release prefix of ``~=``: all numbers but the last, as written."""
    parsed = Version(version)
    epoch = f"{parsed.epoch}!" if parsed.epoch else ""
    return epoch + ".".join(str(number) for number in parsed.release[:-1])


def _is_pre_post_or_local(version: str) -> bool:
    parsed = Version(version)
    return parsed.is_prerelease or parsed.is_postrelease or parsed.local is not None


def _normalized_version(version: str) -> str:
    """Return a version in PEP 440's normal form, with its asterisk; an invalid version is unchanged."""
    if _STARRED.search(version):
        return f"{Version(_STARRED.sub('', version))}.*"
    try:
        return str(Version(version))
    except ValueError:
        return version


@cache
def known_pypi_names(conda: str) -> tuple[str, ...]:
    """Return the PyPI projects that names.csv has for a conda package, the preferred one first; others are guesses."""
    rows = name_mappings().items()
    return tuple(pypi for pypi, row in rows if row.conda == conda and row.layout is WheelLayout.PYTHON)


def pypi_name(conda: str) -> str:
    """Return the PyPI project of a conda package, by default the one of the same name."""
    return next(iter(known_pypi_names(conda)), canonicalize_name(conda))


def pip_requirement(conda: str, constraints: Iterable[str]) -> str:
    """Return the requirement of a conda package with these version constraints for pip.

    A constraint that PEP 440 cannot express, such as one with ``|``, is omitted: the solver of packages applies it.
    """
    clauses = {clause for constraint in constraints for clause in pip_specifiers(constraint)}
    return f"{pypi_name(conda)}{','.join(sorted(clauses))}"


def pip_specifiers(constraint: str) -> tuple[str, ...]:
    """Return the PEP 440 specifiers of a version constraint in conda's notation, in which ``1.2`` is exact."""
    if not constraint or "|" in constraint or "(" in constraint:
        return ()
    clauses = [_pip_specifier(*match.groups()) for part in constraint.split(",") if (match := _CLAUSE.fullmatch(part))]
    return tuple(clause for clause in clauses if clause and _is_valid_specifier(clause))


def _pip_specifier(sign: str | None, version: str) -> str:
    starred, bare = version.endswith("*"), version.removesuffix("*").removesuffix(".")
    if not bare:
        return ""
    if sign in {None, "", "=", "=="}:
        return f"=={bare}.*" if starred or sign == "=" else f"=={bare}"
    return f"{sign}{bare}.*" if starred and sign == "!=" else f"{sign}{bare}"


def _is_valid_specifier(clause: str) -> bool:
    try:
        SpecifierSet(clause)
    except InvalidSpecifier:
        return False
    return True
