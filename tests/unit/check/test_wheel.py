"""A wheel's name is taken at its word, and a wheel for another Python than its cell's is refused."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.check.wheel import Wheel, require_python
from kiln.errors import BrokenPackage, TestsFailed


def test_a_name_is_taken_apart() -> None:
    found = Wheel.of(Path("/x/tensorflow_cpu-2.21.0-cp311-cp311-manylinux_2_27_x86_64.whl"))
    assert (found.name, found.version, found.python) == ("tensorflow_cpu", "2.21.0", "cp311")
    assert found.tags == "cp311-cp311-manylinux_2_27_x86_64"
    with pytest.raises(BrokenPackage, match=r"x\.whl is no name of a wheel"):
        Wheel.of(Path("x.whl"))


@pytest.mark.parametrize("tags", ["cp311-cp311", "py3-none", "cp39-abi3"])
def test_a_wheel_may_be_for_the_python_of_its_cell(tags: str) -> None:
    require_python(Wheel.of(Path(f"a-1-{tags}-any.whl")), "3.11")


def test_a_wheel_for_another_python_is_refused() -> None:
    with pytest.raises(TestsFailed, match="is for cp312"):
        require_python(Wheel.of(Path("a-1-cp312-cp312-any.whl")), "3.11")
