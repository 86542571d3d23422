"""The verdict on a combination, the nearest ones that work, and what a machine can run."""

from __future__ import annotations

import dataclasses
import itertools
from dataclasses import replace
from functools import partial
from typing import TYPE_CHECKING

from kiln.compat import tables
from kiln.compat.combination import (
    Combination,
    DoctorResult,
    Finding,
    Gpu,
    Suggestion,
    Verdict,
    capabilities_extended_for_gpus,
    capability_number,
    conda_build_config_lines,
    newest_accepted_compiler,
    release_row,
    with_release_cuda_unless_given,
    worst_verdict,
)
from kiln.compat.rules import findings
from kiln.compat.rules.gpu import judge_known_failures
from kiln.compat.rules.tensorflow import judge_build_and_architecture
from kiln.compat.tables import is_at_least, lowest_and_highest, overlaps_range, version_numbers, versions_agree

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kiln.compat.machine import MachineFacts


COUNT = 3
OPEN: dict[str, str | None] = dict.fromkeys(("cudnn", "python", "compiler", "host", "bazel"))
# The cost of a change: TensorFlow is the purpose, a driver needs an administrator.
WEIGHTS = {
    "serving": 6,
    "tf": 5,
    "driver": 4,
    "python": 3,
    "cuda": 2,
    "cudnn": 1,
    "compiler": 1,
    "host": 1,
    "bazel": 1,
    "built_for": 1,
}
RELEASE = (("tf",), ("serving",), ("serving", "tf"))
UNORDERED = {"compiler", "host", "built_for"}  # without a distance


def _nearest_working_combinations(original: Combination, verdict: Verdict) -> tuple[Suggestion, ...]:
    """Return the nearest combinations that work, the nearest first; with a cost where none works without.

    ``verdict`` is the original's, which does not work without a cost.
    """
    worst = Verdict.COSTS if verdict.rank > Verdict.COSTS.rank else Verdict.WORKS
    ranked = _ranked_suggestions(original, worst)
    works, costs = ([item for item in ranked if item.verdict is good] for good in (Verdict.WORKS, Verdict.COSTS))
    nearest = _first_of_each_kind_of_change([*_nearer_release_with_cost(original, costs, works), *works, *costs])
    return tuple(replace(item, variants=conda_build_config_lines(item.combination)) for item in nearest)


def _nearer_release_with_cost(
    original: Combination, costs: list[Suggestion], works: list[Suggestion]
) -> list[Suggestion]:
    """Return the release with a cost that is nearer than the first one without, where only the release changes."""
    cost, work = (next((item for item in of if item.changes in RELEASE), None) for of in (costs, works))
    if (
        cost is None
        or work is None
        or _change_distance(original, cost.combination) >= _change_distance(original, work.combination)
    ):
        return []
    return [cost]


def _ranked_suggestions(original: Combination, worst: Verdict) -> list[Suggestion]:
    """Return every similar combination with a verdict up to ``worst``, the nearest first, without variants."""
    verdicts = _candidate_verdicts(original, worst)
    return [
        Suggestion(combination=candidate, verdict=verdicts[candidate], changes=_changed_parts(original, candidate))
        for candidate in sorted(verdicts, key=lambda candidate: _change_distance(original, candidate))
    ]


def _first_of_each_kind_of_change(ranked: list[Suggestion]) -> tuple[Suggestion, ...]:
    """Return the first of each kind of change: neighboring releases are one kind, and so are additional changes.

    A combination that works without a cost is a kind of its own next to a nearer release with one.
    """
    kinds: list[Suggestion] = []
    for suggestion in ranked:
        is_covered = any(
            set(suggestion.changes) >= set(other.changes) and suggestion.verdict.rank >= other.verdict.rank
            for other in kinds
        )
        if not is_covered:
            kinds.append(suggestion)
    return tuple(kinds[:COUNT])


def _verdict_up_to(candidate: Combination, worst: Verdict) -> Verdict | None:
    """Return the verdict on a combination; None when it is worse than ``worst``, at the first finding that is."""
    verdict = Verdict.WORKS
    for finding in findings(candidate):
        if finding.verdict.rank > worst.rank:
            return None
        if finding.verdict.rank > verdict.rank:
            verdict = finding.verdict
    return verdict


