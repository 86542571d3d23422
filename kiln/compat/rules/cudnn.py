"""cuDNN with CUDA, GPUs and drivers."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import tables
from kiln.compat.combination import Combination, Gpu, capability_number
from kiln.compat.results import CANNOT, UNKNOWN, WORKS, Finding, finding_with_rows, unknown_finding
from kiln.compat.version_ranges import is_at_least, version_numbers, versions_agree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.tables import Row


def judge_cudnn_and_cuda(combination: Combination) -> Iterator[Finding]:
    """Judge a cuDNN by NVIDIA's matrix of CUDAs, then by the pairs that were tested."""
    if combination.cudnn is None or combination.cuda is None:
        return
    rule, what = "cuDNN and CUDA", f"cuDNN {combination.cudnn} and CUDA {combination.cuda}"
    rows = tables.cudnn_rows_for_cuda(combination.cudnn, combination.cuda)
    working = [row for row in rows if row["works"] == "yes"]
    if working:
        yield finding_with_rows(rule, WORKS, f"{what} are made for each other", working[0])
    elif rows:
        yield finding_with_rows(rule, CANNOT, f"NVIDIA does not support {what} together", rows[0])
    elif tested := _row_with_both_versions(combination.cudnn, combination.cuda):
        yield finding_with_rows(rule, WORKS, f"{what} are tested together", tested)
    else:
        yield unknown_finding(rule, f"no table has {what} together")


def judge_cudnn_and_machine(combination: Combination) -> Iterator[Finding]:
    """Judge a cuDNN by the GPUs and the driver that it requires with a CUDA."""
    if combination.cudnn is None or combination.cuda is None:
        return
    rows = [row for row in tables.cudnn_rows_for_cuda(combination.cudnn, combination.cuda) if row["works"] == "yes"]
    for gpu in combination.gpus if rows else ():
        yield _finding_on_cudnn_and_gpu(combination, rows, gpu)
    least = min((row for row in rows if row["driver"]), key=lambda row: version_numbers(row["driver"]), default=None)
    if combination.driver and least and not is_at_least(combination.driver, least["driver"]):
        reason = (
            f"cuDNN {combination.cudnn} for CUDA {combination.cuda} needs driver {least['driver']} or newer, and "
            f"{combination.driver} is older"
        )
        yield finding_with_rows("cuDNN and driver", CANNOT, reason, least)


def _finding_on_cudnn_and_gpu(combination: Combination, rows: list[Row], gpu: Gpu) -> Finding:
    rule, number = "cuDNN and GPU", capability_number(gpu.capability)
    stated = [row for row in rows if row["capability_min"]]
    holding = [row for row in stated if _capability_range(row)[0] <= number <= _capability_range(row)[1]]
    if holding:
        return finding_with_rows(
            rule, WORKS, f"cuDNN {combination.cudnn} has kernels for {gpu.text}", holding[0], *gpu.rows
        )
    what = f"cuDNN {combination.cudnn} for CUDA {combination.cuda}"
    if len(stated) < len(rows):
        return unknown_finding(rule, f"no table has the GPUs of {what}")
    if all(number < _capability_range(row)[0] for row in stated):
        return finding_with_rows(
            rule, CANNOT, f"{what} has no kernels for {gpu.text}, which is older than all of its GPUs", stated[0]
        )
    return finding_with_rows(
        rule, UNKNOWN, f"NVIDIA's matrix of {what} does not list {gpu.text}, which is newer", stated[0], *gpu.rows
    )


def _capability_range(row: Row) -> tuple[int, float]:
    highest = row["capability_max"]
    return capability_number(row["capability_min"]), capability_number(highest) if highest else float("inf")


def _row_with_both_versions(cudnn: str, cuda: str) -> Row | None:
    """Return a row of TensorFlow, Serving or a known build that has both."""
    rows = (row for name in ("tensorflow", "serving", "built", "upstream") for row in tables.table_rows(name))
    return next(
        (
            row
            for row in rows
            if row["cudnn"] and versions_agree(row["cudnn"], cudnn) and versions_agree(row["cuda"], cuda)
        ),
        None,
    )
