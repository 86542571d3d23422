"""Run exports of a build step are read from the engine's own record."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BuildFailed
from kiln.build.engine.dependencies import run_exports_of_package
from kiln.build.steps import RunExport
from tests.packages import conda_package

if TYPE_CHECKING:
    from pathlib import Path

RECORD = """\
recipe: {}
finalized_dependencies:
  run:
    depends:
    - spec: zlib >=1.3,<2
      from: host
      run_export: zlib-devel
    - source: not an export
    constraints: []
"""


def test_run_exports_have_the_package_that_they_are_of(tmp_path: Path) -> None:
    package = conda_package(tmp_path / "kiln-compile-0-compile.conda", {"recipe/rendered_recipe.yaml": RECORD})
    assert run_exports_of_package(package) == (RunExport(spec="zlib >=1.3,<2", package="zlib-devel"),)


@pytest.mark.parametrize("record", ["", "finalized_dependencies: 1\n", "recipe: {}\n"])
def test_a_package_without_the_record_is_refused(record: str, tmp_path: Path) -> None:
    package = conda_package(tmp_path / "kiln-compile-0-compile.conda", {"recipe/rendered_recipe.yaml": record})
    with pytest.raises(BuildFailed, match="no record of its dependencies"):
        run_exports_of_package(package)
