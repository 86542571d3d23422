"""The nearest combinations that work: what can be chosen is changed, the machine stays as it is."""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.compat import lines, tables
from kiln.compat.answer import Suggestion, Verdict, verdict
from kiln.compat.combination import plain
from kiln.compat.rules import findings, one_by_one
from kiln.compat.variants import completed_list, newest_gcc, variants

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.compat.combination import Combination, Gpu
    from kiln.compat.tables import Row

MOST = 3
OPEN: dict[str, str | None] = dict.fromkeys(("cudnn", "python", "compiler", "host", "bazel"))
# What it costs a person to change: TensorFlow is what they came for, a driver is somebody else's.
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
OTHER = {"compiler", "host", "built_for"}  # whose distance no number tells


def nearest(asked: Combination) -> tuple[Suggestion, ...]:
    """Return the nearest combinations that work, the nearest first; with a cost where nothing works without."""
    found: list[Suggestion] = []
    for good in (Verdict.WORKS, Verdict.COSTS):
        if len(found) < MOST and good.rank < verdict(findings(asked)).rank:
            found += _ranked(asked, [_suggestion(asked, each, good) for each in _candidates(asked, good)])
    return _varied(found)


def _ranked(asked: Combination, suggestions: list[Suggestion]) -> list[Suggestion]:
    return sorted(suggestions, key=lambda each: _distance(asked, each.combination))


def _varied(ranked: list[Suggestion]) -> tuple[Suggestion, ...]:
    """The first of each kind of change: neighbouring releases are one piece of advice, and so is more of the same."""
    kinds: list[Suggestion] = []
    for each in ranked:
        if not any(set(each.changes) >= set(other.changes) for other in kinds):
            kinds.append(each)
    return tuple(kinds[:MOST])


def _is(candidate: Combination, good: Verdict) -> bool:
    """Whether no rule has anything worse to say; given up at the first that has."""
    return not any(finding.verdict.rank > good.rank for finding in one_by_one(candidate))


def _suggestion(asked: Combination, found: Combination, judged: Verdict) -> Suggestion:
    return Suggestion(combination=found, verdict=judged, changes=_changes(asked, found), variants=variants(found))


def _changes(asked: Combination, other: Combination) -> tuple[str, ...]:
    return tuple(name for name in WEIGHTS if getattr(asked, name) != getattr(other, name))


def _distance(asked: Combination, other: Combination) -> tuple[int, float, tuple[float, ...]]:
    changed = _changes(asked, other)
    steps = sum(_steps(getattr(asked, name), getattr(other, name)) for name in changed if name not in OTHER)
    newest_first = tuple(-number for number in lines.numbers(other.tf or "0"))
    return sum(WEIGHTS[name] for name in changed), steps, newest_first


def _steps(one: str, other: str) -> float:
    """How far two versions are apart, a major version as far as a thousand minor ones."""
    (first, second), (third, fourth) = ((*lines.numbers(text), 0)[:2] for text in (one, other))
    return abs((first - third) * 1000 + second - fourth)


def _candidates(asked: Combination, good: Verdict) -> list[Combination]:
    """Every combination near the one asked for that is as good; what cannot become it is left early."""
    found: dict[object, Combination] = {}
    for start in _starts(asked):
        for release in _releases(start):
            for cuda in dict.fromkeys(_cudas(release)):
                if not _is(release.with_versions(cuda=cuda, **OPEN), good):
                    continue
                for cudnn in dict.fromkeys(_cudnns(release, cuda)):
                    made = release.with_versions(cuda=cuda, cudnn=cudnn)
                    found |= {each.key: each for each in _tools(made) if each.key not in found and _is(each, good)}
    return list(found.values())


def _starts(asked: Combination) -> Iterator[Combination]:
    """What was asked for, that with a newer driver, and that compiled for its GPUs too."""
    yield asked
    yield from _with_driver(asked)
    if asked.built_for and (completed := completed_list(asked)):
        yield replace(asked, built_for=completed)


def _with_driver(asked: Combination) -> Iterator[Combination]:
    if asked.driver is None:
        return
    for gpu in asked.gpus:
        final = tables.last_driver(gpu.capability)
        if final is not None and not lines.agree(final["driver"], asked.driver):
            yield asked.with_versions(driver=final["driver"], loaded=None if asked.loaded is None else final["driver"])
    cudas = [asked.cuda, *(_first_cuda(gpu) for gpu in asked.gpus)]
    for row in (tables.driver(cuda) for cuda in cudas if cuda):
        if row is not None and not lines.at_least(asked.driver, row["driver"]):
            yield asked.with_versions(driver=row["driver"], loaded=None if asked.loaded is None else row["driver"])


def _first_cuda(gpu: Gpu) -> str | None:
    row = tables.first_cuda(plain(gpu.capability))
    return None if row is None else row["first"]


def _releases(asked: Combination) -> Iterator[Combination]:
    """The release asked for, then every other one, of Serving with its own TensorFlow."""
    yield asked
    if asked.serving is not None:
        for row in tables.table("serving"):
            own = ".".join(row["last"].split(".")[:2])
            yield asked.with_versions(serving=row["last"], tf=None if asked.tf is None else own)
    elif asked.tf is not None:
        yield from (asked.with_versions(tf=row["tf"]) for row in tables.table("tensorflow"))


def _cudas(release: Combination) -> Iterator[str | None]:
    yield release.cuda
    if release.cuda is not None:
        yield from (row["cuda"] for row in _own(release))
        yield from tables.cuda_lines()


def _cudnns(release: Combination, cuda: str | None) -> Iterator[str | None]:
    yield release.cudnn
    if release.cudnn is None or cuda is None:
        return
    yield from (row["cudnn"] for row in _own(release))
    yield from (
        row["last"] for row in tables.table("cudnn") if lines.overlaps(cuda, row["cuda_first"], row["cuda_last"])
    )


def _tools(release: Combination) -> Iterator[Combination]:
    """The release with the tools asked for, and with those that its rows name."""
    yield release
    own = tables.tensorflow(release.tf) if release.tf else None
    changes: dict[str, str] = {}
    if own is not None and release.python and own["python"]:
        lowest, highest = lines.span(own["python"])
        changes["python"] = highest if lines.at_least(release.python, highest) else lowest
    if release.bazel and (row := next(_own(release), None)):
        changes["bazel"] = row["bazel"]
    changes |= {name: fits for name in ("compiler", "host") if (fits := _compiler(release, getattr(release, name)))}
    for name, value in changes.items():
        yield release.with_versions(**{name: value})
    if len(changes) > 1:
        yield release.with_versions(**changes)


def _compiler(release: Combination, given: str | None) -> str | None:
    """The newest GCC that CUDA takes, else upstream's compiler."""
    if given is None:
        return None
    newest = newest_gcc(release.cuda)
    if newest and given.startswith("gcc "):
        return f"gcc {newest}"
    own = tables.tensorflow(release.tf) if release.tf else None
    return own["compiler"] or None if own else None


def _own(release: Combination) -> Iterator[Row]:
    """The rows of the release itself: Serving's before TensorFlow's."""
    if (release.serving and (row := tables.serving(release.serving))) or (
        release.tf and (row := tables.tensorflow(release.tf))
    ):
        yield row
