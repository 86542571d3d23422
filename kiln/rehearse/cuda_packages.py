"""The packages of CUDA that hold no files: the version that ties the libraries together, and the ``-dev`` names."""

from __future__ import annotations

from typing import TYPE_CHECKING

from packaging.version import Version

from kiln.rehearse import names
from kiln.rehearse.archive import PackageFacts, package
from kiln.rehearse.wheel_package import CONVERTER, Target, run_exports

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path

    from kiln.rehearse.lock import LockedWheel


def cuda_packages(wheels: Iterable[LockedWheel], folder: Path, target: Target) -> tuple[Path, ...]:
    """Write ``cuda-version`` and the ``-dev`` packages of the wheels' libraries into ``folder``; none without CUDA.

    A ``-dev`` package requires its library and has the ``run_exports`` that conda-forge's has; the headers lie in the
    library's own package.
    """
    return tuple(_write(facts, folder) for facts in described(wheels, target)) if target.cuda else ()


def described(wheels: Iterable[LockedWheel], target: Target) -> Iterator[PackageFacts]:
    """Yield what each of the packages says about itself."""
    build = f"{target.cuda_tag}_rehearsal_{CONVERTER}"
    yield PackageFacts(name="cuda-version", version=str(target.cuda), build=build)
    for wheel in wheels:
        name, exporter = names.conda_name(wheel.name), names.exported_by(wheel.name)
        if exporter and exporter != name:
            yield PackageFacts(
                name=exporter,
                version=wheel.version,
                build=build,
                depends=(*target.cuda_requirements, f"{name} =={wheel.version}"),
                run_exports=run_exports(wheel.name, Version(wheel.version)),
            )


def _write(facts: PackageFacts, folder: Path) -> Path:
    path = folder / f"{facts.stem}.conda"
    if not path.is_file():
        with package(folder, facts):
            pass  # all that there is stands in the facts
    return path
