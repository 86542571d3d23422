"""The parts of a rehearsal, which runs without a conda channel.

Python packages are made from wheels, ``python`` from an interpreter of this machine, compilers and programs from this
machine's; for TensorFlow, upstream's wheel replaces the compile. The order: ``plan_from_locks``, with upstream's
wheel, or ``plan_config_rehearsal``, then ``wheel_download.fetch_wheels``, ``write_python_packages`` and
``convert_dependencies``, whose files all belong in the channel's folder ``conda_package.writer.SUBDIR``. A package's
name identifies its content, so one that exists is used again.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.rehearse.plan_types import LockedWheel, RehearsalPlan


def verified_upstream_wheel(upstream: LockedWheel, store: Path) -> Path:
    """Return the fetched wheel that replaces the compile; raises HashMismatch when it is not the lock's."""
    from kiln.rehearse import wheel_download

    wheel_download.verify_wheels([upstream], store)
    return store / upstream.file


def convert_dependencies(rehearsal_plan: RehearsalPlan, store: Path, folder: Path) -> tuple[Path, ...]:
    """Convert the fetched wheels of a plan, except upstream's, to conda packages in ``folder``, and return these.

    Stand-ins are made, too.

    Raises BrokenPackage for an invalid or harmful wheel, HashMismatch and DiskFull.
    """
    from kiln.conda_package.writer import write_metadata_only_package
    from kiln.rehearse import wheel_download
    from kiln.rehearse.stand_in_package_writer import cuda_metadata, microarch_level_metadata, write_stand_in_package
    from kiln.rehearse.wheel_conversion import PackageTarget, convert_wheels

    wheels = rehearsal_plan.dependencies
    wheel_download.verify_wheels(wheels, store)
    compiled = rehearsal_plan.upstream is None
    target = PackageTarget(python=rehearsal_plan.python, cuda=rehearsal_plan.cuda, as_conda_forge=compiled)
    wheel_files = [(store / wheel.file, wheel.sha256) for wheel in wheels]
    return (
        *convert_wheels(wheel_files, folder, target),
        *(
            write_metadata_only_package(folder, facts)
            for facts in (*cuda_metadata(wheels, target), *microarch_level_metadata())
        ),
        *(write_stand_in_package(stand_in, folder) for stand_in in rehearsal_plan.stand_ins),
    )