def _changed_parts(original: Combination, other: Combination) -> tuple[str, ...]:
    return tuple(name for name in WEIGHTS if getattr(original, name) != getattr(other, name))


def _change_distance(original: Combination, other: Combination) -> tuple[int, float, tuple[float, ...]]:
    names = _changed_parts(original, other)
    begin = with_release_cuda_unless_given(original)  # upstream's CUDA where none was given
    steps = sum(
        _version_distance(getattr(begin, name), getattr(other, name)) for name in names if name not in UNORDERED
    )
    newest_first = tuple(-number for number in version_numbers(other.tf or "0"))
    return sum(WEIGHTS[name] for name in names), steps, newest_first


def _version_distance(one: str, other: str) -> float:
    """Return the distance of two versions; a major version counts as a thousand minor ones."""
    (first, second), (third, fourth) = ((*version_numbers(text), 0)[:2] for text in (one, other))
    return abs((first - third) * 1000 + second - fourth)


def _candidate_verdicts(original: Combination, worst: Verdict) -> dict[Combination, Verdict]:
    """Return the verdicts up to ``worst`` on similar combinations; parts that already exclude one are skipped early."""
    verdicts: dict[Combination, Verdict | None] = {}
    for start in (original, *_with_newer_drivers(original)):
        for release in _with_other_releases(start):
            for built in _with_candidate_cudas(release):
                of_release = _verdict_up_to(built.with_versions(**OPEN), worst)
                if of_release is None:
                    continue
                for cudnn in dict.fromkeys(_candidate_cudnns(built)):
                    for candidate in _with_candidate_tools(built.with_versions(cudnn=cudnn)):
                        if candidate not in verdicts:
                            verdict = _verdict_up_to(candidate, worst)
                            verdicts[candidate] = verdict and max(verdict, of_release, key=lambda one: one.rank)
    return {candidate: verdict for candidate, verdict in verdicts.items() if verdict is not None}


def _with_candidate_cudas(release: Combination) -> Iterator[Combination]:
    """Yield the release with each CUDA, and compiled for its GPUs too."""
    for cuda in dict.fromkeys(_candidate_cudas(release)):
        built = release.with_versions(cuda=cuda)
        yield built
        if built.built_for and (completed := capabilities_extended_for_gpus(built)):
            yield replace(built, built_for=completed)


def _with_newer_drivers(original: Combination) -> Iterator[Combination]:
    if original.driver is None:
        return
    last = [row["driver"] for gpu in original.gpus if (row := tables.last_driver_row_for_capability(gpu.capability))]
    firsts = (tables.oldest_cuda_row_for_capability(capability_number(gpu.capability)) for gpu in original.gpus)
    cudas = [original.cuda, *(row["first"] for row in firsts if row)]
    column = original.driver_column
    oldest = [
        row[column] for cuda in cudas if cuda and (row := tables.oldest_driver_row_for_cuda(cuda)) and row[column]
    ]
    for driver in (
        *(driver for driver in last if not versions_agree(driver, original.driver)),
        *(driver for driver in oldest if not is_at_least(original.driver, driver)),
    ):
        yield original.with_versions(driver=driver, loaded=None if original.loaded is None else driver)


def _with_other_releases(original: Combination) -> Iterator[Combination]:
    """Yield the original, then every other release; one of Serving with its own TensorFlow."""
    yield original
    if original.serving is not None:
        for row in tables.table_rows("serving"):
            own = ".".join(row["last"].split(".")[:2])
            yield original.with_versions(serving=row["last"], tf=None if original.tf is None else own)
    elif original.tf is not None:
        yield from (original.with_versions(tf=row["tf"]) for row in tables.table_rows("tensorflow"))


def _candidate_cudas(release: Combination) -> Iterator[str | None]:
    yield release.cuda
    if release.cuda is None and any((*judge_known_failures(release), *judge_build_and_architecture(release))):
        # not upstream's wheel
        yield from filter(partial(_cuda_compiles_for_gpus, release.gpus), tables.cuda_minor_versions())
    if release.cuda is not None:
        if row := release_row(release):
            yield row["cuda"]
        yield from tables.cuda_minor_versions()


def _cuda_compiles_for_gpus(gpus: tuple[Gpu, ...], cuda: str) -> bool:
    """Return whether a CUDA compiles machine code for all GPUs."""
    row = tables.cuda_compiler_row(cuda)
    return row is not None and {str(capability_number(gpu.capability)) for gpu in gpus} <= set(
        row["capabilities"].split()
    )


