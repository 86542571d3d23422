"""What the tables have of things for themselves, and which release of TensorFlow could bring them together."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import tables
from kiln.compat.combination import dotted, plain
from kiln.compat.rules.common import COSTS, WORKS, silent, told
from kiln.compat.rules.driver import cuda_and_driver
from kiln.compat.rules.gpu import cuda_and_built_for, cuda_and_host_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kiln.compat.answer import Finding, Verdict
    from kiln.compat.combination import Combination
    from kiln.compat.tables import Row

    Rule = Callable[[Combination], Iterator[Finding]]


def facts(asked: Combination) -> Iterator[Finding]:
    """What is known of each thing that no rule puts together with another."""
    yield from _cuda(asked)
    yield from _gpus(asked)
    if asked.driver is not None:
        yield from _range("driver", f"driver {asked.driver} runs", cuda_and_driver, asked)
    compiler = asked.host or asked.compiler
    if compiler is not None and compiler.startswith("gcc "):
        yield from _range("host compiler", f"{compiler} is taken by nvcc of", cuda_and_host_compiler, asked)
    if asked.built_for:
        yield from _range("what is built", f"{','.join(asked.built_for)} is compiled by", cuda_and_built_for, asked)


def releases(asked: Combination, rules: tuple[Rule, ...]) -> Iterator[Finding]:
    """A release of TensorFlow that takes all that is given; without one nobody has told that it fits together."""
    if asked.tf is not None or asked.serving is not None or not (asked.given() or asked.gpus or asked.built_for):
        return
    if asked.cuda is not None and tables.driver(asked.cuda) is None:
        return  # of a CUDA that no table has nobody can tell
    judged = [(row, _with(asked, row, rules)) for row in tables.table("tensorflow")]
    for good, words in ((WORKS, "as upstream tests them"), (COSTS, "with a cost")):
        fitting = [row for row, each in judged if each is good]
        if fitting:
            yield told("releases", good, _told_releases(fitting, words), *dict.fromkeys((fitting[0], fitting[-1])))
            return
    yield silent("releases", "no release of TensorFlow in the tables takes all of it, as far as they tell")


def _with(asked: Combination, row: Row, rules: tuple[Rule, ...]) -> Verdict:
    """The verdict on a release with what is given, as far as it is of use; the CUDA is its own where none is given."""
    whole, worst = asked.with_versions(tf=row["tf"], cuda=asked.cuda or row["cuda"]), WORKS
    for finding in (finding for rule in rules for finding in rule(whole)):
        worst = max(worst, finding.verdict, key=lambda each: each.rank)
        if worst.rank > COSTS.rank:
            break
    return worst


def _told_releases(fitting: list[Row], words: str) -> str:
    newest, oldest = fitting[0]["tf"], fitting[-1]["tf"]
    older = "" if newest == oldest else f", {oldest} the oldest"
    return f"of TensorFlow's releases, {words}, {newest} is the newest that takes it{older}"


def _cuda(asked: Combination) -> Iterator[Finding]:
    if asked.cuda is None:
        return
    compiler, driver = tables.compiler(asked.cuda), tables.driver(asked.cuda)
    least = tables.minor_version_driver(asked.cuda)
    if compiler is None or driver is None:
        yield silent("CUDA", f"no table has CUDA {asked.cuda}")
        return
    known = compiler["capabilities"].split()
    reach = f"compiles for {dotted(known[0])} to {dotted(known[-1])}, and takes a GCC below {compiler['gcc_below']}"
    yield told("CUDA", WORKS, f"CUDA {asked.cuda} {reach}", compiler)
    minor = f"; from {least['driver']} on, minor-version compatibility runs it" if least else ""
    rows = (driver,) if least is None else (driver, least)
    yield told("CUDA", WORKS, f"CUDA {asked.cuda} came with driver {driver['driver']}{minor}", *rows)


def _gpus(asked: Combination) -> Iterator[Finding]:
    for gpu in asked.gpus:
        number, last = str(plain(gpu.capability)), tables.last_driver(gpu.capability)
        rows = [row for row in tables.table("cuda_compiler") if number in row["capabilities"].split()]
        if not rows:
            yield silent("GPU", f"no table has a CUDA that compiles for {gpu.text}")
            continue
        ends = f"CUDA {rows[0]['first']} to {rows[-1]['last']} compile for {gpu.text}"
        yield told("GPU", WORKS, ends, *dict.fromkeys((rows[0], rows[-1])), *gpu.rows)
        if last is not None:
            yield told("GPU", WORKS, f"the last drivers for {gpu.text} are those of {last['driver']}", last)


def _range(name: str, words: str, rule: Rule, asked: Combination) -> Iterator[Finding]:
    """The CUDAs that a rule lets stand beside one thing, from the oldest to the newest."""
    found = [
        (cuda, finding)
        for cuda in tables.cuda_lines()
        for finding in rule(asked.with_versions(cuda=cuda))
        if finding.verdict is WORKS
    ]
    if not found:
        yield silent(name, f"{words} no CUDA that the tables have")
        return
    (newest, first), (oldest, last) = found[0], found[-1]
    rows = dict.fromkeys((*first.rows, *last.rows))
    yield told(name, WORKS, f"{words} CUDA {oldest} to {newest}", *rows)
