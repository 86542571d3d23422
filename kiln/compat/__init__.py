"""Which versions fit together: TensorFlow, Serving, Python, compilers, Bazel, CUDA, cuDNN, drivers and GPUs.

The facts are rows of the tables in ``data/``, each with its source; the rules are small functions that return values.
``judge_combination`` judges a combination, ``failure_patterns`` reads the log of a failed program, ``probe`` inspects
this machine. Standard library only, so that it runs where nothing is installed yet.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.lazy_exports import lazy_exports

if TYPE_CHECKING:
    from kiln.compat.combination import Combination, Gpu
    from kiln.compat.combination_verdict import judge_combination
    from kiln.compat.results import DoctorResult, Finding, Suggestion, Verdict
    from kiln.compat.variant_conversion import combinations_of_variant

__all__ = [
    "Combination",
    "DoctorResult",
    "Finding",
    "Gpu",
    "Suggestion",
    "Verdict",
    "combinations_of_variant",
    "judge_combination",
]

__getattr__ = lazy_exports(
    __name__,
    {
        "combination": "Combination Gpu",
        "combination_verdict": "judge_combination",
        "results": "DoctorResult Finding Suggestion Verdict",
        "variant_conversion": "combinations_of_variant",
    },
)
