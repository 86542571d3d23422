"""What two archives of a source ask for differs by the files at their top."""

from __future__ import annotations

import io
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from kiln.feedstock.bump.requirements import requirement_changes, requirements_of_archive

if TYPE_CHECKING:
    from pathlib import Path

PYPROJECT = """\
[build-system]
requires = ["setuptools>=40", "wheel"]
[project]
requires-python = ">=3.8"
dependencies = ["numpy>=1.20", "six", "tomli; python_version < '3.11'"]
"""


def archive(path: Path, files: dict[str, str], *, folder: str = "a-1/") -> Path:
    """Write an archive of the kind that the name says."""
    if path.suffix == ".zip":
        with zipfile.ZipFile(path, "w") as file:
            for name, text in files.items():
                file.writestr(f"{folder}{name}", text)
        return path
    with tarfile.open(path, "w:gz") as tar:
        for name, text in files.items():
            info = tarfile.TarInfo(f"{folder}{name}")
            info.size = len(text.encode())
            tar.addfile(info, io.BytesIO(text.encode()))
    return path


@pytest.mark.parametrize("ending", ["tar.gz", "zip"])
@pytest.mark.parametrize(
    ("old", "new", "lines"),
    [
        ({"pyproject.toml": PYPROJECT}, {"pyproject.toml": PYPROJECT}, ()),
        (
            {"pyproject.toml": PYPROJECT},
            {
                "pyproject.toml": PYPROJECT.replace(">=40", ">=61")
                .replace('"six"', '"attrs"')
                .replace(">=3.8", ">=3.10")
                .replace("numpy>=1.20", "numpy")
            },
            (
                "build: setuptools >=40 -> >=61",
                "run: attrs is new",
                "run: numpy >=1.20 -> (any)",
                "run: python >=3.8 -> >=3.10",
                "run: six is gone",
            ),
        ),
        (
            {"setup.cfg": "[options]\ninstall_requires =\n  a>=1\npython_requires = >=3.6\nsetup_requires = wheel\n"},
            {"setup.cfg": "[options]\ninstall_requires =\n  a>=2\npython_requires = >=3.6\n"},
            ("build: wheel is gone", "run: a >=1 -> >=2"),
        ),
        (
            {"PKG-INFO": "Metadata-Version: 2.1\nRequires-Dist: a\nRequires-Dist: b; extra == 'x'\n"},
            {"PKG-INFO": "Metadata-Version: 2.1\nRequires-Dist: a>=1\nRequires-Python: >=3.9\n"},
            ("run: a (any) -> >=1", "run: python >=3.9 is new"),
        ),
        (
            {"CMakeLists.txt": "cmake_minimum_required(VERSION 3.5)\n", "sub/dir/CMakeLists.txt": "x"},
            {"CMakeLists.txt": "# no\nCMAKE_MINIMUM_REQUIRED( VERSION 3.15...3.30 )\n"},
            ("build: cmake >=3.5 -> >=3.15...3.30",),
        ),
        (
            {"Cargo.toml": '[package]\nrust-version = "1.60"\n', "meson.build": "project('a', meson_version: '>=0.6')"},
            {"Cargo.toml": '[package]\nrust-version = "1.74"\n', "meson.build": "project('a', meson_version: '>=1.2')"},
            ("build: meson >=0.6 -> >=1.2", "build: rust >=1.60 -> >=1.74"),
        ),
    ],
    ids=["same", "pyproject", "setup.cfg", "PKG-INFO", "cmake", "cargo and meson"],
)
def test_requirements_that_differ_are_listed(
    old: dict[str, str], new: dict[str, str], lines: tuple[str, ...], ending: str, tmp_path: Path
) -> None:
    before = archive(tmp_path / f"a.{ending}", old)
    assert requirement_changes(before, archive(tmp_path / f"b.{ending}", new, folder="a-2/")) == lines


@pytest.mark.parametrize("data", [b"", b"text", b"PK\x03\x04broken", b"\x1f\x8b\x08broken"])
def test_what_is_no_archive_asks_for_nothing(data: bytes, tmp_path: Path) -> None:
    path = tmp_path / "a"
    path.write_bytes(data)
    assert requirements_of_archive(path) == {}
    whole = archive(tmp_path / "b.tar.gz", {"pyproject.toml": PYPROJECT})
    assert requirement_changes(path, whole) == ()


def test_files_that_cannot_be_read_are_passed_over(tmp_path: Path) -> None:
    path = archive(
        tmp_path / "a.tar.gz", {"pyproject.toml": "[[", "setup.cfg": "x", "CMakeLists.txt": "x", "PKG-INFO": "\0"}
    )
    assert requirements_of_archive(path) == {}
