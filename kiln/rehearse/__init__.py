"""The parts that let a rehearsal run without any conda channel.

Upstream's wheel takes the compile's place; the Python packages that it needs are made from wheels, and ``python`` from
an interpreter of this machine. The order: ``probe`` or ``find``, ``plan``, ``fetch``, then ``python_packages`` and
``dependency_packages``, whose files all belong in the channel's ``SUBDIR``. What was made before is found again by its
name, which stands for its content.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.rehearse import wheels
from kiln.rehearse.archive import SUBDIR
from kiln.rehearse.cuda_packages import cuda_packages
from kiln.rehearse.interpreter import Interpreter, find, probe
from kiln.rehearse.lock import RehearsalPlan, cuda_versions, plan
from kiln.rehearse.python_package import python_packages
from kiln.rehearse.wheel_package import Target, convert_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kiln.rehearse.lock import LockedWheel

__all__ = [
    "SUBDIR",
    "Interpreter",
    "RehearsalPlan",
    "cuda_versions",
    "dependency_packages",
    "fetch",
    "find",
    "missing",
    "plan",
    "probe",
    "python_packages",
    "upstream_wheel",
]


def missing(planned: RehearsalPlan, store: Path) -> tuple[LockedWheel, ...]:
    """Return the wheels that ``fetch`` would have to bring into ``store``."""
    return wheels.missing(planned.wheels, store)


def fetch(
    planned: RehearsalPlan,
    store: Path,
    *,
    env: Mapping[str, str],
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> None:
    """Bring all wheels of a plan into ``store``, each with the hash of the lock.

    ``env`` is pip's environment, with its PIP_ variables and proxies. ``on_line`` gets what pip says, line by line.
    Raises HashMismatch, DownloadFailed and DiskFull.
    """
    wheels.fetch(planned.wheels, store, env=env, log=log, on_line=on_line)


def upstream_wheel(planned: RehearsalPlan, store: Path) -> Path:
    """Return the fetched wheel that takes the compile's place; raises HashMismatch when it is not the lock's."""
    wheels.verify([planned.upstream], store)
    return store / planned.upstream.file


def dependency_packages(planned: RehearsalPlan, store: Path, folder: Path) -> tuple[Path, ...]:
    """Turn the fetched wheels of a plan, but upstream's, into conda packages in ``folder``, and return these.

    Raises BrokenPackage for a wheel that is no valid or no harmless one, HashMismatch and DiskFull.
    """
    wheels.verify(planned.dependencies, store)
    target = Target(python=planned.python, cuda=planned.cuda)
    fetched = [(store / wheel.file, wheel.sha256) for wheel in planned.dependencies]
    return (*convert_all(fetched, folder, target), *cuda_packages(planned.dependencies, folder, target))
