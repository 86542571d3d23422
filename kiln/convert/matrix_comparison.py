"""The matrices of both recipes: other configs are no difference as long as all of them together give the same packages.

rattler-build and conda-smithy divide a recipe.yaml by fewer keys than a meta.yaml, whose top level counts for each job.
"""

from __future__ import annotations

from dataclasses import replace
from typing import TYPE_CHECKING

from kiln.convert.proof import Difference

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence

    from kiln.convert.facts import Facts
    from kiln.convert.proof import Proof
    from kiln.model.build_config import BuildConfig

    Matrix = tuple[Sequence[BuildConfig], Mapping[str, Sequence[Facts]]]
    Packages = dict[tuple[str, str, str], tuple[str, str]]  # by what they are: config and name


def compare_matrices(proof: Proof, old: Matrix, new: Matrix) -> Proof:
    """Return a proof with the comparison of all packages of both matrices, each at its own configs."""
    before, after = _packages(old), _packages(new)
    if before.keys() == after.keys():
        note = f"the same packages come from {len(new[0])} configs instead of {len(old[0])}: kiln rerender"
        return replace(proof, notes=(*proof.notes, note))
    gone = [place for key, place in before.items() if key not in after]
    added = [place for key, place in after.items() if key not in before]
    matrix = Difference(
        package="all packages",
        what="packages of all configs",
        old=_shown(gone),
        new=_shown(added),
        configs=tuple(dict.fromkeys(config for config, _ in gone)),
    )
    return replace(proof, differences=(*proof.differences, matrix))


def _packages(matrix: Matrix) -> Packages:
    configs, facts = matrix
    return {
        (config.platform, package.masked, f"{package.name} {sorted(package.values.items())}"): (
            config.name,
            package.name,
        )
        for config in configs
        for package in facts[config.name]
    }


def _shown(places: Sequence[tuple[str, str]]) -> str:
    return ", ".join(f"{name} ({config})" for config, name in places) or "nothing"
