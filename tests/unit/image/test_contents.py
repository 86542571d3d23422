"""A slim image includes the files of packages that programs need."""

from __future__ import annotations

import csv
from typing import TYPE_CHECKING

import pytest

from kiln.image import contents
from tests.unit.image.packages import PACKAGE

if TYPE_CHECKING:
    from pathlib import Path


@pytest.mark.parametrize(
    ("path", "included"),
    [
        ("lib/libx.so.1", True),
        ("lib/python3.11/site-packages/x/__init__.py", True),
        ("lib/python3.11/site-packages/tensorflow/_api/v2/test/__init__.py", True),
        ("lib/python3.11/site-packages/keras/src/testing/test_case.py", True),
        ("lib/python3.11/lib-dynload/_ssl.cpython-311-x86_64-linux-gnu.so", True),
        ("share/licenses/x/LICENSE", True),
        ("lib/libx.a", False),
        ("include/x.h", False),
        ("lib/python3.11/site-packages/tensorflow/include/tensorflow/c/c_api.h", False),
        ("lib/python3.11/site-packages/numpy/tests/test_x.py", False),
        ("lib/python3.11/test/test_x.py", False),
        ("lib/python3.11/site-packages/x/__pycache__/y.cpython-311.pyc", False),
        ("share/man/man1/x.1", False),
        ("bin/pip3.11", False),
        ("conda-meta/x.json", False),
    ],
)
def test_the_selection_includes_the_files_that_programs_need(path: str, *, included: bool) -> None:
    assert contents.read_file_selection(()).includes(path) is included


def test_each_exclusion_has_a_reason() -> None:
    with contents.LEFT_OUT.open(encoding="utf-8", newline="") as file:
        rows = list(csv.DictReader(file))
    assert len(rows) > 20
    assert all(row["kind"] in {"package", "file"} and row["pattern"] and row["reason"] for row in rows)
    assert len({row["pattern"] for row in rows}) == len(rows)


def test_an_excluded_package_has_no_entries(tmp_path: Path) -> None:
    for name in PACKAGE.files:
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).touch()
    selection = contents.read_file_selection(())
    assert [entry.path for entry in contents.included_entries(tmp_path, PACKAGE, selection, below="/opt")] == [
        "/opt/bin/tool",
        "/opt/lib/libx.so",
    ]
    assert (
        list(contents.included_entries(tmp_path, PACKAGE, contents.read_file_selection(["tensorflow"]), below="/opt"))
        == []
    )
