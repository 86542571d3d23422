"""cuDNN with CUDA, GPUs and drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import lines, tables
from kiln.compat.combination import plain
from kiln.compat.rules.common import CANNOT, UNKNOWN, WORKS, silent, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.answer import Finding
    from kiln.compat.combination import Combination, Gpu
    from kiln.compat.tables import Row


def cudnn_and_cuda(asked: Combination) -> Iterator[Finding]:
    """A cuDNN is made for the CUDAs that NVIDIA's matrix lists, and for those that it was tested with."""
    if asked.cudnn is None or asked.cuda is None:
        return
    rule, what = "cuDNN and CUDA", f"cuDNN {asked.cudnn} and CUDA {asked.cuda}"
    rows = tables.cudnn(asked.cudnn, asked.cuda)
    works = [row for row in rows if row["works"] == "yes"]
    if works:
        yield told(rule, WORKS, f"{what} are made for each other", works[0])
    elif rows:
        yield told(rule, CANNOT, f"NVIDIA does not support {what} together", rows[0])
    elif tested := _tested_together(asked.cudnn, asked.cuda):
        yield told(rule, WORKS, f"{what} are tested together", tested)
    else:
        yield silent(rule, f"no table has {what} together")


def cudnn_and_machine(asked: Combination) -> Iterator[Finding]:
    """A cuDNN has kernels for some GPUs, and needs a driver, for each CUDA that it is made for."""
    if asked.cudnn is None or asked.cuda is None:
        return
    rows = [row for row in tables.cudnn(asked.cudnn, asked.cuda) if row["works"] == "yes"]
    for gpu in asked.gpus if rows else ():
        yield _cudnn_and_gpu(asked, rows, gpu)
    least = min((row for row in rows if row["driver"]), key=lambda row: lines.numbers(row["driver"]), default=None)
    if asked.driver and least and not lines.at_least(asked.driver, least["driver"]):
        reason = (
            f"cuDNN {asked.cudnn} for CUDA {asked.cuda} needs driver {least['driver']} or newer, and "
            f"{asked.driver} is older"
        )
        yield told("cuDNN and driver", CANNOT, reason, least)


def _cudnn_and_gpu(asked: Combination, rows: list[Row], gpu: Gpu) -> Finding:
    rule, number = "cuDNN and GPU", plain(gpu.capability)
    stated = [row for row in rows if row["capability_min"]]
    holding = [row for row in stated if _reach(row)[0] <= number <= _reach(row)[1]]
    if holding:
        return told(rule, WORKS, f"cuDNN {asked.cudnn} has kernels for {gpu.text}", holding[0], *gpu.rows)
    what = f"cuDNN {asked.cudnn} for CUDA {asked.cuda}"
    if len(stated) < len(rows):
        return silent(rule, f"no table has the GPUs of {what}")
    if all(number < _reach(row)[0] for row in stated):
        return told(
            rule, CANNOT, f"{what} has no kernels for {gpu.text}, which is older than all of its GPUs", stated[0]
        )
    return told(
        rule, UNKNOWN, f"NVIDIA's matrix of {what} does not list {gpu.text}, which is newer", stated[0], *gpu.rows
    )


def _reach(row: Row) -> tuple[int, float]:
    highest = row["capability_max"]
    return plain(row["capability_min"]), plain(highest) if highest else float("inf")


def _tested_together(cudnn: str, cuda: str) -> Row | None:
    """A row of TensorFlow, Serving or somebody's build that has both."""
    rows = (row for name in ("tensorflow", "serving", "built", "upstream") for row in tables.table(name))
    return next(
        (row for row in rows if row["cudnn"] and lines.agree(row["cudnn"], cudnn) and lines.agree(row["cuda"], cuda)),
        None,
    )
