"""TensorFlow Serving with what its releases are built with."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import lines, tables
from kiln.compat.rules.common import CANNOT, COSTS, UNKNOWN, WORKS, same_bazel, silent, told
from kiln.compat.rules.tensorflow import tensorflow_and_python

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.answer import Finding, Verdict
    from kiln.compat.combination import Combination
    from kiln.compat.tables import Row


def serving_and_the_rest(asked: Combination) -> Iterator[Finding]:
    """A release of Serving comes with a TensorFlow of its own minor version, one CUDA and one cuDNN."""
    if asked.serving is None:
        return
    row, rule = tables.serving(asked.serving), "Serving"
    if row is None:
        yield silent(rule, f"no table has Serving {asked.serving}")
        return
    yield from _serving_and_tensorflow(asked.serving, asked.tf, row)
    for name, shown in (("cuda", "CUDA"), ("cudnn", "cuDNN")):
        given = getattr(asked, name)
        if given is None:
            continue
        if lines.agree(given, row[name]):
            yield told(f"{rule} and {shown}", WORKS, f"Serving {asked.serving} is built with {shown} {row[name]}", row)
        else:
            yield told(f"{rule} and {shown}", *_other_than_serving(asked.serving, shown, given, row[name]), row)


def _other_than_serving(serving: str, shown: str, given: str, own: str) -> tuple[Verdict, str]:
    if lines.numbers(given)[0] == lines.numbers(own)[0]:
        return (
            COSTS,
            f"Serving {serving} is built with {shown} {own}; {given} is of the same major version, and untested",
        )
    return UNKNOWN, f"Serving {serving} is built with {shown} {own}; whether it can be with {given} nobody has told"


def _serving_and_tensorflow(serving: str, tf: str | None, row: Row) -> Iterator[Finding]:
    rule = "Serving and TensorFlow"
    if tf and lines.numbers(tf)[:2] != lines.numbers(serving)[:2]:
        yield told(rule, CANNOT, f"Serving {serving} contains TensorFlow of its own minor version, not {tf}", row)
        return
    own = tables.tensorflow(serving)
    if own is None:
        yield silent(rule, f"no table has TensorFlow {serving}, which Serving {serving} would contain")
        return
    differ = [
        f"{shown} {row[name]} (TensorFlow: {own[name]})"
        for name, shown in (("cuda", "CUDA"), ("cudnn", "cuDNN"))
        if not lines.agree(row[name], own[name])
    ]
    if differ:
        yield told(
            rule,
            COSTS,
            f"Serving {serving} is built with another {' and '.join(differ)} than TensorFlow is tested with",
            row,
            own,
        )
    else:
        yield told(
            rule, WORKS, f"Serving {serving} is built with the CUDA and cuDNN that TensorFlow is tested with", row, own
        )


def serving_and_python(asked: Combination) -> Iterator[Finding]:
    """What a client imports of Serving stands beside a TensorFlow of the same minor version, for its Pythons."""
    if asked.serving is not None and asked.tf is None and tables.tensorflow(asked.serving) is not None:
        yield from tensorflow_and_python(asked.with_versions(tf=".".join(asked.serving.split(".")[:2])))


def serving_and_bazel(asked: Combination) -> Iterator[Finding]:
    """Serving names its own Bazel, which need not be TensorFlow's."""
    if asked.serving is None or asked.bazel is None:
        return
    row = tables.serving(asked.serving)
    yield same_bazel("Serving and Bazel", f"Serving {asked.serving}", row["bazel"] if row else "", asked.bazel, row)
