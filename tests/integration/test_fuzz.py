"""Mutated feedstocks: whatever is broken in them, only kiln's own errors come of it, soon and with little memory."""

from __future__ import annotations

import contextlib
import random
import resource
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kiln.base import limits
from kiln.base.errors import KilnError
from kiln.feedstock import config_file, matrix
from kiln.recipe import pins, render
from tests.builders import NAMES, PINNING, copied, expected

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock

pytestmark = pytest.mark.sampled

ROUNDS = 200  # for each of the seeds below
SEEDS = range(10)
SECONDS = 2.0  # of processor time, for several platforms; the slowest sound fixture takes a quarter of that
MEGABYTES = 200  # beyond what the tests' process has

BITS = """
{{|}}|{%|%}|[|]|{|}|#|'|"|:|-|&a|*a|!!python/object:os.system|>|{{ x }}|{% if %}|{% endif %}|{% for i in range(9999) %}
{% endfor %}|# [linux]|# [|# [win and]|# [x==|]]|None|null|~|- - -|? |<<: *a|%|@|`|{% set a = a ~ a %}|{{ a.b.c }}|: &a
{{ ''.__class__ }}|{{ range(10**9) }}|{{ 'a'*10**9 }}|package:|outputs:|requirements:|  - name: x|build:|skip: true
string: h{{ PKG_HASH }}|number: x|version: [1]|noarch: 3|{{ compiler('c') }}|{{ pin_subpackage('x', exact=True) }}
{{ load_file_data('../../x') }}|zip_keys:|python:|  - 3|target_platform:|0x1F|1e5|2021-01-01|=|extend_keys: a|test: 1
pin_run_as_build: 3|name: A|name: [|about: x|source: 3|- {a: b}|{% macro m() %}{{ m() }}{% endmacro %}{{ m() }}|\t|\x00
"""
PIECES = [piece for line in BITS.strip().split("\n") for piece in line.split("|")] + ["|", "\n", "\u2028", "é", "  "]


def mutated(text: str, dice: random.Random) -> str:
    """The text with a few mistakes of the kinds that people and attackers make."""
    for _ in range(dice.choice((1, 1, 2, 5))):
        text = dice.choice((inside, among))(text, dice)
    return text


def inside(text: str, dice: random.Random) -> str:
    """One mistake somewhere in the text: a piece put in, characters left out, a stretch from elsewhere."""
    place, other = dice.randrange(len(text) + 1), dice.randrange(len(text) + 1)
    rest = dice.choice(
        (dice.choice(PIECES) + text[place:], text[place + dice.randrange(1, 20) :], text[other : other + 200])
    )
    return text[:place] + rest


def among(text: str, dice: random.Random) -> str:
    """One mistake with lines: one left out, repeated, put in, indented, or a sign in it replaced."""
    lines = text.split("\n")
    at = dice.randrange(len(lines))
    changed = lines[at].replace(dice.choice(":-#[]{}%'\" "), dice.choice(PIECES), 1)
    added = " " * dice.randrange(8) + dice.choice(PIECES)
    lines[at : at + 1] = dice.choice(
        ([], [lines[at], dice.choice(lines)], [added, lines[at]], ["  " + lines[at]], [changed])
    )
    return "\n".join(lines)


def broken(folder: Path, dice: random.Random) -> Feedstock:
    """A fixture with one of its files mutated."""
    name = dice.choice(NAMES)
    feedstock = copied(name, folder)
    for file, text in list(expected(name)["ci_support"].items())[:1]:
        (feedstock.config_folder / file).parent.mkdir(exist_ok=True)
        (feedstock.config_folder / file).write_text(text)
    settings = [path for path in feedstock.root.rglob("*.y*ml") if path != feedstock.meta]
    victim = feedstock.meta if dice.random() < 0.6 else dice.choice(settings)
    victim.write_text(mutated(victim.read_text(), dice))
    return feedstock


def use(feedstock: Feedstock, grown: Path) -> None:
    """Read a feedstock in every way, and write by how many kilobytes this process, a fork, has grown at most."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss  # of a new fork: what the tests' process has now
    try:
        read(feedstock)
    finally:
        grown.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))


def read(feedstock: Feedstock) -> None:
    """Everything that reads a feedstock."""
    for config in matrix.configs(feedstock, PINNING):
        config_file.config_file_text(config)
    for path in sorted(feedstock.config_folder.glob("*.yaml"))[:1]:
        result = render.render(feedstock, config_file.read_config(feedstock, path.stem))
        render.as_plain_data(result)
        pins.close_static_pins(result)


@pytest.mark.parametrize("seed", SEEDS)
def test_only_kilns_own_errors_come_of_broken_feedstocks(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    sound = 0
    for number in range(ROUNDS):
        feedstock, grown = broken(tmp_path / str(number), dice), tmp_path / f"{number}.grown"
        begin = used()
        with contextlib.suppress(KilnError):
            limits.run_bounded(partial(use, feedstock, grown))
            sound += 1
        took = used() - begin
        assert took < SECONDS, f"{feedstock.root} took {took:.1f} s"
        kilobytes = int(grown.read_text())
        assert kilobytes < MEGABYTES * 1024, f"{feedstock.root} took {kilobytes} kB"
    assert 0 < sound < ROUNDS  # some mutations harm nothing, most do


def used() -> float:
    """Return the processor time that this process and those that it waited for have used."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))
