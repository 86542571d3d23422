"""Texts are written so that YAML reads the same again."""

from __future__ import annotations

import pytest
import yaml

from kiln.convert.conditional_parts import ConditionPart
from kiln.convert.emit import scalar, text_of
from kiln.convert.tree import DictPart, ListPart, ScalarPart


@pytest.mark.parametrize(
    "text",
    ["plain", "1.10", "true", "a: b", "- a", "# a", "a #b", "'a'", '"a"', "a\\b", "*x", "${{ a }}", "", " a", "{a}"],
)  # fmt: skip
def test_a_text_stays_text(text: str) -> None:
    assert yaml.safe_load(f"a: {scalar(text, plain=False)}") == {"a": text}


def test_a_number_that_was_not_quoted_stays_one() -> None:
    assert scalar("10", plain=True) == "10"


@pytest.mark.parametrize("text", ["a\nb\n", "a\nb", "a\n\n", " a\nb\n", "\na\n", "a\n\nb\n"])
def test_lines_stay_lines(text: str) -> None:
    written = text_of(DictPart(pairs=[("x", ScalarPart(pieces=(text,))), ("y", ScalarPart(pieces=("z",)))]))
    assert yaml.safe_load(written) == {"schema_version": 1, "x": text, "y": "z"}


def test_lists_conditions_and_comments() -> None:
    items = [
        ScalarPart(pieces=("a",), above=["# one"], behind="# two"),
        ConditionPart(
            condition='b == "c"',
            then=[ScalarPart(pieces=("d",), above=["# three"])],
            otherwise=[ScalarPart(pieces=("e",))],
        ),
        DictPart(pairs=[("f", ScalarPart(pieces=("g",), above=["# four"])), ("h", DictPart())], below=["# five"]),
    ]
    written = text_of(DictPart(pairs=[("x", ListPart(items=list(items)))], below=["# six"]))
    assert written.split("schema_version: 1\n\n")[1] == (
        "x:\n  # one\n  - a  # two\n"
        '  - if: b == "c"\n    then:\n      # three\n      - d\n    else:\n      - e\n'
        "  # four\n  - f: g\n    h: {}\n  # five\n\n# six\n"
    )
