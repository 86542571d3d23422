"""CUDA packages without files: ``cuda-version``, which ties the libraries together, and the ``-dev`` packages."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from kiln.conda_package.writer import PackageFacts, write_metadata_package
from kiln.rehearse import conda_names
from kiln.rehearse.wheel_package import CONVERTER, PackageTarget, run_exports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kiln.rehearse.plan_types import LockedWheel


def cuda_packages(wheels: Iterable[LockedWheel], folder: Path, target: PackageTarget) -> tuple[Path, ...]:
    """Write ``cuda-version`` and the ``-dev`` packages of the wheels' libraries into ``folder``; none without CUDA.

    A ``-dev`` package requires its library and has the same ``run_exports`` as conda-forge's; the headers are in the
    library's package.
    """
    return (
        tuple(write_metadata_package(folder, facts) for facts in package_metadata(wheels, target))
        if target.cuda
        else ()
    )


def package_metadata(wheels: Iterable[LockedWheel], target: PackageTarget) -> Iterator[PackageFacts]:
    """Yield the metadata of each package."""
    build = f"{target.cuda_tag}_rehearsal_{CONVERTER}"
    yield PackageFacts(name="cuda-version", version=str(target.cuda), build=build)
    for wheel in wheels:
        name, exporter = conda_names.conda_name(wheel.name), conda_names.exporting_package(wheel.name)
        if exporter and exporter != name:
            yield PackageFacts(
                name=exporter,
                version=wheel.version,
                build=build,
                depends=(*target.cuda_requirements, f"{name} =={wheel.version}"),
                run_exports=run_exports(wheel.name, Version(wheel.version)),
            )
