"""The tests that a package carries are read in both layouts."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BrokenPackage
from kiln.build.test.specs import read_packed_tests
from kiln.recipe.rendered import OutputTest, Script

if TYPE_CHECKING:
    from pathlib import Path

# As rattler-build 0.73 writes it, with two entries of package_contents, which it leaves out.
RATTLER = """\
- python:
    imports:
    - a.b
- python:
    imports:
    - a
    pip_check: false
    python_version: '3.11'
- python:
    python_version:
    - '3.11'
    - 3.12.*
- perl:
    uses:
    - X::Y
- r:
    libraries:
    - l
- ruby:
    requires:
    - q
- script:
    interpreter: python
    env:
      NAME: value
    content: |
      import os
      print(os.environ["NAME"])
    cwd: etc/conda/test-files/a/1
  requirements:
    run:
    - dep ==1
    build:
    - make
  files:
    recipe:
    - x
- script:
  - echo one
  - test -f x
- package_contents:
    files:
    - x
- downstream: other
"""


def of(folder: Path, text: str) -> tuple[OutputTest, ...]:
    (folder / "tests").mkdir()
    (folder / "tests" / "tests.yaml").write_text(text)
    return read_packed_tests(folder)


def test_the_layout_of_rattler_build(tmp_path: Path) -> None:
    assert of(tmp_path, RATTLER) == (
        OutputTest(imports=("a.b",), pip_check=True, by_engine=True),
        OutputTest(imports=("a",), pythons=("3.11",), by_engine=True),
        OutputTest(pip_check=True, pythons=("3.11", "3.12.*"), by_engine=True),
        OutputTest(modules={"perl": ("X::Y",)}, by_engine=True),
        OutputTest(modules={"r": ("l",)}, by_engine=True),
        OutputTest(modules={"ruby": ("q",)}, by_engine=True),
        OutputTest(
            script=Script(
                lines=('import os\nprint(os.environ["NAME"])\n',),
                interpreter="python",
                environment={"NAME": "value"},
                folder="etc/conda/test-files/a/1",
            ),
            requires=("dep ==1",),
            requires_build=("make",),
            by_engine=True,
        ),
        OutputTest(script=Script(lines=("echo one", "test -f x")), by_engine=True),
    )


def test_the_layout_of_conda_build(tmp_path: Path) -> None:
    folder = tmp_path / "test"
    folder.mkdir()
    for name in ("run_test.sh", "run_test.py", "data"):
        (folder / name).touch()
    (folder / "test_time_dependencies.json").write_text(json.dumps(["dep 1"]))
    scripts = {"run_test.py": "run_test.py", "run_test.sh": "run_test.sh"}
    assert read_packed_tests(tmp_path) == (OutputTest(scripts=scripts, requires=("dep 1.*",)),)


def test_a_package_without_tests(tmp_path: Path) -> None:
    assert read_packed_tests(tmp_path) == ()


@pytest.mark.parametrize(
    ("name", "text", "why"),
    [
        ("tests/tests.yaml", "- script:\n    content: x\n    interpreter: cmd\n", "the interpreter 'cmd'"),
        ("tests/tests.yaml", "- script:\n    file: x.sh\n", "has no content"),
        ("tests/tests.yaml", "- lua:\n    imports: [x]\n", "of the kind 'lua' are not supported"),
        ("tests/tests.yaml", "- text\n", ""),
        ("tests/tests.yaml", "{", ""),
        ("test/test_time_dependencies.json", "3", ""),
    ],
)
def test_tests_that_cannot_be_run_are_an_error(tmp_path: Path, name: str, text: str, why: str) -> None:
    (tmp_path / name).parent.mkdir()
    (tmp_path / name).write_text(text)
    if name.endswith(".json"):
        (tmp_path / "test" / "run_test.sh").touch()
    with pytest.raises(BrokenPackage, match="cannot be run") as refused:
        read_packed_tests(tmp_path)
    assert why in refused.value.what
