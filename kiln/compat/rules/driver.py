"""The NVIDIA driver with CUDA, with GPUs, and with its own part in the kernel."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import lines, tables
from kiln.compat.combination import plain
from kiln.compat.rules.common import CANNOT, COSTS, UNKNOWN, WORKS, silent, told, with_cuda
from kiln.compat.rules.gpu import builds_and_gpu, cuda_and_gpu

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.answer import Finding
    from kiln.compat.combination import Combination


def cuda_and_driver(asked: Combination) -> Iterator[Finding]:
    """The driver that came with CUDA runs it; an older one of the same major version does, without compiling PTX."""
    asked = with_cuda(asked)
    if asked.cuda is None or asked.driver is None:
        return
    row, least, rule = tables.driver(asked.cuda), tables.minor_version_driver(asked.cuda), "CUDA and driver"
    if row is None:
        yield silent(rule, f"no table has the driver of CUDA {asked.cuda}")
    elif lines.at_least(asked.driver, row["driver"]):
        yield told(rule, WORKS, f"CUDA {asked.cuda} came with driver {row['driver']}, and newer ones run it", row)
    elif least is not None and lines.at_least(asked.driver, least["driver"]):
        reason = (
            f"CUDA {asked.cuda} came with driver {row['driver']}; from {least['driver']} on, minor-version "
            "compatibility runs it, but a driver older than CUDA compiles none of its PTX: only GPUs that have machine "
            "code in the packages"
        )
        yield told(rule, COSTS, reason, row, least)
    else:
        needed = row if least is None else least
        yield told(
            rule,
            CANNOT,
            f"CUDA {asked.cuda} needs driver {needed['driver']} or newer, and {asked.driver} is older",
            needed,
        )


def driver_and_ptx(asked: Combination) -> Iterator[Finding]:
    """A driver older than CUDA does not compile its PTX, so a GPU without machine code of its own runs nothing."""
    asked = with_cuda(asked)
    if asked.cuda is None or asked.driver is None:
        return
    row = tables.driver(asked.cuda)
    if row is None or lines.at_least(asked.driver, row["driver"]):
        return
    for finding in (*cuda_and_gpu(asked), *builds_and_gpu(asked)):
        if finding.verdict is COSTS:
            reason = (
                f"the driver has to compile PTX of CUDA {asked.cuda}, which only {row['driver']} and newer "
                f"do, not {asked.driver}"
            )
            yield told("driver and PTX", CANNOT, reason, row, *finding.rows)
            return


def driver_and_gpu(asked: Combination) -> Iterator[Finding]:
    """A driver serves no GPU that its branch has dropped; one older than the first CUDA for a GPU may not know it."""
    for gpu in asked.gpus if asked.driver else ():
        first, final = tables.first_cuda(plain(gpu.capability)), tables.last_driver(gpu.capability)
        row = tables.driver(first["first"]) if first else None
        assert asked.driver is not None, "asked above"
        if final is not None and lines.numbers(asked.driver)[0] > lines.numbers(final["driver"])[0]:
            reason = f"drivers after {final['driver']} do not serve {gpu.text}, and {asked.driver} is one of them"
            yield told("driver and GPU", CANNOT, reason, final, *gpu.rows)
        elif first is None or row is None:
            yield silent("driver and GPU", f"no table has a CUDA for {gpu.text}")
        elif lines.at_least(asked.driver, row["driver"]):
            reason = f"driver {asked.driver} is not older than that of the first CUDA for {gpu.text}, {first['first']}"
            yield told("driver and GPU", WORKS, reason, first, row, *gpu.rows)
        else:
            reason = (
                f"the first CUDA for {gpu.text}, {first['first']}, came with driver {row['driver']}; "
                f"whether {asked.driver} knows the GPU nobody has told"
            )
            yield told("driver and GPU", UNKNOWN, reason, first, row, *gpu.rows)


def driver_and_kernel(asked: Combination) -> Iterator[Finding]:
    """The driver's library and its part in the kernel must be of one version."""
    if asked.driver is None or asked.loaded is None:
        return
    rule = "driver and kernel"
    if lines.agree(asked.driver, asked.loaded):
        yield told(rule, WORKS, f"libcuda and the kernel's module are both {asked.driver}")
    else:
        reason = (
            f"libcuda is {asked.driver}, and the kernel has {asked.loaded} loaded: no CUDA program starts "
            "until they are the same; reboot, or reload the module"
        )
        yield told(rule, CANNOT, reason)
