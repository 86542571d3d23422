"""The tests that a package carries are read in both layouts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.errors import BrokenPackage
from kiln.package_test.packed_tests import carried_tests

if TYPE_CHECKING:
    from pathlib import Path

RATTLER = """\
- python:
    imports:
    - a.b
    pip_check: true
- script:
    content:
    - echo one
    - test -f x
    cwd: etc/conda/test-files/a/1
  requirements:
    run:
    - dep ==1
- package_contents:
    files:
    - x
- downstream: other
"""


def test_the_layout_of_rattler_build(tmp_path: Path) -> None:
    (tmp_path / "tests").mkdir()
    (tmp_path / "tests" / "tests.yaml").write_text(RATTLER)
    tests = carried_tests(tmp_path)
    assert tests.lines == (
        "python -c 'import a.b'",
        "pip check",
        'pushd "$PREFIX"/etc/conda/test-files/a/1 >/dev/null',
        *("echo one", "test -f x"),
        "popd >/dev/null",
    )
    assert (tests.requires, tests.files) == (("dep ==1",), {})


def test_the_layout_of_conda_build(tmp_path: Path) -> None:
    folder = tmp_path / "test"
    folder.mkdir()
    for name in ("run_test.sh", "run_test.py", "data"):
        (folder / name).touch()
    (folder / "test_time_dependencies.json").write_text(json.dumps(["dep 1"]))
    tests = carried_tests(tmp_path)
    assert tests.lines == ("python -s run_test.py", ". ./run_test.sh")
    assert (tests.requires, tests.files) == (("dep 1",), {".": folder})


def test_a_package_without_tests(tmp_path: Path) -> None:
    assert carried_tests(tmp_path).lines == ()


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("tests/tests.yaml", "- script:\n    content: x\n    interpreter: nu\n"),
        ("tests/tests.yaml", "- script:\n    file: x.sh\n"),
        ("tests/tests.yaml", "- text\n"),
        ("tests/tests.yaml", "{"),
        ("test/test_time_dependencies.json", "3"),
    ],
)
def test_tests_that_cannot_be_read_are_an_error(tmp_path: Path, name: str, text: str) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(text)
    with pytest.raises(BrokenPackage, match="cannot be read"):
        carried_tests(tmp_path)
