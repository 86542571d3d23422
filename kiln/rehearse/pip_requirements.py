"""Requirements of conda packages as pip's, and the PyPI names of conda packages."""

from __future__ import annotations

from functools import cache
from typing import TYPE_CHECKING

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from packaging.utils import canonicalize_name

from kiln.lazy_pattern import lazy_pattern
from kiln.rehearse import conda_names

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

_CLAUSE = lazy_pattern(r"(==|!=|<=|>=|~=|<|>|=)?\s*(\S+)")


@cache
def _pypi_names() -> Mapping[str, tuple[str, ...]]:
    names: dict[str, list[str]] = {}
    for pypi, row in conda_names.known_names().items():
        if row.layout is conda_names.WheelLayout.PYTHON:
            names.setdefault(row.conda, []).append(pypi)
    return {conda: tuple(pypi) for conda, pypi in names.items()}


def known_pypi_names(conda: str) -> tuple[str, ...]:
    """Return the PyPI projects that names.csv has for a conda package, the preferred one first."""
    return _pypi_names().get(conda, ())


def pypi_name(conda: str) -> str:
    """Return the PyPI project of a conda package, by default the one of the same name."""
    return next(iter(known_pypi_names(conda)), canonicalize_name(conda))


def has_known_project(conda: str) -> bool:
    """Return whether names.csv has the conda package, so that its project is not a guess."""
    return bool(known_pypi_names(conda))


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
    clauses = [_specifier(*match.groups()) for part in constraint.split(",") if (match := _CLAUSE.fullmatch(part))]
    return tuple(clause for clause in clauses if clause and _is_valid(clause))


def _specifier(sign: str | None, version: str) -> str:
    starred, bare = version.endswith("*"), version.removesuffix("*").removesuffix(".")
    if not bare:
        return ""
    if sign in {None, "", "=", "=="}:
        return f"=={bare}.*" if starred or sign == "=" else f"=={bare}"
    return f"{sign}{bare}.*" if starred and sign == "!=" else f"{sign}{bare}"


def _is_valid(clause: str) -> bool:
    try:
        SpecifierSet(clause)
    except InvalidSpecifier:
        return False
    return True
