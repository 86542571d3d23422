"""Upstream's wheels with the C library and the processor."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import tables, version_ranges
from kiln.compat.rules.common import CANNOT, WORKS, finding_of, unknown

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.combination import Combination
    from kiln.compat.results import Finding


def wheel_and_glibc(combination: Combination) -> Iterator[Finding]:
    """Accept the glibc in the file name of upstream's wheel, and newer ones."""
    if combination.tf is None or combination.glibc is None:
        return
    row, rule = tables.newest(tables.rows_including(tables.table("wheel"), combination.tf)), "wheel and glibc"
    if row is None:
        yield unknown(rule, f"no table has the glibc of TensorFlow {combination.tf}")
    elif version_ranges.at_least(combination.glibc, row["glibc"]):
        yield finding_of(
            rule, WORKS, f"upstream's wheel of TensorFlow {combination.tf} needs glibc {row['glibc']} or newer", row
        )
    else:
        yield finding_of(
            rule,
            CANNOT,
            f"upstream's wheel of TensorFlow {combination.tf} needs glibc {row['glibc']}; {combination.glibc} is older",
            row,
        )


def wheel_and_processor(combination: Combination) -> Iterator[Finding]:
    """Refuse a processor without AVX, which upstream's wheels need since 1.6."""
    if combination.tf is None or combination.avx is not False:
        return
    row = next(iter(tables.rows_including(tables.table("processor"), combination.tf)), None)
    if row is not None:
        reason = (
            f"upstream's wheel of TensorFlow {combination.tf} uses AVX, which this processor does not have; "
            "compile it with microarch_level 1"
        )
        yield finding_of("wheel and processor", CANNOT, reason, row)
