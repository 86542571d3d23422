"""A wheel's name is taken at its word, and a wheel for another Python than its config's is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.base.errors import BrokenPackage, TestsFailed
from kiln.build.test.specs import WheelName, require_wheel_for_python


def test_a_name_is_parsed() -> None:
    result = WheelName.from_path(Path("/x/tensorflow_cpu-2.21.0-cp311-cp311-manylinux_2_27_x86_64.whl"))
    assert (result.name, result.version, result.python) == ("tensorflow_cpu", "2.21.0", "cp311")
    assert result.tags == "cp311-cp311-manylinux_2_27_x86_64"
    with pytest.raises(BrokenPackage, match=r"invalid wheel name: x\.whl"):
        WheelName.from_path(Path("x.whl"))


@pytest.mark.parametrize("tags", ["cp311-cp311", "py3-none", "cp39-abi3"])
def test_a_wheel_may_be_for_the_python_of_its_config(tags: str) -> None:
    require_wheel_for_python(WheelName.from_path(Path(f"a-1-{tags}-any.whl")), "3.11")


def test_a_wheel_for_another_python_is_refused() -> None:
    with pytest.raises(TestsFailed, match="is for cp312"):
        require_wheel_for_python(WheelName.from_path(Path("a-1-cp312-cp312-any.whl")), "3.11")
