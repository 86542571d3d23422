"""One exit code for each kind of failure, and the documentation's table says the same."""

from __future__ import annotations

import re
from pathlib import Path

from kiln.errors import KilnError, MalformedYaml, UnknownConfig, VariantFault, nearest
from kiln.model.place import Place

TABLE = Path(__file__).parents[2] / "docs" / "reference" / "exit-codes.md"


def leaves(kind: type[KilnError]) -> list[type[KilnError]]:
    """The kinds of failure that can be raised: those without kinds of their own."""
    return [leaf for child in kind.__subclasses__() for leaf in leaves(child)] or [kind]


def test_no_two_failures_share_an_exit_code() -> None:
    codes = [leaf.exit_code for leaf in leaves(KilnError)]
    assert len(codes) == len(set(codes)) > 15
    assert not {0, 1} & set(codes)


def test_the_table_of_exit_codes_has_every_failure_in_its_own_words() -> None:
    rows = re.findall(r"^\| (\d+) \| (\w+) \| (.+) \|$", TABLE.read_text(), re.MULTILINE)
    told = {name: (int(code), meaning.replace("`", "``") + ".") for code, name, meaning in rows}
    assert told == {leaf.__name__: (leaf.exit_code, str(leaf.__doc__).splitlines()[0]) for leaf in leaves(KilnError)}


def test_a_message_says_what_where_why_and_what_to_try() -> None:
    place = Place(file="recipe/meta.yaml", line=3, column=7)
    failure = MalformedYaml("a tab cannot indent", at=place, why="YAML forbids it", hint="use spaces")
    assert str(failure) == ("recipe/meta.yaml:3:7: a tab cannot indent\n  why: YAML forbids it\n  try: use spaces")


def test_all_faults_of_an_input_are_told_at_once() -> None:
    failure = VariantFault("one", others=[VariantFault("two", at=Place(file="a.yaml")), VariantFault("three")])
    assert str(failure).splitlines() == ["one", "a.yaml: two", "three"]


def test_a_near_miss_is_named() -> None:
    assert nearest("buidl", ["build", "render"]) == "did you mean 'build'?"
    assert nearest("zzz", ["build", "render"]) == ""
    assert str(UnknownConfig("no cell 'x'", hint=nearest("x", []))) == "no cell 'x'"
