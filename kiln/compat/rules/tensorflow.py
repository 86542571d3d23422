"""TensorFlow with CUDA, cuDNN, Python, Bazel and compilers: the pairs that upstream tests, and builds by others.

Upstream's wheels are judged with the C library and the processor, too.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import tables
from kiln.compat.results import CANNOT, COSTS, UNKNOWN, WORKS, bazel_finding, finding_with_rows, unknown_finding
from kiln.compat.version_ranges import (
    have_same_major,
    is_at_least,
    is_below,
    is_in_ranges,
    lowest_and_highest,
    versions_agree,
)

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.combination import Combination
    from kiln.compat.results import Finding


def state_tested_versions(combination: Combination) -> Iterator[Finding]:
    """Yield the versions that a release is tested with, where nothing else is given."""
    if combination.tf is None or combination.gpus or len(combination.specified_versions()) > 1:
        return
    row, rule = tables.tensorflow_row(combination.tf), "TensorFlow"
    if row is None:
        yield unknown_finding(rule, f"no table has TensorFlow {combination.tf}")
    else:
        yield finding_with_rows(
            rule, WORKS, f"TensorFlow {combination.tf} is tested with {row.text.partition(', ')[2]}", row
        )


def judge_tensorflow_and_cuda(combination: Combination) -> Iterator[Finding]:
    """Accept upstream's tested pair; another minor version is untested, another major version another library."""
    if combination.tf is None or combination.cuda is None:
        return
    row, rule = tables.tensorflow_row(combination.tf), "TensorFlow and CUDA"
    if row is None:
        yield unknown_finding(rule, f"no table has TensorFlow {combination.tf}")
        return
    tested = f"TensorFlow {combination.tf} is tested with CUDA {row['cuda']}"
    if versions_agree(row["cuda"], combination.cuda):
        yield finding_with_rows(rule, WORKS, tested, row)
    elif builds := [
        row for row in tables.third_party_build_rows(combination.tf) if versions_agree(row["cuda"], combination.cuda)
    ]:
        pair = f"TensorFlow {combination.tf} with CUDA {row['cuda']}"
        reason = f"upstream tests {pair}; with {combination.cuda} conda-forge built it"
        yield finding_with_rows(rule, COSTS, reason, row, builds[0])
    elif have_same_major(row["cuda"], combination.cuda):
        reason = f"{tested}; {combination.cuda} is of the same major version, and untested"
        yield finding_with_rows(rule, COSTS, reason, row)
    else:
        reason = (
            f"{tested}, of another major version: upstream's wheel cannot load the libraries of {combination.cuda}, "
            "and whether the sources compile with it is not documented"
        )
        yield finding_with_rows(rule, UNKNOWN, reason, row)


def judge_tensorflow_and_cudnn(combination: Combination) -> Iterator[Finding]:
    """Judge a cuDNN: TensorFlow needs the major version that it was compiled with, and no older minor version."""
    if combination.tf is None or combination.cudnn is None:
        return
    row, rule = tables.tensorflow_row(combination.tf), "TensorFlow and cuDNN"
    if row is None:
        yield unknown_finding(rule, f"no table has TensorFlow {combination.tf}")
        return
    tested = f"TensorFlow {combination.tf} is tested with cuDNN {row['cudnn']}"
    if not have_same_major(row["cudnn"], combination.cudnn):
        reason = f"{tested}; {combination.cudnn} is of another major version, which upstream's wheel refuses"
        yield finding_with_rows(rule, UNKNOWN, reason, row)
    elif versions_agree(row["cudnn"], combination.cudnn) or is_at_least(combination.cudnn, row["cudnn"]):
        yield finding_with_rows(rule, WORKS, f"{tested}, and accepts a newer minor version", row)
    else:
        reason = f"{tested}: upstream's wheel refuses the older {combination.cudnn}; compiled against it is untested"
        yield finding_with_rows(rule, COSTS, reason, row)


