"""Gaps of upstream's wheel."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln import feedstock_loader
from kiln.rehearse.missing_from_wheel import known_gaps, output_gaps

ROOT = Path(__file__).parents[3]


def test_each_row_is_of_an_output_of_this_feedstock_and_has_a_source() -> None:
    names = (feedstock_loader.load(ROOT).root / "outputs.txt").read_text(encoding="utf-8").splitlines()
    assert known_gaps()
    for gap in known_gaps():
        assert gap.output in names
        assert gap.source


@pytest.mark.parametrize(
    ("outputs", "notes"),
    [
        (("tensorflow", "small"), []),
        (
            ("libtensorflow", "libtensorflow_cc"),
            [
                "upstream's wheel has no libtensorflow.so: libtensorflow is not made",
                "upstream's wheel has no tensorflow::ClientSession: libtensorflow_cc is made without it",
            ],
        ),
    ],
)
def test_the_gaps_of_outputs_are_described(outputs: tuple[str, ...], notes: list[str]) -> None:
    assert [gap.note for gap in output_gaps(outputs)] == notes
