"""Which versions fit together: TensorFlow, Serving, Python, compilers, Bazel, CUDA, cuDNN, drivers and GPUs.

The facts are rows of the tables in ``data/``, each with its source; rules over them are small functions; what is
said is a value. ``judge`` answers for a combination, ``failures`` reads what a failed program said, ``probe`` looks at
this machine. Standard library only, so that it runs where nothing is installed yet.
"""

from __future__ import annotations

from kiln.compat.answer import Answer, Finding, Suggestion, Verdict, verdict
from kiln.compat.combination import Combination, Gpu, combination
from kiln.compat.nearest import nearest
from kiln.compat.rules import findings
from kiln.compat.variants import of_variant, variants

__all__ = [
    "Answer",
    "Combination",
    "Finding",
    "Gpu",
    "Suggestion",
    "Verdict",
    "combination",
    "judge",
    "of_variant",
]


def judge(asked: Combination, *, suggest: bool = True) -> Answer:
    """Return the verdict on a combination, and unless it simply works the nearest ones that are better."""
    said = findings(asked)
    worst = verdict(said)
    return Answer(
        combination=asked,
        verdict=worst,
        findings=said,
        nearest=nearest(asked) if suggest and said and worst is not Verdict.WORKS else (),
        variants=variants(asked) if worst in {Verdict.WORKS, Verdict.COSTS} else (),
    )
