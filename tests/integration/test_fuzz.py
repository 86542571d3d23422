"""Mutated feedstocks, packages, records, indexes and addresses: only kiln's own errors come of them, soon."""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import time
from functools import partial
from typing import TYPE_CHECKING

import pytest

from kiln.base import limits
from kiln.base.errors import BrokenPackage, KilnError
from kiln.cli import main
from kiln.conda.index import read_index_entry
from kiln.feedstock import config_file, matrix
from kiln.publish import gate as publish_gate
from kiln.publish import rebuild
from kiln.publish.gate import refusal_reasons
from kiln.recipe import pins, render
from tests import broken_packages
from tests.broken_packages import address, bent, json_like
from tests.builders import NAMES, PINNING, copied, expected
from tests.packages import release_package
from tests.publishing import put, seen
from tests.releases import candidate, release
from tests.solving import record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

    from kiln.recipe.feedstock import Feedstock

pytestmark = pytest.mark.sampled
ROUNDS = 200  # for each of the seeds below
SEEDS = range(10)
FEEDSTOCK_SECONDS = 2.0  # of processor time, for several platforms; the slowest sound fixture takes a quarter of that
FEEDSTOCK_MEGABYTES = 200  # beyond what the tests' process has
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
        read_feedstock(feedstock)
    finally:
        grown.write_text(str(resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before))


def read_feedstock(feedstock: Feedstock) -> None:
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
        assert took < FEEDSTOCK_SECONDS, f"{feedstock.root} took {took:.1f} s"
        kilobytes = int(grown.read_text())
        assert kilobytes < FEEDSTOCK_MEGABYTES * 1024, f"{feedstock.root} took {kilobytes} kB"
    assert 0 < sound < ROUNDS  # some mutations harm nothing, most do


def used() -> float:
    """Return the processor time that this process and those that it waited for have used."""
    return sum(sum(resource.getrusage(who)[:2]) for who in (resource.RUSAGE_SELF, resource.RUSAGE_CHILDREN))


