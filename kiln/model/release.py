"""What is to be released: packages with what they say of themselves and what their cells say of them."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.artifact import Artifact, Verdict
    from kiln.model.rendered import Output
    from kiln.model.run import CellState


@dataclass(frozen=True, slots=True, kw_only=True)
class Contents:
    """What a package file says and holds: ``paths`` are what it installs, ``licences`` the texts that it carries.

    ``leaks`` are files with what they should not hold, ``escapes`` paths and links that lead out of a prefix.
    """

    sha256: str
    size: int
    index: Mapping[str, Any]
    about: Mapping[str, Any]
    paths: tuple[str, ...] = ()
    licences: tuple[str, ...] = ()
    leaks: tuple[tuple[str, str], ...] = ()
    escapes: tuple[str, ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A package that cells made, its report by the first of them.

    ``contents`` is None when the file cannot be read, ``broken`` says why; ``output`` is what its cell renders now, and
    ``needs_nothing_else`` tells that nothing can have added to its requirements.
    """

    path: Path
    cells: tuple[str, ...]
    artifact: Artifact
    verdict: Verdict
    contents: Contents | None
    broken: str = ""
    output: Output | None = None
    needs_nothing_else: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """A run's packages on their way to a channel.

    ``cells`` are all cells of the matrix with what became of them, None for one that was never built; ``partial`` those
    that need not be there. ``expected`` are the file names that each cell renders. ``allowed`` are globs over package
    names, ``held`` the hashes of what the channel has, by its path there.
    """

    cells: Mapping[str, CellState | None]
    expected: Mapping[str, tuple[str, ...]]
    candidates: tuple[Candidate, ...]
    partial: frozenset[str] = frozenset()
    allowed: tuple[str, ...]
    held: Mapping[str, str] = field(default_factory=dict)
