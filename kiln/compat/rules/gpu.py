"""GPUs with the CUDA that compiles for them, and with the builds that they run."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import tables
from kiln.compat.combination import Combination, Gpu, capability_number, dotted_capability
from kiln.compat.results import (
    CANNOT,
    COSTS,
    UNKNOWN,
    WORKS,
    Finding,
    finding_with_rows,
    unknown_finding,
    with_release_cuda_unless_given,
)
from kiln.compat.version_ranges import is_below, overlaps_range, versions_agree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.tables import Row


def judge_cuda_and_gpu(combination: Combination) -> Iterator[Finding]:
    """Judge a GPU by CUDA's list of capabilities: newer GPUs run its PTX, older ones nothing."""
    combination = with_release_cuda_unless_given(combination)
    if combination.cuda is None:
        return
    row, rule = tables.cuda_compiler_row(combination.cuda), "CUDA and GPU"
    if row is None and combination.gpus:
        yield unknown_finding(rule, f"no table has the GPUs of CUDA {combination.cuda}")
        return
    for gpu in combination.gpus:
        assert row is not None, "checked above, when there is a GPU"
        yield _finding_on_cuda_and_gpu(rule, combination.cuda, row, gpu)


def _finding_on_cuda_and_gpu(rule: str, cuda: str, row: Row, gpu: Gpu) -> Finding:
    capabilities = [int(number) for number in row["capabilities"].split()]
    number = capability_number(gpu.capability)
    if tables.oldest_cuda_row_for_capability(number) is None:
        return unknown_finding(rule, f"no table has a CUDA that compiles for {gpu.text}")
    lowest, highest = (dotted_capability(str(capabilities[index])) for index in (0, -1))
    reach = f"CUDA {cuda} compiles for {lowest} to {highest}"
    if number in capabilities:
        return finding_with_rows(rule, WORKS, f"{reach}, {gpu.text} among them", row, *gpu.rows)
    if number < capabilities[0]:
        return finding_with_rows(rule, CANNOT, f"{reach}; {gpu.text} is older than all of them", row, *gpu.rows)
    if any(older // 10 == number // 10 and older < number for older in capabilities):
        return finding_with_rows(
            rule, WORKS, f"{reach}; {gpu.text} runs the machine code of an older GPU of its generation", row, *gpu.rows
        )
    reason = (
        f"{reach}; {gpu.text} is not among them: it runs PTX of an older one, compiled by the driver at "
        "the first start, minutes to half an hour"
    )
    return finding_with_rows(rule, COSTS, reason, row, *gpu.rows)


def judge_cuda_and_target_capabilities(combination: Combination) -> Iterator[Finding]:
    """Refuse a capability that CUDA's compiler does not know."""
    if combination.cuda is None or not combination.built_for:
        return
    row, rule = tables.cuda_compiler_row(combination.cuda), "CUDA and what is built"
    if row is None:
        yield unknown_finding(rule, f"no table has the GPUs of CUDA {combination.cuda}")
        return
    capabilities = {int(number) for number in row["capabilities"].split()}
    refused = [name for name in combination.built_for if capability_number(name) not in capabilities]
    if refused:
        yield finding_with_rows(rule, CANNOT, f"CUDA {combination.cuda} does not compile for {', '.join(refused)}", row)
    else:
        yield finding_with_rows(rule, WORKS, f"CUDA {combination.cuda} compiles for all that is built", row)


def judge_target_capabilities_and_gpu(combination: Combination) -> Iterator[Finding]:
    """Judge a build by its machine code of the GPU's generation, or its PTX for the GPU or an older one."""
    for name, capabilities, rows in _capabilities_to_judge(combination):
        for gpu in combination.gpus:
            yield _finding_on_build_and_gpu(name, capabilities, rows, gpu)


def _finding_on_build_and_gpu(name: str, capabilities: tuple[str, ...], rows: tuple[Row, ...], gpu: Gpu) -> Finding:
    rule, number, listed = "what is built and GPU", capability_number(gpu.capability), ",".join(capabilities)
    if tables.oldest_cuda_row_for_capability(number) is None:
        return unknown_finding(rule, f"no table has a CUDA that compiles for {gpu.text}")
    if any(
        capability_number(code) // 10 == number // 10 and capability_number(code) <= number for code in capabilities
    ):
        return finding_with_rows(rule, WORKS, f"{name} has machine code for {gpu.text} ({listed})", *rows, *gpu.rows)
    if any(not code.startswith("sm_") and capability_number(code) <= number for code in capabilities):
        reason = (
            f"{name} has no machine code for {gpu.text} ({listed}): its PTX is compiled at the first start, "
            "minutes to half an hour"
        )
        return finding_with_rows(rule, COSTS, reason, *rows, *gpu.rows)
    return finding_with_rows(
        rule, CANNOT, f"{name} has neither machine code nor PTX for {gpu.text} ({listed})", *rows, *gpu.rows
    )


def _capabilities_to_judge(combination: Combination) -> Iterator[tuple[str, tuple[str, ...], tuple[Row, ...]]]:
    """Yield the list of capabilities to judge: the combination's, else Serving's, else upstream's wheel's."""
    if combination.built_for:
        yield "the build", combination.built_for, ()
    elif combination.serving and (row := tables.serving_row(combination.serving)):
        yield f"Serving {combination.serving} as released", tuple(row["capabilities"].split(",")), (row,)
    elif (
        combination.tf
        and (row := tables.newest_row_including("upstream", combination.tf))
        and _is_upstream_build(row, combination)
    ):
        yield f"upstream's TensorFlow {combination.tf}", tuple(row["capabilities"].split(",")), (row,)


def judge_known_failures(combination: Combination) -> Iterator[Finding]:
    """Refuse upstream's wheels on the GPUs on which they are known to fail, whatever their lists of targets say."""
    own = tables.tensorflow_row(combination.tf) if combination.tf else None
    if combination.tf is None or combination.built_for or own is None or not _is_upstream_build(own, combination):
        return
    for gpu in combination.gpus:
        rows = [
            row
            for row in tables.table_rows("known_failure")
            if overlaps_range(gpu.capability, row["capability_first"], row["capability_last"])
        ]
        failures = tables.rows_including(rows, combination.tf)
        what = f"upstream's wheel of TensorFlow {combination.tf}"
        if failures:
            cuda = tables.oldest_cuda_row_for_capability(capability_number(gpu.capability))
            instead = f"; a build with machine code for it needs CUDA {cuda['first']} or newer" if cuda else ""
            reason = f"{what} is known to fail on {gpu.text}: {failures[0]['symptom']}{instead}"
            yield finding_with_rows("known failure", CANNOT, reason, *failures, *gpu.rows)
        elif rows and all(is_below(combination.tf, row["first"]) for row in rows):
            reason = f"later wheels than that of TensorFlow {combination.tf} are known to fail on {gpu.text}"
            yield finding_with_rows("known failure", UNKNOWN, reason, *rows[:1], *gpu.rows)
        elif older := _failures_on_older_gpus(combination.tf, gpu):
            reason = (
                f"{what} is known to fail on older GPUs, up to {older[0]['capability_last']}, and nothing is known "
                f"about {gpu.text}"
            )
            yield finding_with_rows("known failure", UNKNOWN, reason, *older[:1], *gpu.rows)


def _failures_on_older_gpus(tf: str, gpu: Gpu) -> list[Row]:
    """Return the failures of a wheel on GPUs that are all older than this one."""
    failures = tables.rows_including(tables.table_rows("known_failure"), tf)
    return [row for row in failures if capability_number(row["capability_last"]) < capability_number(gpu.capability)]


def _is_upstream_build(row: Row, combination: Combination) -> bool:
    """Return whether a combination is upstream's build: another CUDA means another build."""
    return combination.cuda is None or versions_agree(row["cuda"], combination.cuda)


def judge_cuda_and_host_compiler(combination: Combination) -> Iterator[Finding]:
    """Refuse a GCC that is newer than CUDA's compiler accepts."""
    host = combination.host or combination.compiler
    if combination.cuda is None or host is None or not host.startswith("gcc "):
        return
    row, rule, version = tables.cuda_compiler_row(combination.cuda), "CUDA and host compiler", host.split()[1]
    if row is None:
        yield unknown_finding(rule, f"no table has the host compilers of CUDA {combination.cuda}")
    elif not row["gcc_below"]:
        yield finding_with_rows(rule, UNKNOWN, f"no table has the host compilers of CUDA {combination.cuda}", row)
    elif is_below(version, row["gcc_below"]):
        yield finding_with_rows(rule, WORKS, f"CUDA {combination.cuda} accepts a GCC below {row['gcc_below']}", row)
    else:
        yield finding_with_rows(
            rule, CANNOT, f"CUDA {combination.cuda} refuses GCC {version}: it must be below {row['gcc_below']}", row
        )
