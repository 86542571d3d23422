"""The packages that ask for a level of the processor."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

import pytest

from kiln.build.rehearsal.packages import NAME, PackageTarget, cuda_metadata, microarch_level_metadata
from kiln.build.rehearsal.wheel_download import plan_from_locks
from kiln.conda.package_writer import write_metadata_only_package
from tests.unit.build.sample import info, unpacked

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("processor", "levels"),
    [
        ("x86_64", {"1"}),
        ("x86_64_v2", {"1", "2"}),
        ("sandybridge", {"1", "2"}),
        ("zen", {"1", "2", "3"}),
        ("zen5", {"1", "2", "3", "4"}),
        ("a_processor_of_next_year", {"1", "2", "3", "4"}),
    ],
)
def test_a_processor_has_its_level_and_those_below(processor: str, levels: set[str]) -> None:
    accepted = set()
    for facts in microarch_level_metadata():
        (spec,) = facts.depends
        _, version, *build = spec.split(" ")
        assert version == "1.*"
        if all(re.match(pattern, processor) for pattern in build):
            accepted.add(facts.version)
    assert accepted == levels


def test_each_level_is_a_package_without_files(tmp_path: Path) -> None:
    packages = [write_metadata_only_package(tmp_path, facts) for facts in microarch_level_metadata()]
    assert [info(package, "index")["version"] for package in packages] == ["1", "2", "3", "4"]
    assert {info(package, "index")["name"] for package in packages} == {NAME}
    assert all(name.startswith("info/") for package in packages for name in unpacked(package))


@pytest.mark.parametrize("cuda", ["12.5", "12.9"])
def test_each_library_has_its_dev_package_and_all_have_one_version(cuda: str) -> None:
    wheels = plan_from_locks(python="3.11", cuda=cuda).dependencies
    facts = {item.name: item for item in cuda_metadata(wheels, PackageTarget(python="3.11", cuda=cuda))}
    assert facts["cuda-version"].version == cuda
    (cudart,) = (wheel.version for wheel in wheels if wheel.name == "nvidia-cuda-runtime-cu12")
    assert facts["cuda-cudart-dev"].depends == (f"cuda-version {cuda}.*", f"cuda-cudart =={cudart}")
    assert facts["cuda-cudart-dev"].run_exports == {"weak": (f"cuda-cudart >={cudart},<13.0a0",)}
    assert len(facts) == 10
    assert not {"cudnn", "nccl", "cuda-nvcc-tools"} & facts.keys()


def test_they_are_written_once(tmp_path: Path) -> None:
    planned, target = plan_from_locks(python="3.11", cuda="12.9"), PackageTarget(python="3.11", cuda="12.9")
    facts = list(cuda_metadata(planned.dependencies, target))
    packages = [write_metadata_only_package(tmp_path, item) for item in facts]
    times = [package.stat().st_mtime_ns for package in packages]
    assert [write_metadata_only_package(tmp_path, item) for item in facts] == packages
    assert [package.stat().st_mtime_ns for package in packages] == times
    assert all(name.startswith("info/") for name in unpacked(packages[0]))
    assert info(packages[0], "about")["extra"] == {"rehearsal": True}


def test_a_config_without_cuda_has_no_cuda_packages() -> None:
    assert not list(cuda_metadata(plan_from_locks(python="3.11").dependencies, PackageTarget(python="3.11")))
