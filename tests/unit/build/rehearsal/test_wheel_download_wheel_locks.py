"""The locks: complete for every config, free of anything that is not a wheel's own."""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
from packaging.utils import parse_wheel_filename

from kiln.base.errors import UnsupportedPython, VariantFault
from kiln.build.rehearsal.wheel_download import (
    LOCKS,
    PYTHONS,
    cuda_versions,
    known_upstream_wheel_gaps,
    plan_from_locks,
    read_lock,
    upstream_wheel_gaps,
)
from kiln.conda import pypi
from kiln.recipe import feedstock

if TYPE_CHECKING:
    from kiln.build.rehearsal.wheels import LockedWheel

ALL = ["cpu", *(f"cuda{version}" for version in cuda_versions())]
ROOT = Path(__file__).parents[4]


def versions(wheels: tuple[LockedWheel, ...]) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in wheels}


def test_the_cuda_versions_of_the_matrix_can_be_rehearsed() -> None:
    assert cuda_versions() == ("12.5", "12.9")


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("cuda", [None, "12.5", "12.9"])
def test_each_config_has_upstreams_wheel_and_each_package_once(python: str, cuda: str | None) -> None:
    planned = plan_from_locks(python=python, cuda=cuda)
    assert planned.upstream is not None
    assert planned.upstream.name == ("tensorflow" if cuda else "tensorflow-cpu")
    assert planned.upstream.version == "2.21.0"
    assert f"cp{python.replace('.', '')}" in planned.upstream.file
    assert len(versions(planned.wheels)) == len(planned.wheels)
    assert {"numpy", "keras", "pip", "setuptools"} <= versions(planned.dependencies).keys()
    assert ("nvidia-cudnn-cu12" in versions(planned.dependencies)) == (cuda is not None)


@pytest.mark.parametrize("cuda", ["12.5", "12.9"])
def test_the_libraries_are_those_of_the_configs_cuda(cuda: str) -> None:
    result = versions(plan_from_locks(python="3.11", cuda=cuda).wheels)
    coupled = ("cublas", "cuda-cupti", "cuda-nvcc", "cuda-nvrtc", "cuda-runtime", "nvjitlink")
    assert all(result[f"nvidia-{name}-cu12"].startswith(f"{cuda}.") for name in coupled)


@pytest.mark.parametrize("python", PYTHONS)
def test_configs_of_one_python_share_their_python_packages(python: str) -> None:
    cpu, *others = (versions(plan_from_locks(python=python, cuda=cuda).dependencies) for cuda in (None, "12.5", "12.9"))
    for other in others:
        assert {name: version for name, version in other.items() if not name.startswith("nvidia-")} == cpu


@pytest.mark.parametrize("lock", ALL)
def test_each_row_is_a_wheel_of_its_package(lock: str) -> None:
    for wheel in read_lock(lock):
        name, version, _, _ = parse_wheel_filename(wheel.file)
        assert (name, str(version)) == (wheel.name, wheel.version)
        assert re.fullmatch(r"[0-9a-f]{64}", wheel.sha256)
        assert wheel.size > 0
        assert set(wheel.pythons) <= set(PYTHONS)


@pytest.mark.parametrize("lock", ALL)
def test_no_address_is_in_the_locks(lock: str) -> None:
    assert "://" not in (LOCKS / f"{lock}.json").read_text()
    assert list(json.loads((LOCKS / f"{lock}.json").read_text())) == ["wheels"]


@pytest.mark.parametrize("lock", ALL)
def test_the_conda_name_of_each_package_is_known(lock: str) -> None:
    assert {wheel.name for wheel in read_lock(lock)} <= pypi.name_mappings().keys()


def test_an_unknown_python_or_cuda_is_refused_with_what_there_is() -> None:
    with pytest.raises(UnsupportedPython, match=r"no wheels for Python 3\.9") as python:
        plan_from_locks(python="3.9")
    assert "use Python 3.10, 3.11, 3.12 or 3.13" in str(python.value)
    with pytest.raises(VariantFault, match=r"no wheels for CUDA 11\.8") as cuda:
        plan_from_locks(python="3.11", cuda="11.8")
    assert "CUDA 12.5 or 12.9" in str(cuda.value)


def test_each_row_is_of_an_output_of_this_feedstock_and_has_a_source() -> None:
    names = (feedstock.load(ROOT).root / "outputs.txt").read_text(encoding="utf-8").splitlines()
    assert known_upstream_wheel_gaps()
    for gap in known_upstream_wheel_gaps():
        assert gap.output in names
        assert gap.source


@pytest.mark.parametrize(
    ("outputs", "notes"),
    [
        (("tensorflow", "small"), []),
        (
            ("libtensorflow", "libtensorflow_cc"),
            [
                "upstream's wheel has no libtensorflow.so: libtensorflow is not made",
                "upstream's wheel has no tensorflow::ClientSession: libtensorflow_cc is made without it",
            ],
        ),
    ],
)
def test_the_gaps_of_outputs_are_described(outputs: tuple[str, ...], notes: list[str]) -> None:
    assert [gap.note for gap in upstream_wheel_gaps(outputs)] == notes
