"""The host environment of a CUDA config solves in a rehearsal's channel, and exports what the packages require."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.version import Version

from kiln.build.rehearsal.packages import PackageTarget, cuda_metadata, library_run_exports
from kiln.build.rehearsal.wheel_download import plan_from_locks
from kiln.conda import pypi
from kiln.conda.channel import LocalChannel
from kiln.conda.package_writer import PackageMetadata, write_metadata_only_package
from kiln.conda.solve import solve
from kiln.conda.specs import strict_rattler_spec
from kiln.feedstock import matrix
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import pins, render

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.build.rehearsal.wheels import LockedWheel

pytestmark = pytest.mark.sampled

ROOT = Path(__file__).parents[2]


def libraries(wheels: tuple[LockedWheel, ...], folder: Path, target: PackageTarget) -> Iterator[Path]:
    """Yield packages of the wheels' metadata: their files, gigabytes, decide nothing here."""
    for wheel in wheels:
        row = pypi.name_mapping(wheel.name)
        if row.layout is pypi.WheelLayout.LIBRARIES:
            own = row.exported_by == row.conda
            exports = library_run_exports(wheel.name, Version(wheel.version)) if own else {}
            facts = PackageMetadata(
                name=row.conda,
                version=wheel.version,
                build=target.cuda_tag,
                depends=target.cuda_requirements,
                run_exports=exports,
            )
            yield write_metadata_only_package(folder, facts)


@pytest.mark.parametrize("cuda", ["12.5", "12.9"])
def test_the_host_of_a_cuda_config_solves_in_a_rehearsals_channel(tmp_path: Path, cuda: str) -> None:
    wheels, target = plan_from_locks(python="3.12", cuda=cuda).dependencies, PackageTarget(python="3.12", cuda=cuda)
    (tmp_path / "made").mkdir()
    made = tmp_path / "made"
    dev_packages = (write_metadata_only_package(made, facts) for facts in cuda_metadata(wheels, target))
    packages = (*libraries(wheels, made, target), *dev_packages)
    channel = LocalChannel(root=tmp_path / "channel")
    channel.add((package, "linux-64") for package in packages)
    feedstock = recipe_feedstock.load(ROOT)
    config = next(config for config in matrix.configs(feedstock) if f"version{cuda}python3.12" in config.name)
    (framework,) = (
        output
        for output in pins.close_static_pins(render.render(feedstock, config)).outputs
        if output.name == "libtensorflow_framework"
    )
    host = [strict_rattler_spec(spec) for spec in framework.requirements.host]
    run = [strict_rattler_spec(spec) for spec in framework.requirements.run if not spec.startswith("__")]
    versions = {
        str(record.name.normalized): str(record.version) for record in solve([channel.url], host, virtual_packages={})
    }
    assert versions["cuda-version"] == cuda
    assert {
        "libcublas",
        "libcufft",
        "libcurand",
        "libcusolver",
        "libcusparse",
        "cuda-cudart",
        "nccl",
    } <= versions.keys()
    exported = [spec for wheel in wheels for spec in library_run_exports(wheel.name, Version(wheel.version))["weak"]]
    needed = [spec for spec in exported if spec.split()[0] in versions]
    assert solve([channel.url], [*run, *needed], virtual_packages={})