def judge_tensorflow_and_python(combination: Combination) -> Iterator[Finding]:
    """Refuse a Python that a release has dropped; a newer one than upstream's may have been built by others."""
    if combination.tf is None or combination.python is None:
        return
    row, rule = tables.tensorflow_row(combination.tf), "TensorFlow and Python"
    if row is None or not row["python"]:
        yield unknown_finding(rule, f"no table has the Pythons of TensorFlow {combination.tf}")
        return
    what = f"TensorFlow {combination.tf} is for Python {row['python']}"
    builds = [
        row
        for row in tables.third_party_build_rows(combination.tf)
        if row["python"] and is_in_ranges(combination.python, row["python"])
    ]
    if is_in_ranges(combination.python, row["python"]):
        yield finding_with_rows(rule, WORKS, what, row)
    elif builds:
        yield finding_with_rows(rule, COSTS, f"{what}; with {combination.python} conda-forge built it", row, builds[0])
    elif is_below(combination.python, lowest_and_highest(row["python"])[1]):
        yield finding_with_rows(rule, CANNOT, f"{what}, not for {combination.python}", row)
    else:
        yield finding_with_rows(
            rule, UNKNOWN, f"{what}; there is no wheel for {combination.python}, which is newer, and no test", row
        )


def judge_tensorflow_and_bazel(combination: Combination) -> Iterator[Finding]:
    """Judge a Bazel: the sources name the one that they are tested with."""
    if combination.tf is None or combination.bazel is None:
        return
    row = tables.tensorflow_row(combination.tf)
    tested = (
        "" if row is None else (row["bazel_cpu"] if combination.cuda is None and row["bazel_cpu"] else row["bazel"])
    )
    yield bazel_finding("TensorFlow and Bazel", f"TensorFlow {combination.tf}", tested, combination.bazel, row)


def judge_tensorflow_and_compiler(combination: Combination) -> Iterator[Finding]:
    """Judge a compiler: another one than upstream's is untested."""
    if combination.tf is None or combination.compiler is None:
        return
    row, rule = tables.tensorflow_row(combination.tf), "TensorFlow and compiler"
    if row is None or not row["compiler"]:
        yield unknown_finding(rule, f"no table has the compiler of TensorFlow {combination.tf}")
        return
    (name, version), (tested, tested_version) = combination.compiler.split(), row["compiler"].split()
    reason = f"TensorFlow {combination.tf} is tested with {row['compiler']}"
    if name == tested and have_same_major(version, tested_version):
        yield finding_with_rows(rule, WORKS, reason, row)
    else:
        yield finding_with_rows(rule, COSTS, f"{reason}; {combination.compiler} is untested", row)


def judge_wheel_and_glibc(combination: Combination) -> Iterator[Finding]:
    """Accept the glibc in the file name of upstream's wheel, and newer ones."""
    if combination.tf is None or combination.glibc is None:
        return
    row, rule = tables.newest_row_including("wheel", combination.tf), "wheel and glibc"
    if row is None:
        yield unknown_finding(rule, f"no table has the glibc of TensorFlow {combination.tf}")
        return
    need = f"upstream's wheel of TensorFlow {combination.tf} needs glibc {row['glibc']}"
    if is_at_least(combination.glibc, row["glibc"]):
        yield finding_with_rows(rule, WORKS, f"{need} or newer", row)
    else:
        yield finding_with_rows(rule, CANNOT, f"{need}; {combination.glibc} is older", row)


def judge_wheel_and_processor(combination: Combination) -> Iterator[Finding]:
    """Refuse a processor without AVX, which upstream's wheels need since 1.6."""
    if combination.tf is None or combination.avx is not False:
        return
    row = next(iter(tables.rows_including(tables.table_rows("processor"), combination.tf)), None)
    if row is not None:
        reason = (
            f"upstream's wheel of TensorFlow {combination.tf} uses AVX, which this processor does not have; "
            "compile it with microarch_level 1"
        )
        yield finding_with_rows("wheel and processor", CANNOT, reason, row)
