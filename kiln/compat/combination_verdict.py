"""The verdict on a combination of versions, with its reasons and the nearest combinations that are better."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat.combination_variant_conversion import conda_build_config_lines
from kiln.compat.results import DoctorResult, Verdict, worst_verdict
from kiln.compat.rules import findings
from kiln.compat.suggestions import nearest_working_combinations

if TYPE_CHECKING:
    from kiln.compat.combination import Combination


def judge_combination(subject: Combination, *, suggest: bool = True) -> DoctorResult:
    """Return the verdict on a combination, and unless it works the nearest ones that are better."""
    reasons = tuple(findings(subject))
    worst = worst_verdict(reasons)
    return DoctorResult(
        combination=subject,
        verdict=worst,
        findings=reasons,
        nearest=nearest_working_combinations(subject, worst)
        if suggest and reasons and worst is not Verdict.WORKS
        else (),
        variants=conda_build_config_lines(subject) if worst in {Verdict.WORKS, Verdict.COSTS} else (),
    )
