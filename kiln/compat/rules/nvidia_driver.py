"""The NVIDIA driver with CUDA, with GPUs, and with its kernel module."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import tables
from kiln.compat.combination import Combination, capability_number
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
from kiln.compat.rules.gpu import judge_cuda_and_gpu, judge_target_capabilities_and_gpu
from kiln.compat.version_ranges import is_at_least, version_numbers, versions_agree

if TYPE_CHECKING:
    from collections.abc import Iterator


def judge_cuda_and_driver(combination: Combination) -> Iterator[Finding]:
    """Accept the driver that came with CUDA and newer ones; an older one of the major version compiles no PTX."""
    combination = with_release_cuda_unless_given(combination)
    if combination.cuda is None or combination.driver is None:
        return
    row, rule = tables.oldest_driver_row_for_cuda(combination.cuda), "CUDA and driver"
    least = tables.minor_compatibility_driver_row(combination.cuda)
    if row is None:
        yield unknown_finding(rule, f"no table has the driver of CUDA {combination.cuda}")
    elif is_at_least(combination.driver, row["driver"]):
        yield finding_with_rows(
            rule, WORKS, f"CUDA {combination.cuda} came with driver {row['driver']}, and newer ones run it", row
        )
    elif least is not None and is_at_least(combination.driver, least["driver"]):
        reason = (
            f"CUDA {combination.cuda} came with driver {row['driver']}; from {least['driver']} on, minor-version "
            "compatibility runs it, but a driver older than CUDA compiles none of its PTX: only GPUs that have machine "
            "code in the packages"
        )
        yield finding_with_rows(rule, COSTS, reason, row, least)
    else:
        needed = row if least is None else least
        yield finding_with_rows(
            rule,
            CANNOT,
            f"CUDA {combination.cuda} needs driver {needed['driver']} or newer, and {combination.driver} is older",
            needed,
        )


def judge_driver_and_ptx(combination: Combination) -> Iterator[Finding]:
    """Refuse PTX of a CUDA that is newer than the driver: a GPU without its machine code runs nothing."""
    combination = with_release_cuda_unless_given(combination)
    if combination.cuda is None or combination.driver is None:
        return
    row = tables.oldest_driver_row_for_cuda(combination.cuda)
    if row is None or is_at_least(combination.driver, row["driver"]):
        return
    for finding in (*judge_cuda_and_gpu(combination), *judge_target_capabilities_and_gpu(combination)):
        if finding.verdict is COSTS:
            reason = (
                f"the driver has to compile PTX of CUDA {combination.cuda}, which only {row['driver']} and newer "
                f"do, not {combination.driver}"
            )
            yield finding_with_rows("driver and PTX", CANNOT, reason, row, *finding.rows)
            return


def judge_driver_and_gpu(combination: Combination) -> Iterator[Finding]:
    """Refuse a GPU that the driver's branch has dropped; a driver older than the GPU's first CUDA is unknown."""
    for gpu in combination.gpus if combination.driver else ():
        first = tables.oldest_cuda_row_for_capability(capability_number(gpu.capability))
        final = tables.last_driver_row_for_capability(gpu.capability)
        row = tables.oldest_driver_row_for_cuda(first["first"]) if first else None
        assert combination.driver is not None, "checked above"
        if final is not None and version_numbers(combination.driver)[0] > version_numbers(final["driver"])[0]:
            reason = f"drivers after {final['driver']} do not serve {gpu.text}, and {combination.driver} is one of them"
            yield finding_with_rows("driver and GPU", CANNOT, reason, final, *gpu.rows)
        elif first is None or row is None:
            yield unknown_finding("driver and GPU", f"no table has a CUDA for {gpu.text}")
        elif is_at_least(combination.driver, row["driver"]):
            reason = (
                f"driver {combination.driver} is not older than that of the first CUDA for {gpu.text}, {first['first']}"
            )
            yield finding_with_rows("driver and GPU", WORKS, reason, first, row, *gpu.rows)
        else:
            reason = (
                f"the first CUDA for {gpu.text}, {first['first']}, came with driver {row['driver']}; "
                f"whether {combination.driver} knows the GPU is not documented"
            )
            yield finding_with_rows("driver and GPU", UNKNOWN, reason, first, row, *gpu.rows)


def judge_driver_and_kernel_module(combination: Combination) -> Iterator[Finding]:
    """Refuse a driver's library and kernel module of different versions."""
    if combination.driver is None or combination.loaded is None:
        return
    rule = "driver and kernel"
    if versions_agree(combination.driver, combination.loaded):
        yield finding_with_rows(rule, WORKS, f"libcuda and the kernel's module are both {combination.driver}")
    else:
        reason = (
            f"libcuda is {combination.driver}, and the kernel has {combination.loaded} loaded: no CUDA program starts "
            "until they are the same; reboot, or reload the module"
        )
        yield finding_with_rows(rule, CANNOT, reason)
