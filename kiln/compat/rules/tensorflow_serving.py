"""TensorFlow Serving with the TensorFlow, CUDA, cuDNN, Bazel and Python of its releases."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import tables
from kiln.compat.results import CANNOT, COSTS, UNKNOWN, WORKS, bazel_finding, finding_with_rows, unknown_finding
from kiln.compat.rules.tensorflow import judge_tensorflow_and_python
from kiln.compat.version_ranges import have_same_major, version_numbers, versions_agree

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.combination import Combination
    from kiln.compat.results import Finding
    from kiln.compat.tables import Row


def judge_serving_and_its_libraries(combination: Combination) -> Iterator[Finding]:
    """Judge the TensorFlow, CUDA and cuDNN of a release of Serving, which is built with one of each."""
    if combination.serving is None:
        return
    row, rule = tables.serving_row(combination.serving), "Serving"
    if row is None:
        yield unknown_finding(rule, f"no table has Serving {combination.serving}")
        return
    yield from _findings_on_serving_and_tensorflow(combination.serving, combination.tf, row)
    for name, title in (("cuda", "CUDA"), ("cudnn", "cuDNN")):
        version = getattr(combination, name)
        if version is None:
            continue
        verdict, reason = WORKS, f"Serving {combination.serving} is built with {title} {row[name]}"
        if not versions_agree(version, row[name]):
            if have_same_major(version, row[name]):
                verdict, reason = COSTS, f"{reason}; {version} is of the same major version, and untested"
            else:
                verdict, reason = UNKNOWN, f"{reason}; whether it can be with {version} is not documented"
        yield finding_with_rows(f"{rule} and {title}", verdict, reason, row)


def _findings_on_serving_and_tensorflow(serving: str, tf: str | None, row: Row) -> Iterator[Finding]:
    rule = "Serving and TensorFlow"
    if tf and version_numbers(tf)[:2] != version_numbers(serving)[:2]:
        yield finding_with_rows(
            rule, CANNOT, f"Serving {serving} contains TensorFlow of its own minor version, not {tf}", row
        )
        return
    own = tables.tensorflow_row(serving)
    if own is None:
        yield unknown_finding(rule, f"no table has TensorFlow {serving}, which Serving {serving} would contain")
        return
    differ = [
        f"{title} {row[name]} (TensorFlow: {own[name]})"
        for name, title in (("cuda", "CUDA"), ("cudnn", "cuDNN"))
        if not versions_agree(row[name], own[name])
    ]
    if differ:
        yield finding_with_rows(
            rule,
            COSTS,
            f"Serving {serving} is built with another {' and '.join(differ)} than TensorFlow is tested with",
            row,
            own,
        )
    else:
        yield finding_with_rows(
            rule, WORKS, f"Serving {serving} is built with the CUDA and cuDNN that TensorFlow is tested with", row, own
        )


def judge_serving_and_python(combination: Combination) -> Iterator[Finding]:
    """Judge the Python of Serving's client by the TensorFlow of the same minor version."""
    if (
        combination.serving is not None
        and combination.tf is None
        and tables.tensorflow_row(combination.serving) is not None
    ):
        yield from judge_tensorflow_and_python(
            combination.with_versions(tf=".".join(combination.serving.split(".")[:2]))
        )


def judge_serving_and_bazel(combination: Combination) -> Iterator[Finding]:
    """Judge the Bazel of Serving, which need not be TensorFlow's."""
    if combination.serving is None or combination.bazel is None:
        return
    row = tables.serving_row(combination.serving)
    yield bazel_finding(
        "Serving and Bazel", f"Serving {combination.serving}", row["bazel"] if row else "", combination.bazel, row
    )
