"""Which versions fit together: TensorFlow, Serving, Python, compilers, Bazel, CUDA, cuDNN, drivers and GPUs.

The facts are rows of the tables in ``data/``, each with its source; the rules are small functions that return values.
``judge`` judges a combination, ``failures`` reads the log of a failed program, ``probe`` inspects this machine.
Standard library only, so that it runs where nothing is installed yet.
"""

from __future__ import annotations

from kiln.compat.combination import Combination, Gpu, combination
from kiln.compat.results import DoctorResult, Finding, Suggestion, Verdict, verdict
from kiln.compat.rules import findings
from kiln.compat.suggestions import nearest
from kiln.compat.variant_conversion import config_lines, of_variant

__all__ = [
    "Combination",
    "DoctorResult",
    "Finding",
    "Gpu",
    "Suggestion",
    "Verdict",
    "combination",
    "judge",
    "of_variant",
]


def judge(subject: Combination, *, suggest: bool = True) -> DoctorResult:
    """Return the verdict on a combination, and unless it works the nearest ones that are better."""
    reasons = findings(subject)
    worst = verdict(reasons)
    return DoctorResult(
        combination=subject,
        verdict=worst,
        findings=reasons,
        nearest=nearest(subject) if suggest and reasons and worst is not Verdict.WORKS else (),
        variants=config_lines(subject) if worst in {Verdict.WORKS, Verdict.COSTS} else (),
    )
