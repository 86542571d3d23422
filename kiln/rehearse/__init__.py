"""The parts of a rehearsal, which runs without a conda channel.

Upstream's wheel replaces the compile; the Python packages that it requires are made from wheels, and ``python`` from an
interpreter of this machine. The order: ``probe`` or ``find``, ``plan``, ``fetch``, then ``python_packages`` and
``dependency_packages``, whose files all belong in the channel's ``SUBDIR``. A package's name identifies its content, so
one that exists is used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.conda_package.writer import SUBDIR
from kiln.rehearse import wheels
from kiln.rehearse.cuda_packages import cuda_packages
from kiln.rehearse.interpreter import Interpreter, probe
from kiln.rehearse.locked_wheels import PYTHONS, RehearsalPlan, cuda_versions, plan
from kiln.rehearse.processor_packages import processor_packages
from kiln.rehearse.python_download import DEFAULT_CHANNEL, NO_CHANNEL, PythonRequest
from kiln.rehearse.python_download import fetch as fetch_python
from kiln.rehearse.python_download import fetched as fetched_pythons
from kiln.rehearse.python_package import python_packages
from kiln.rehearse.pythons import find, newest
from kiln.rehearse.wheel_package import PackageTarget, convert_all

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping
    from pathlib import Path

    from kiln.rehearse.locked_wheels import LockedWheel

__all__ = [
    "DEFAULT_CHANNEL",
    "NO_CHANNEL",
    "PYTHONS",
    "SUBDIR",
    "Interpreter",
    "PythonRequest",
    "RehearsalPlan",
    "cuda_versions",
    "dependency_packages",
    "fetch",
    "fetch_python",
    "fetched_pythons",
    "find",
    "missing",
    "newest",
    "plan",
    "probe",
    "python_packages",
    "upstream_wheel",
]


def missing(rehearsal_plan: RehearsalPlan, store: Path) -> tuple[LockedWheel, ...]:
    """Return the wheels that ``fetch`` would download into ``store``."""
    return wheels.missing(rehearsal_plan.wheels, store)


def fetch(
    rehearsal_plan: RehearsalPlan,
    store: Path,
    *,
    env: Mapping[str, str],
    log: Path | None = None,
    on_line: Callable[[str], None] | None = None,
) -> None:
    """Download all wheels of a plan into ``store`` and verify each against the hash of the lock.

    ``env`` is pip's environment, with its PIP_ variables and proxies. ``on_line`` gets pip's output, line by line.
    Raises HashMismatch, DownloadFailed and DiskFull.
    """
    wheels.fetch(rehearsal_plan.wheels, store, env=env, log=log, on_line=on_line)


def upstream_wheel(rehearsal_plan: RehearsalPlan, store: Path) -> Path:
    """Return the fetched wheel that replaces the compile; raises HashMismatch when it is not the lock's."""
    wheels.verify([rehearsal_plan.upstream], store)
    return store / rehearsal_plan.upstream.file


def dependency_packages(rehearsal_plan: RehearsalPlan, store: Path, folder: Path) -> tuple[Path, ...]:
    """Convert the fetched wheels of a plan, except upstream's, to conda packages in ``folder``, and return these.

    Raises BrokenPackage for an invalid or harmful wheel, HashMismatch and DiskFull.
    """
    wheels.verify(rehearsal_plan.dependencies, store)
    target = PackageTarget(python=rehearsal_plan.python, cuda=rehearsal_plan.cuda)
    wheel_files = [(store / wheel.file, wheel.sha256) for wheel in rehearsal_plan.dependencies]
    return (
        *convert_all(wheel_files, folder, target),
        *cuda_packages(rehearsal_plan.dependencies, folder, target),
        *processor_packages(folder),
    )
