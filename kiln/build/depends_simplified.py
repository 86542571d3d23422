"""Requirements of a package by the rules with which conda-build writes them: one exact pin counts alone.

Source: _simplify_to_exact_constraints in conda_build/render.py.
"""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import RecipeFault

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


def simplified_depends(specs: Iterable[str]) -> list[str]:
    """Return sorted specs, each ``name``, ``name version`` or ``name version build``, without what others imply.

    Of a package with an exact version and build, all other specs are left out; of one with a version, the bare name.

    Raises:
        RecipeFault: two exact pins of a package differ.
    """
    by_name: dict[str, set[str]] = {}
    for spec in specs:
        name, _, rest = spec.partition(" ")
        by_name.setdefault(name, set()).add(rest.strip())
    return sorted(_specs_not_implied(by_name))


def _specs_not_implied(by_name: Mapping[str, set[str]]) -> Iterable[str]:
    for name, rests in by_name.items():
        exact = {rest for rest in rests if _is_exact_pin(rest)}
        if len(exact) > 1:
            raise RecipeFault(
                f"{name} is required in two exact builds",
                why=", ".join(sorted(exact)),
                hint="if one is a run export of a package in build or host, ignore_run_exports leaves it out",
            )
        yield from (f"{name} {rest}".strip() for rest in exact or (rests - {""} or rests))


def _is_exact_pin(rest: str) -> bool:
    """Return whether a spec without its name is a version and a build, neither with wildcards nor as a range."""
    words = rest.split()
    return len(words) > 1 and not set("<>*") & set(words[0]) and "*" not in words[1]
