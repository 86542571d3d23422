"""Upstream's wheels with the C library and the processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import lines, tables
from kiln.compat.rules.common import CANNOT, WORKS, silent, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.answer import Finding
    from kiln.compat.combination import Combination


def wheel_and_glibc(asked: Combination) -> Iterator[Finding]:
    """Upstream's wheel runs on the glibc that its file name has, and on newer ones."""
    if asked.tf is None or asked.glibc is None:
        return
    row, rule = tables.newest(tables.overlapping(tables.table("wheel"), asked.tf)), "wheel and glibc"
    if row is None:
        yield silent(rule, f"no table has the glibc of TensorFlow {asked.tf}")
    elif lines.at_least(asked.glibc, row["glibc"]):
        yield told(rule, WORKS, f"upstream's wheel of TensorFlow {asked.tf} needs glibc {row['glibc']} or newer", row)
    else:
        yield told(
            rule,
            CANNOT,
            f"upstream's wheel of TensorFlow {asked.tf} needs glibc {row['glibc']}; {asked.glibc} is older",
            row,
        )


def wheel_and_processor(asked: Combination) -> Iterator[Finding]:
    """Upstream's wheels need AVX since 1.6."""
    if asked.tf is None or asked.avx is not False:
        return
    row = next(iter(tables.overlapping(tables.table("processor"), asked.tf)), None)
    if row is not None:
        reason = (
            f"upstream's wheel of TensorFlow {asked.tf} uses AVX, which this processor does not have; "
            "compile it with microarch_level 1"
        )
        yield told("wheel and processor", CANNOT, reason, row)
