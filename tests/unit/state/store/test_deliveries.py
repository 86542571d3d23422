"""What other machines deliver is exactly what a config renders."""

from __future__ import annotations

import dataclasses
import os
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import files
from kiln.base.errors import BrokenPackage, HashMismatch
from kiln.state.store import deliveries
from tests import builders
from tests.packages import conda_package
from tests.releases import candidate

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from kiln.state.results import PackageReport

OUTPUTS = [
    dataclasses.replace(output, build_string="h_0") for name in ("app", "lib") if (output := candidate(name).output)
]
WHEEL = "wheels/cpu/app-1-py3-none-any.whl"


def delivered(folder: Path, place: str, **changes: Any) -> PackageReport:
    """Write a delivered file, and return its report."""
    subdir, _, name = place.rpartition("/")
    stem, version, build = name.rsplit(".", 1)[0].split("-")[:3]
    metadata = changes.pop("metadata", {})
    said = {"name": stem, "version": version, "build": build, "subdir": subdir, **metadata}
    info = {"index.json": said, "paths.json": {"paths": [], "paths_version": 1}}
    (folder / subdir).mkdir(parents=True, exist_ok=True)
    conda_package(folder / subdir / name, info)
    file = folder / place
    named = {"name": stem, "subdir": subdir, "version": version, "build_string": build}
    fields = {**named, "path": file, "sha256": files.sha256(file), "size": file.stat().st_size, **changes}
    return builders.package_report(**fields)


APP, LIB = "linux-64/app-1-h_0.conda", "linux-64/lib-1-h_0.conda"


@pytest.mark.parametrize(
    ("places", "changes", "reason"),
    [
        ((APP, LIB), {}, ""),
        ((APP, LIB, WHEEL), {}, ""),
        ((APP,), {}, f"was delivered without {LIB}"),
        ((), {}, f"was delivered without {APP}"),
        ((APP, LIB, LIB), {}, f"was delivered with {LIB} twice"),
        ((APP, LIB, "linux-64/openssl-9.9.9-h0_0.conda"), {}, "openssl-9.9.9-h0_0.conda, which it does not render"),
        ((APP, "linux-64/lib-1-h_1.conda"), {}, "lib-1-h_1.conda, which it does not render"),
        ((APP, "linux-64/lib-2-h_0.conda"), {}, "lib-2-h_0.conda, which it does not render"),
        ((APP, "noarch/lib-1-h_0.conda"), {}, "noarch/lib-1-h_0.conda, which it does not render"),
        ((APP, "linux-aarch64/lib-1-h_0.conda"), {}, "linux-aarch64/lib-1-h_0.conda, which it does not render"),
        ((APP, LIB, "wheels/cuda12.9/app-1-py3-none-any.whl"), {}, "which it does not render"),
        ((APP, LIB), {"name": "openssl"}, "delivered with the name 'openssl'"),
        ((APP, LIB), {"version": "2"}, "delivered with the version '2'"),
        ((APP, LIB), {"build_string": "h_1"}, "delivered with the build 'h_1'"),
        ((APP, LIB), {"metadata": {"name": "openssl"}}, "delivered with the name 'openssl'"),
        ((APP, LIB), {"metadata": {"version": "99"}}, "delivered with the version '99'"),
        ((APP, LIB), {"metadata": {"build": "h_9"}}, "delivered with the build 'h_9'"),
        ((APP, LIB), {"metadata": {"subdir": "noarch"}}, "delivered with the subdir 'noarch'"),
        ((APP, LIB), {"metadata": {"name": None}}, "delivered with the name 'None'"),
    ],
)
def test_a_delivery_is_what_its_config_renders(
    tmp_path: Path, places: tuple[str, ...], changes: dict[str, Any], reason: str
) -> None:
    reports = [delivered(tmp_path, place, **(changes if place == LIB else {})) for place in places]
    if not reason:
        deliveries.require_rendered_packages("a", "cpu", OUTPUTS, reports)
        return
    with pytest.raises(BrokenPackage) as refused:
        deliveries.require_rendered_packages("a", "cpu", OUTPUTS, reports)
    assert reason in refused.value.what


@pytest.mark.parametrize(
    ("changes", "error"),
    [
        ({"size": -1}, BrokenPackage),
        ({"size": -(10**15)}, BrokenPackage),
        ({"size": 1.5}, BrokenPackage),
        ({"size": True}, BrokenPackage),
        ({"size": 10**15}, HashMismatch),
        ({"size": 1}, HashMismatch),
        ({"sha256": "0" * 64}, HashMismatch),
        ({"sha256": ""}, HashMismatch),
        ({"subdir": ".."}, BrokenPackage),
        ({"subdir": "linux-64/../noarch"}, BrokenPackage),
    ],
)
def test_a_package_has_the_size_and_the_hash_of_its_report(
    tmp_path: Path, changes: dict[str, Any], error: type[Exception]
) -> None:
    with pytest.raises(error):
        deliveries.verify_received_package(tmp_path, delivered(tmp_path, APP, **changes))


def too_long(path: Path) -> None:
    with path.open("wb") as file:
        file.truncate(deliveries.LONGEST_REPORT + 1)


@pytest.mark.parametrize(
    "make",
    [
        lambda _: None,
        os.mkfifo,
        lambda path: path.symlink_to("/dev/zero"),
        lambda path: path.mkdir(),
        too_long,
        lambda path: path.write_text("{"),
        lambda path: path.write_text("[" * 100_000),
    ],
)
def test_a_report_is_a_regular_file_of_limited_size(tmp_path: Path, make: Callable[[Path], object]) -> None:
    make(tmp_path / "report.json")
    with pytest.raises((OSError, ValueError)):
        deliveries.read_report(tmp_path / "report.json")


@pytest.mark.parametrize(
    ("subdir", "name"),
    [
        ("linux-64", "app-1-h_0.tar.bz2"),
        ("linux-64", "-rf-1-h_0.conda"),
        ("linux-64", ".app-1-h_0.conda"),
        ("linux-64", "app-1-h_0.conda\n"),
        ("linux-64", "app-1-\x1b[2Jh_0.conda"),
        ("linux-64", "app 1-h_0.conda"),
        ("linux-64/", "app-1-h_0.conda"),
        ("wheels", "app-1-py3-none-any.whl"),
        ("wheels/..", "app-1-py3-none-any.whl"),
        ("wheels/cpu", "-app-1-py3-none-any.whl"),
    ],
)
def test_a_delivered_name_is_that_of_a_package(tmp_path: Path, subdir: str, name: str) -> None:
    report = delivered(tmp_path, APP, subdir=subdir, path=tmp_path / name)
    with pytest.raises(BrokenPackage, match="is not the name of a package"):
        deliveries.verify_received_package(tmp_path, report)


@pytest.mark.parametrize(
    "make", [lambda _: None, os.mkfifo, lambda path: path.mkdir(), lambda path: path.symlink_to("/dev/zero")]
)
def test_a_delivered_package_is_a_regular_file(tmp_path: Path, make: Callable[[Path], object]) -> None:
    report = delivered(tmp_path, APP)
    report.artifact.path.unlink()
    make(report.artifact.path)
    with pytest.raises(BrokenPackage, match="is missing"):
        deliveries.verify_received_package(tmp_path, report)
