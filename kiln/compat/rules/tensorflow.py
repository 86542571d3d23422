"""TensorFlow with CUDA, cuDNN, Python, Bazel and compilers: what upstream tests, and what others have built."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import lines, tables
from kiln.compat.rules.common import CANNOT, COSTS, UNKNOWN, WORKS, same_bazel, silent, told

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.answer import Finding
    from kiln.compat.combination import Combination
    from kiln.compat.tables import Row


def tensorflow_alone(asked: Combination) -> Iterator[Finding]:
    """Where a release is all that is given, what it is tested with."""
    if asked.tf is None or [name for name, _ in asked.given()] != ["tf"] or asked.gpus:
        return
    row, rule = tables.tensorflow(asked.tf), "TensorFlow"
    if row is None:
        yield silent(rule, f"no table has TensorFlow {asked.tf}")
    else:
        yield told(rule, WORKS, f"TensorFlow {asked.tf} is tested with {row.text.partition(', ')[2]}", row)


def tensorflow_and_cuda(asked: Combination) -> Iterator[Finding]:
    """Upstream's tested pair works; another minor version is untested; another major version is another library."""
    if asked.tf is None or asked.cuda is None:
        return
    row, rule = tables.tensorflow(asked.tf), "TensorFlow and CUDA"
    if row is None:
        yield silent(rule, f"no table has TensorFlow {asked.tf}")
    elif lines.agree(row["cuda"], asked.cuda):
        yield told(rule, WORKS, f"TensorFlow {asked.tf} is tested with CUDA {row['cuda']}", row)
    elif built := _built(asked):
        reason = f"upstream tests TensorFlow {asked.tf} with CUDA {row['cuda']}; with {asked.cuda} conda-forge built it"
        yield told(rule, COSTS, reason, row, *built)
    elif lines.numbers(row["cuda"])[0] == lines.numbers(asked.cuda)[0]:
        reason = (
            f"TensorFlow {asked.tf} is tested with CUDA {row['cuda']}; {asked.cuda} is of the same major "
            "version, and untested"
        )
        yield told(rule, COSTS, reason, row)
    else:
        reason = (
            f"TensorFlow {asked.tf} is tested with CUDA {row['cuda']}, of another major version: upstream's wheel "
            f"cannot load the libraries of {asked.cuda}, and whether the sources compile with it nobody has told"
        )
        yield told(rule, UNKNOWN, reason, row)


def tensorflow_and_cudnn(asked: Combination) -> Iterator[Finding]:
    """TensorFlow wants the major version of cuDNN that it was compiled with, and no older minor version."""
    if asked.tf is None or asked.cudnn is None:
        return
    row, rule = tables.tensorflow(asked.tf), "TensorFlow and cuDNN"
    if row is None:
        yield silent(rule, f"no table has TensorFlow {asked.tf}")
        return
    tested = row["cudnn"]
    if lines.numbers(tested)[0] != lines.numbers(asked.cudnn)[0]:
        reason = (
            f"TensorFlow {asked.tf} is tested with cuDNN {tested}; {asked.cudnn} is of another major "
            "version, which upstream's wheel refuses"
        )
        yield told(rule, UNKNOWN, reason, row)
    elif lines.agree(tested, asked.cudnn) or lines.at_least(asked.cudnn, tested):
        yield told(
            rule, WORKS, f"TensorFlow {asked.tf} is tested with cuDNN {tested}, and takes a newer minor version", row
        )
    else:
        reason = (
            f"TensorFlow {asked.tf} is tested with cuDNN {tested}: upstream's wheel refuses the older "
            f"{asked.cudnn}; compiled against it is untested"
        )
        yield told(rule, COSTS, reason, row)


def tensorflow_and_python(asked: Combination) -> Iterator[Finding]:
    """No release runs on a Python that it has dropped; a newer one than upstream's has sometimes been built."""
    if asked.tf is None or asked.python is None:
        return
    row, rule = tables.tensorflow(asked.tf), "TensorFlow and Python"
    if row is None or not row["python"]:
        yield silent(rule, f"no table has the Pythons of TensorFlow {asked.tf}")
        return
    what = f"TensorFlow {asked.tf} is for Python {row['python']}"
    built = [each for each in _builds(asked) if each["python"] and lines.in_ranges(asked.python, each["python"])]
    if lines.in_ranges(asked.python, row["python"]):
        yield told(rule, WORKS, what, row)
    elif built:
        yield told(rule, COSTS, f"{what}; with {asked.python} conda-forge built it", row, built[0])
    elif lines.below(asked.python, lines.span(row["python"])[1]):
        yield told(rule, CANNOT, f"{what}, not for {asked.python}", row)
    else:
        yield told(rule, UNKNOWN, f"{what}; there is no wheel for {asked.python}, which is newer, and no test", row)


def tensorflow_and_bazel(asked: Combination) -> Iterator[Finding]:
    """Sources name the one Bazel that they are tested with."""
    if asked.tf is None or asked.bazel is None:
        return
    row = tables.tensorflow(asked.tf)
    wanted = "" if row is None else (row["bazel_cpu"] if asked.cuda is None and row["bazel_cpu"] else row["bazel"])
    yield same_bazel("TensorFlow and Bazel", f"TensorFlow {asked.tf}", wanted, asked.bazel, row)


def tensorflow_and_compiler(asked: Combination) -> Iterator[Finding]:
    """Another compiler than upstream's is untested."""
    if asked.tf is None or asked.compiler is None:
        return
    row, rule = tables.tensorflow(asked.tf), "TensorFlow and compiler"
    if row is None or not row["compiler"]:
        yield silent(rule, f"no table has the compiler of TensorFlow {asked.tf}")
        return
    (name, version), (tested, tested_version) = asked.compiler.split(), row["compiler"].split()
    if name == tested and lines.numbers(version)[0] == lines.numbers(tested_version)[0]:
        yield told(rule, WORKS, f"TensorFlow {asked.tf} is tested with {row['compiler']}", row)
    else:
        yield told(
            rule, COSTS, f"TensorFlow {asked.tf} is tested with {row['compiler']}; {asked.compiler} is untested", row
        )


def _builds(asked: Combination) -> list[Row]:
    """What others built of a release of TensorFlow."""
    return [row for row in tables.table("built") if row["tf"] and asked.tf and lines.agree(row["tf"], asked.tf)]


def _built(asked: Combination) -> list[Row]:
    return [row for row in _builds(asked) if asked.cuda and lines.agree(row["cuda"], asked.cuda)][:1]
