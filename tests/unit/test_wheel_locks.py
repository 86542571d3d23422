"""The locks are made of the wheels that fit, one for each Python."""

from __future__ import annotations

from typing import Any

import pytest

from kiln.base.errors import DownloadFailed
from tests import wheel_locks


def package(*files: str, marker: str = "python_full_version >= '3.10'") -> dict[str, Any]:
    wheels = [{"url": f"https://x.invalid/ab/{file}", "hashes": {"sha256": file[-8:]}} for file in files]
    return {"name": "small", "version": "1.2", "marker": marker, "wheels": wheels}


@pytest.fixture(autouse=True)
def sizes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(wheel_locks, "_download_size", len)


def test_each_python_gets_its_own_wheel_and_no_other_platforms() -> None:
    files = [
        *(
            f"small-1.2-cp3{minor}-cp3{minor}-manylinux_2_17_x86_64.manylinux2014_x86_64.whl"
            for minor in (10, 11, 12, 13)
        ),
        "small-1.2-cp311-cp311-win_amd64.whl",
        "small-1.2-cp311-cp311-musllinux_1_2_x86_64.whl",
        "small-1.2-cp311-cp311-manylinux_2_17_aarch64.whl",
        "small-1.2-cp311-cp311-manylinux_2_35_x86_64.whl",
        "small-1.2-py3-none-any.whl",
    ]
    rows = list(wheel_locks._lock_rows(package(*files)))
    assert [(row["file"], row["pythons"]) for row in rows] == [
        (file, [python]) for file, python in zip(files, ("3.10", "3.11", "3.12", "3.13"), strict=False)
    ]


def test_one_wheel_serves_all_pythons_that_it_fits() -> None:
    (row,) = wheel_locks._lock_rows(package("small-1.2-cp310-abi3-manylinux2014_x86_64.whl"))
    assert row["pythons"] == ["3.10", "3.11", "3.12", "3.13"]
    assert row["size"] == len("https://x.invalid/ab/small-1.2-cp310-abi3-manylinux2014_x86_64.whl")


def test_the_newest_platform_that_fits_is_taken() -> None:
    (row,) = wheel_locks._lock_rows(
        package("small-1.2-py3-none-manylinux2014_x86_64.whl", "small-1.2-py3-none-manylinux_2_28_x86_64.whl")
    )
    assert row["file"] == "small-1.2-py3-none-manylinux_2_28_x86_64.whl"


def test_a_marker_keeps_a_package_to_its_pythons() -> None:
    (row,) = wheel_locks._lock_rows(package("small-1.2-py3-none-any.whl", marker="python_full_version == '3.11.*'"))
    assert row["pythons"] == ["3.11"]


def test_a_package_without_a_wheel_is_reported() -> None:
    with pytest.raises(DownloadFailed, match=r"small has no wheel for Python 3\.10"):
        list(wheel_locks._lock_rows(package("small-1.2-cp311-cp311-win_amd64.whl")))


def test_another_platform_gets_the_wheels_that_fit_it() -> None:
    files = ("small-1.2-py3-none-manylinux_2_17_x86_64.whl", "small-1.2-py3-none-manylinux2014_aarch64.whl")
    (row,) = wheel_locks._lock_rows(package(*files), "linux-aarch64")
    assert row["file"] == files[1]
    apple = [f"small-1.2-py3-none-macosx_{tag}.whl" for tag in ("14_0_arm64", "11_0_arm64", "10_9_x86_64")]
    (row,) = wheel_locks._lock_rows(package(*files, *apple), "osx-arm64")
    assert row["file"] == apple[1], "on macOS 12"
