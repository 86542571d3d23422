"""The rows of the tables about single parts."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import tables
from kiln.compat.combination import bare_capability, dotted_capability
from kiln.compat.rules.common import WORKS, finding_of, unknown
from kiln.compat.rules.driver import cuda_and_driver
from kiln.compat.rules.gpu import cuda_and_built_for, cuda_and_host_compiler

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kiln.compat.combination import Combination
    from kiln.compat.results import Finding

    Rule = Callable[[Combination], Iterator[Finding]]


def facts(combination: Combination) -> Iterator[Finding]:
    """Yield a finding for each part that no rule combines with another."""
    yield from _cuda(combination)
    yield from _gpus(combination)
    if combination.driver is not None:
        yield from _range("driver", f"driver {combination.driver} runs", cuda_and_driver, combination)
    compiler = combination.host or combination.compiler
    if compiler is not None and compiler.startswith("gcc "):
        yield from _range("host compiler", f"{compiler} is accepted by nvcc of", cuda_and_host_compiler, combination)
    if combination.built_for:
        yield from _range(
            "what is built", f"{','.join(combination.built_for)} is compiled by", cuda_and_built_for, combination
        )


def discontinued_machines(combination: Combination) -> Iterator[Finding]:
    """Yield a finding for a machine that its provider does not sell any more."""
    for gpu in combination.gpus:
        for row in gpu.rows:
            if row.table == "cloud" and row["sold"] == "no":
                reason = f"{row['provider'].upper()} does not sell {row['machine']} any more"
                yield finding_of("cloud", WORKS, reason, row)


def _cuda(combination: Combination) -> Iterator[Finding]:
    if combination.cuda is None:
        return
    compiler, driver = tables.compiler(combination.cuda), tables.driver(combination.cuda)
    least = tables.minor_version_driver(combination.cuda)
    if compiler is None or driver is None:
        yield unknown("CUDA", f"no table has CUDA {combination.cuda}")
        return
    capabilities = compiler["capabilities"].split()
    generations = f"{dotted_capability(capabilities[0])} to {dotted_capability(capabilities[-1])}"
    gcc = f"a GCC below {compiler['gcc_below']}" if compiler["gcc_below"] else "host compilers that no table has"
    reach = f"compiles for {generations}, and accepts {gcc}"
    yield finding_of("CUDA", WORKS, f"CUDA {combination.cuda} {reach}", compiler)
    minor = f"; from {least['driver']} on, minor-version compatibility runs it" if least else ""
    rows = (driver,) if least is None else (driver, least)
    yield finding_of("CUDA", WORKS, f"CUDA {combination.cuda} came with driver {driver['driver']}{minor}", *rows)


def _gpus(combination: Combination) -> Iterator[Finding]:
    for gpu in combination.gpus:
        number, last = str(bare_capability(gpu.capability)), tables.last_driver(gpu.capability)
        rows = [row for row in tables.table("cuda_compiler") if number in row["capabilities"].split()]
        if not rows:
            yield unknown("GPU", f"no table has a CUDA that compiles for {gpu.text}")
            continue
        ends = f"CUDA {rows[0]['first']} to {rows[-1]['last']} compile for {gpu.text}"
        yield finding_of("GPU", WORKS, ends, *dict.fromkeys((rows[0], rows[-1])), *gpu.rows)
        if last is not None:
            yield finding_of("GPU", WORKS, f"the last drivers for {gpu.text} are those of {last['driver']}", last)


def _range(name: str, words: str, rule: Rule, combination: Combination) -> Iterator[Finding]:
    """Yield the CUDAs that a rule accepts with one part, from the oldest to the newest."""
    accepted = [
        (cuda, finding)
        for cuda in tables.cuda_minor_versions()
        for finding in rule(combination.with_versions(cuda=cuda))
        if finding.verdict is WORKS
    ]
    if not accepted:
        yield unknown(name, f"{words} no CUDA that the tables have")
        return
    (newest, first), (oldest, last) = accepted[0], accepted[-1]
    rows = dict.fromkeys((*first.rows, *last.rows))
    yield finding_of(name, WORKS, f"{words} CUDA {oldest} to {newest}", *rows)