MORE = int(os.environ.get("KILN_FUZZ", "1"))
READ, FOLDERS, INSTALLED, VERIFIED, ADDRESSES, INDEXES = (number * MORE for number in (200, 4, 12, 60, 20, 12))
SECONDS = 5.0  # of processor time for one file; the slowest takes a tenth of that
MEGABYTES = 500
CODES = {0, *(kind.exit_code for kind in KilnError.__subclasses__())}
WANTED = publish_gate.forbidden_texts(("/built/here",), ())


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """See that nothing takes more memory than it may, whatever other tests took in this process before."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024


def kiln(*words: str) -> int:
    """Run a command in this process, and return its exit code, which is a documented one."""
    code = main.run(words)
    assert code in CODES, words
    return code


def empty_noarch(channel: Path) -> None:
    """Write the index of a subdir that has nothing."""
    (channel / "noarch").mkdir()
    (channel / "noarch/repodata.json").write_text('{"packages": {}, "packages.conda": {}}')


def gate(package: Path) -> None:
    """Judge a package as one that is to be published."""
    read = publish_gate.inspect_package(package, WANTED)
    told = candidate("app", index=read.index, about=read.about, paths=read.paths, escapes=read.escapes)
    assert all(str(reason) for reason in refusal_reasons(release(told)))


def test_readers_of_broken_packages_raise_kilns_own_errors(tmp_path: Path) -> None:
    sound = 0
    for seed in range(READ):
        name, data = broken_packages.package(random.Random(seed))
        package = tmp_path / name
        package.write_bytes(data)
        begin = time.process_time()
        for read in (
            read_index_entry,
            gate,
            lambda path: rebuild.described_differences(path, path),
        ):
            with contextlib.suppress(KilnError):
                read(package)
                sound += 1
        assert time.process_time() - begin < SECONDS, f"seed {seed}"
    assert 0 < sound < 3 * READ


def test_broken_packages_in_a_folder_keep_nothing_else_from_being_indexed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(FOLDERS):
        dice = random.Random(seed)
        folder = tmp_path / str(seed)
        put(folder, ("kept", "app"))
        subdir = folder / "channel/linux-64"
        shutil.copy(release_package(folder / "built", "good"), subdir)
        for number in range(10):
            (subdir / f"app-{number}-0.conda").write_bytes(broken_packages.package(dice)[1])
        os.mkfifo(subdir / "pipe-1-0.conda")
        (subdir / "gone-1-0.conda").symlink_to("nowhere")
        (subdir / "folder-1-0.conda").mkdir()
        assert kiln("publish", "--to", str(folder / "channel"), "--reindex") == BrokenPackage.exit_code
        said = capsys.readouterr().err
        assert {"kept-1-0.conda", "good-1-0.conda"} <= seen(folder / "channel")
        offered = json.loads((subdir / "repodata.json").read_bytes())["packages.conda"]  # noarch has such an app
        for file in subdir.glob("*.conda"):
            assert (file.name in offered) != (str(file) in said or f"linux-64/{file.name}" in said), file.name


def test_installs_of_broken_packages_end_in_kilns_own_errors(tmp_path: Path) -> None:
    """The index has the hashes of the packages, so that none is refused for a hash."""
    ended = set()
    for seed in range(INSTALLED):
        folder = tmp_path / str(seed)
        name, data = broken_packages.package(random.Random(seed), bz2_too=True)
        (folder / "channel/linux-64").mkdir(parents=True)
        package = folder / "channel/linux-64" / name
        package.write_bytes(data)
        told = {key: value for key, value in record("app", "1").items() if key not in {"sha256", "md5"}}
        kind = "packages" if name.endswith(".bz2") else "packages.conda"
        index: dict[str, Any] = {"info": {"subdir": "linux-64"}, "packages": {}, "packages.conda": {}}
        index[kind] = {name: {**told, "size": len(data)}}
        (folder / "channel/linux-64/repodata.json").write_text(json.dumps(index))
        empty_noarch(folder / "channel")
        places = ("--prefix", str(folder / "prefix"), "--cache", str(folder / "cache"))
        code = kiln("install", "app", "--from", (folder / "channel").as_uri(), *places)
        ended.add(code)
        assert (folder / "prefix").exists() == (code == 0)
        assert {path.name for path in folder.iterdir()} <= {"channel", "cache", "prefix"}, "nothing else is written"
        assert not list((folder / "cache").glob(".*[!k]")), "nothing is left half-unpacked"
    assert len(ended) > 1


def test_broken_indexes_end_in_kilns_own_errors(tmp_path: Path) -> None:
    good = {"info": {"subdir": "linux-64"}, "packages": {}, "packages.conda": {"app-1-0.conda": record("app", "1")}}
    for seed in range(INDEXES):
        dice = random.Random(seed)
        folder = tmp_path / str(seed) / "linux-64"
        folder.mkdir(parents=True)
        data = json_like(good, dice) if dice.random() < 0.7 else bent(json.dumps(good).encode(), dice)
        (folder / "repodata.json").write_bytes(data)
        empty_noarch(folder.parent)
        places = ("--prefix", str(tmp_path / "prefix"), "--cache", str(tmp_path / "cache"))
        kiln("install", "app", "--from", folder.parent.as_uri(), *places)
        assert not (tmp_path / "prefix").exists()


def test_verifying_by_broken_statements_ends_in_kilns_own_errors(tmp_path: Path) -> None:
    put(tmp_path, ("kept",))
    package = tmp_path / "channel/linux-64/kept-1-0.conda"
    statement = tmp_path / "channel/provenance/linux-64/kept-1-0.conda.intoto.json"
    index = tmp_path / "channel/linux-64/repodata.json"
    good, told, whole = statement.read_bytes(), index.read_bytes(), package.read_bytes()
    for seed in range(VERIFIED):
        dice = random.Random(seed)
        bad = json_like(json.loads(good), dice) if dice.random() < 0.7 else bent(good, dice)
        statement.write_bytes(bad if seed % 3 == 0 else good)
        index.write_bytes(json_like(json.loads(told), dice) if seed % 3 == 1 else told)
        package.unlink()
        package.write_bytes(broken_packages.package(dice)[1] if seed % 3 == 2 else whole)
        kiln("verify", str(package))


def test_addresses_that_are_none_end_in_kilns_own_errors(tmp_path: Path) -> None:
    package = release_package(tmp_path, "app")
    places = ("--prefix", str(tmp_path / "prefix"), "--cache", str(tmp_path / "cache"))
    for seed in range(ADDRESSES):
        url = address("http://127.0.0.1:9/channel", random.Random(seed))
        assert kiln("verify", str(package), "--channel", url) != 0
        assert kiln("install", "app", "--from", url, *places) != 0
