"""The releases of TensorFlow that accept all parts of a combination."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.compat import tables, version_ranges
from kiln.compat.rules.common import COSTS, WORKS, finding_of, unknown

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator

    from kiln.compat.combination import Combination
    from kiln.compat.results import Finding, Verdict
    from kiln.compat.tables import Row

    Rule = Callable[[Combination], Iterator[Finding]]


def releases(combination: Combination, rules: tuple[Rule, ...]) -> Iterator[Finding]:
    """Yield the releases of TensorFlow that accept all parts; without one, that this is not documented."""
    if (
        combination.tf is not None
        or combination.serving is not None
        or not (combination.given() or combination.gpus or combination.built_for)
    ):
        return
    if combination.cuda is not None and tables.driver(combination.cuda) is None:
        return  # the tables do not have that CUDA
    verdicts = [(row, _with(combination, row, rules)) for row in tables.table("tensorflow")]
    for good, words in ((WORKS, "as upstream tests them"), (COSTS, "with a cost")):
        fitting = [row for row, verdict in verdicts if verdict is good]
        if fitting:
            yield finding_of(
                "releases", good, _range_of_releases(fitting, words), *dict.fromkeys((fitting[0], fitting[-1]))
            )
            return
    newest = tables.table("tensorflow")[0]
    if cuda := _other_cuda(combination, newest, rules):
        reason = (
            f"TensorFlow {newest['tf']} accepts it when it is built with CUDA {cuda}, which upstream's wheel is not"
        )
        yield finding_of("releases", COSTS, reason, newest)
        return
    yield unknown("releases", "no release of TensorFlow in the tables is known to accept all of it")


def _other_cuda(combination: Combination, row: Row, rules: tuple[Rule, ...]) -> str | None:
    """Return the newest CUDA, of the major version of a release's, with which it accepts the GPUs and other parts."""
    if combination.cuda is not None or not combination.gpus:
        return None
    major = version_ranges.numbers(row["cuda"])[:1]
    lines = (cuda for cuda in tables.cuda_minor_versions() if version_ranges.numbers(cuda)[:1] == major)
    return next((cuda for cuda in lines if _with(combination.with_versions(cuda=cuda), row, rules) is COSTS), None)


def _with(combination: Combination, row: Row, rules: tuple[Rule, ...]) -> Verdict:
    """Return the verdict on a release with the parts, at most COSTS; the release's CUDA replaces one left open."""
    whole, worst = combination.with_versions(tf=row["tf"], cuda=combination.cuda or row["cuda"]), WORKS
    for finding in (finding for rule in rules for finding in rule(whole)):
        worst = max(worst, finding.verdict, key=lambda verdict: verdict.rank)
        if worst.rank > COSTS.rank:
            break
    return worst


def _range_of_releases(fitting: list[Row], words: str) -> str:
    newest, oldest = fitting[0]["tf"], fitting[-1]["tf"]
    older = "" if newest == oldest else f", {oldest} the oldest"
    return f"of TensorFlow's releases, {words}, {newest} is the newest that accepts it{older}"