def _candidate_cudnns(release: Combination) -> Iterator[str | None]:
    yield release.cudnn
    if release.cudnn is None or (cuda := release.cuda) is None:
        return
    if row := release_row(release):
        yield row["cudnn"]
    yield from (
        row["last"] for row in tables.table_rows("cudnn") if overlaps_range(cuda, row["cuda_first"], row["cuda_last"])
    )


def _with_candidate_tools(release: Combination) -> Iterator[Combination]:
    """Yield the release with the original tools, and with those of its rows."""
    yield release
    own = tables.tensorflow_row(release.tf) if release.tf else None
    changes: dict[str, str] = {}
    if own is not None and release.python and own["python"]:
        lowest, highest = lowest_and_highest(own["python"])
        changes["python"] = highest if is_at_least(release.python, highest) else lowest
    if release.bazel and (row := release_row(release)):
        changes["bazel"] = row["bazel"]
    changes |= {
        name: text for name in ("compiler", "host") if (text := _accepted_compiler(release, getattr(release, name)))
    }
    for name, value in changes.items():
        yield release.with_versions(**{name: value})
    if len(changes) > 1:
        yield release.with_versions(**changes)


def _accepted_compiler(release: Combination, compiler: str | None) -> str | None:
    """Return the newest compiler of its name that CUDA accepts, else upstream's compiler."""
    if compiler is None:
        return None
    name = compiler.split()[0]
    newest = newest_accepted_compiler(release.cuda, name)
    if newest and (name == "gcc" or compiler == release.host):
        return f"{name} {newest}"
    own = tables.tensorflow_row(release.tf) if release.tf else None
    return own["compiler"] or None if own else None


def judge_combination(subject: Combination, *, suggest: bool = True, of_machine: Finding | None = None) -> DoctorResult:
    """Return the verdict on a combination, and unless it works the nearest ones that are better.

    ``of_machine`` is a finding on the machine that no other combination cures.
    """
    reasons = (*filter(None, [of_machine]), *findings(subject))
    worst = worst_verdict(reasons)
    return DoctorResult(
        combination=subject,
        verdict=worst,
        findings=reasons,
        nearest=_nearest_working_combinations(subject, worst)
        if suggest and of_machine is None and reasons and worst is not Verdict.WORKS
        else (),
        variants=conda_build_config_lines(subject) if worst in {Verdict.WORKS, Verdict.COSTS} else (),
    )


def newest_tensorflow_results(facts: MachineFacts) -> dict[str, DoctorResult]:
    """Return the results for running, and for building on the host, the newest TensorFlow in the tables."""
    newest = max(tables.table_rows("tensorflow"), key=lambda row: version_numbers(row["tf"]))
    running = facts.runtime_combination()
    cuda = newest["cuda"] if running.gpus or running.driver else None
    results = {"running": judge_combination(dataclasses.replace(running, tf=newest["tf"], cuda=cuda))}
    building = facts.build_combination()
    if building.bazel or building.host:
        results["building"] = judge_combination(dataclasses.replace(building, tf=newest["tf"], cuda=newest["cuda"]))
    return results


def cuda_verdicts(facts: MachineFacts) -> dict[str, Verdict]:
    """Return the verdict on every CUDA with this machine's driver and GPUs, newest first; none without a driver."""
    running = facts.runtime_combination()
    if running.driver is None:
        return {}
    machine = Combination(driver=running.driver, loaded=running.loaded, gpus=running.gpus)
    return {
        cuda: judge_combination(dataclasses.replace(machine, cuda=cuda), suggest=False).verdict
        for cuda in tables.cuda_minor_versions()
    }


def cuda_ranges_by_verdict(verdicts: Mapping[str, Verdict]) -> dict[str, str]:
    """Return verdicts as ranges: ``works`` is ``12.9 to 12.0, 11.8``."""
    texts: dict[str, list[str]] = {}
    for verdict, run in itertools.groupby(verdicts, key=verdicts.__getitem__):
        cudas = list(run)
        text = cudas[0] if len(cudas) == 1 else f"{cudas[-1]} to {cudas[0]}"
        texts.setdefault(verdict.value, []).append(text)
    return {verdict: ", ".join(parts) for verdict, parts in texts.items()}
