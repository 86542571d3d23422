"""Mutated feedstocks: whatever is broken in them, only kiln's own errors come of it, soon and with little memory."""

from __future__ import annotations

import contextlib
import random
import resource
import time
from typing import TYPE_CHECKING

import pytest

from kiln import expand, render
from kiln.errors import KilnError
from tests.feedstocks import NAMES, PINNING, copied, expected

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.model.feedstock import Feedstock

ROUNDS = 200  # for each of the seeds below
SEEDS = range(10)
SECONDS = 2.0  # of processor time, for several platforms; the slowest sound fixture takes a quarter of that
MEGABYTES = 400

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
        (feedstock.configs / file).parent.mkdir(exist_ok=True)
        (feedstock.configs / file).write_text(text)
    settings = [path for path in feedstock.root.rglob("*.y*ml") if path != feedstock.meta]
    victim = feedstock.meta if dice.random() < 0.6 else dice.choice(settings)
    victim.write_text(mutated(victim.read_text(), dice))
    return feedstock


def use(feedstock: Feedstock) -> None:
    """Everything that reads a feedstock."""
    for cell in expand.cells(feedstock, PINNING):
        expand.text(cell)
    for path in sorted(feedstock.configs.glob("*.yaml"))[:1]:
        found = render.render(feedstock, expand.read(feedstock, path.stem))
        render.as_json(found)
        render.finalise(found)


@pytest.mark.parametrize("seed", SEEDS)
def test_only_kilns_own_errors_come_of_broken_feedstocks(seed: int, tmp_path: Path) -> None:
    dice = random.Random(seed)
    sound = 0
    for number in range(ROUNDS):
        feedstock = broken(tmp_path / str(number), dice)
        begin = time.process_time()
        with contextlib.suppress(KilnError):
            use(feedstock)
            sound += 1
        took = time.process_time() - begin
        assert took < SECONDS, f"{feedstock.root} took {took:.1f} s"
    assert 0 < sound < ROUNDS  # some mutations harm nothing, most do
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss < MEGABYTES * 1024
