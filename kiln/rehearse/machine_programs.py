"""The programs of this machine that can stand in for packages of a channel, and their versions."""

from __future__ import annotations

import shutil
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files, process_runner
from kiln.errors import MissingTool
from kiln.lazy_pattern import lazy_pattern
from kiln.version_spec import matches

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

TABLE = Path(__file__).with_name("stand_ins.csv")
UNKNOWN_VERSION = "0"
_SECONDS = 30.0
_VERSION = lazy_pattern(r"(?<![\w.])v?(\d+(?:\.\d+)+)")
_NUMBERS = lazy_pattern(r"\d+(?:\.\d+)*")


@dataclass(frozen=True, slots=True, kw_only=True)
class ProgramPackage:
    """A row of the table: the programs of a conda package, and the PyPI project with the same programs, if any."""

    programs: tuple[str, ...]
    pypi: str


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineProgram:
    """A program of this machine; ``version`` is 0 where it is unknown."""

    path: Path
    version: str


@cache
def program_packages() -> Mapping[str, ProgramPackage]:
    """Return the packages that programs can stand in for, by conda name."""
    return {
        row["conda"]: ProgramPackage(programs=tuple(row["programs"].split()), pypi=row["pypi"])
        for row in files.csv_rows(TABLE)
    }


def find_program(name: str, env: Mapping[str, str]) -> MachineProgram | None:
    """Return a program of PATH, or of the running Python's folder, with its version, or None."""
    path = program_paths((name,), env).get(name)
    if path is None:
        return None
    try:
        result = process_runner.capture((path, "--version"), env=env, timeout=_SECONDS)
    except (MissingTool, OSError):
        return None
    match = _VERSION.search(result.stdout or result.tail)
    return MachineProgram(path=Path(path), version=match[1] if match else UNKNOWN_VERSION)


def program_paths(names: Iterable[str], env: Mapping[str, str]) -> dict[str, str]:
    """Return the paths of those programs that this machine has, by their names."""
    search = f"{env.get('PATH', '')}:{Path(sys.executable).parent}"
    located = ((name, shutil.which(name, path=search)) for name in names)
    return {name: str(Path(path).absolute()) for name, path in located if path is not None}


def satisfies_constraints(version: str, constraints: Iterable[str]) -> bool:
    """Return whether a version satisfies all constraints, in conda's notation; an invalid one is not satisfied."""
    try:
        return all(matches(version, constraint) for constraint in constraints if constraint)
    except ValueError:
        return False


def fitting_stand_in_version(own: str, constraints: Iterable[str]) -> str:
    """Return the version for a stand-in: its own if that satisfies the constraints, else one of theirs that does.

    Without any, the own version is returned, and the solver refuses the package.
    """
    texts = [constraint for constraint in constraints if constraint]
    if satisfies_constraints(own, texts):
        return own
    numbers = [number for text in texts for number in _NUMBERS.findall(text)]
    return next((number for number in numbers if satisfies_constraints(number, texts)), own)
