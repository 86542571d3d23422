"""Each leaf error has one exit code, and the documentation's table agrees."""

from __future__ import annotations

import re
from pathlib import Path

import pytest

from kiln.base.errors import KilnError, MalformedYaml, UnknownConfig, VariantFault, did_you_mean, raise_all
from kiln.base.position import Place

TABLE = Path(__file__).parents[3] / "docs" / "reference" / "exit-codes.md"


def leaves(kind: type[KilnError]) -> list[type[KilnError]]:
    """Return the errors that can be raised: the classes without subclasses."""
    return [leaf for child in kind.__subclasses__() for leaf in leaves(child)] or [kind]


def test_exit_codes_are_unique() -> None:
    codes = [leaf.exit_code for leaf in leaves(KilnError)]
    assert len(codes) == len(set(codes)) > 15
    assert not {0, 1} & set(codes)


def test_the_table_of_exit_codes_has_every_error_with_its_docstring() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (.+) \|$", TABLE.read_text(), re.MULTILINE)
    meanings = {name: (int(code), meaning.replace("`", "``") + ".") for code, name, meaning in rows}
    assert meanings == {
        leaf.__name__: (leaf.exit_code, str(leaf.__doc__).splitlines()[0]) for leaf in leaves(KilnError)
    }


def test_a_message_says_what_where_why_and_what_to_try() -> None:
    place = Place(file="recipe/meta.yaml", line=3, column=7)
    failure = MalformedYaml("a tab cannot indent", at=place, why="YAML forbids it", hint="use spaces")
    assert str(failure) == ("recipe/meta.yaml:3:7: a tab cannot indent\n  why: YAML forbids it\n  try: use spaces")


def test_the_first_of_several_errors_is_raised_with_the_others() -> None:
    raise_all([])
    with pytest.raises(VariantFault) as raised:
        raise_all([VariantFault("one", why="it is", hint="fix it"), MalformedYaml("two", at=Place(file="a.yaml"))])
    assert str(raised.value).splitlines() == ["one", "  why: it is", "  try: fix it", "a.yaml: two"]


def test_a_similar_name_is_suggested() -> None:
    assert did_you_mean("buidl", ["build", "render"]) == "did you mean 'build'?"
    assert did_you_mean("zzz", ["build", "render"]) == ""
    assert str(UnknownConfig("no config 'x'", hint=did_you_mean("x", []))) == "no config 'x'"
