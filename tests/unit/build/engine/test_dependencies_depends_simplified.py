"""Of several requirements of one package, those stay that say the most, as conda-build writes them."""

from __future__ import annotations

import pytest

from kiln.base.errors import RecipeFault
from kiln.build.engine.dependencies import simplified_depends


@pytest.mark.parametrize(
    ("specs", "expected"),
    [
        (["b", "a"], ["a", "b"]),
        (["a", "a >=1"], ["a >=1"]),
        (["a >=1", "a <3"], ["a <3", "a >=1"]),
        (["a", "a >=1", "a 1 h_0"], ["a 1 h_0"]),
        (["a 1 h_0", "a 1 h_0", "b"], ["a 1 h_0", "b"]),
        (["a 1.* h_0", "a >=1", "a 1 *_cp311"], ["a 1 *_cp311", "a 1.* h_0", "a >=1"]),
        (["a 1", "a >=1 h_0"], ["a 1", "a >=1 h_0"]),
        ([], []),
    ],
)
def test_an_exact_pin_and_a_version_count_before_less(specs: list[str], expected: list[str]) -> None:
    assert simplified_depends(specs) == expected


def test_two_exact_pins_that_differ_are_refused() -> None:
    with pytest.raises(RecipeFault, match="a is required in two exact builds"):
        simplified_depends(["a 1 h_0", "a 1 h_1"])
