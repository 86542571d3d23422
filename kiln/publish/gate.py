"""What keeps packages from being released: every reason at once, decided purely.

The kinds are those of docs/how-to/publish.md, where each has a row; what may be published by a feedstock follows
conda-forge's output validation.
"""

from __future__ import annotations

import fnmatch
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kiln.matchspec import legacy, package_name, strict
from kiln.model.artifact import Verdict
from kiln.model.run import CellState
from kiln.publish.contents import REHEARSAL

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator

    from kiln.model.release import Candidate, Release

GOOD = frozenset({CellState.DONE, CellState.FOUND})


class Kind(str, Enum):
    """Why something is no release."""

    EMPTY = "nothing to publish"
    MISSING_CELL = "missing cell"
    FAILED_CELL = "failed cell"
    MISSING_PACKAGE = "missing package"
    BROKEN = "broken"
    CHANGED = "changed"
    UNTESTED = "untested"
    REHEARSAL = "rehearsal"
    MISMATCH = "mismatch"
    NOT_ALLOWED = "not allowed"
    HELD = "held"
    LEAK = "leak"
    ESCAPE = "escape"
    NO_LICENCE = "no licence"
    SAME_PATH = "same path"


@dataclass(frozen=True, slots=True, kw_only=True)
class Reason:
    """One reason: what it is about (a cell, a package file), and what is wrong with it."""

    kind: Kind
    about: str
    what: str

    def __str__(self) -> str:
        return f"{self.kind.value}: {self.about}: {self.what}" if self.about else f"{self.kind.value}: {self.what}"


def reasons(release: Release) -> tuple[Reason, ...]:
    """Return everything that keeps a release from being published; nothing when it may be."""
    found = [*_cells(release), *_packages_there(release)]
    for candidate in release.candidates:
        found += _candidate(candidate, release)
    return (*found, *_same_paths(release.candidates))


def _cells(release: Release) -> Iterator[Reason]:
    if not release.candidates:
        yield Reason(kind=Kind.EMPTY, about="", what="no cell of the matrix has made a package")
    for cell in sorted(release.partial - release.cells.keys()):
        yield Reason(kind=Kind.MISSING_CELL, about=cell, what="--partial names it, but the matrix has no such cell")
    for cell, state in release.cells.items():
        if state in GOOD or cell in release.partial:
            continue
        if state is None:
            yield Reason(kind=Kind.MISSING_CELL, about=cell, what="it was never built")
        else:
            yield Reason(kind=Kind.FAILED_CELL, about=cell, what=f"its last run left it {state.value!r}")


def _packages_there(release: Release) -> Iterator[Reason]:
    """What a finished cell renders now must be what it made: the recipe may have changed since."""
    made = {candidate.artifact.path.name for candidate in release.candidates}
    for cell, names in release.expected.items():
        if release.cells.get(cell) in GOOD and cell not in release.partial:
            for name in sorted(set(names) - made):
                what = f"the cell renders it, but its last run made none (did the recipe change since?): {name}"
                yield Reason(kind=Kind.MISSING_PACKAGE, about=cell, what=what)


def _candidate(candidate: Candidate, release: Release) -> list[Reason]:
    name = candidate.artifact.path.name
    found = []

    def refuse(kind: Kind, what: str) -> None:
        found.append(Reason(kind=kind, about=name, what=what))

    if not any(fnmatch.fnmatchcase(candidate.artifact.name, glob) for glob in release.allowed):
        refuse(Kind.NOT_ALLOWED, f"this feedstock may publish {', '.join(release.allowed) or 'nothing'} alone")
    if candidate.verdict is not Verdict.PASSED:
        refuse(Kind.UNTESTED, "no test of it has run" if candidate.verdict is Verdict.NONE else "its tests failed")
    path = f"{candidate.artifact.subdir}/{name}"
    if path in release.held and release.held[path] != candidate.artifact.sha256:
        there = release.held[path]
        refuse(Kind.HELD, f"the channel has it with the hash {there[:16]}..." if there else "it was withdrawn there")
    for kind, what in _of_contents(candidate):
        refuse(kind, what)
    return found


def _of_contents(candidate: Candidate) -> Iterator[tuple[Kind, str]]:
    contents = candidate.contents
    if contents is None:
        yield Kind.BROKEN, candidate.broken
        return
    if contents.sha256 != candidate.artifact.sha256:
        yield Kind.CHANGED, "the file is not the one that was tested: its hash is another"
    if contents.about.get("extra", {}).get(REHEARSAL):
        yield Kind.REHEARSAL, "what is compiled in it is upstream's, not built from this recipe"
    if not contents.about.get("license"):
        yield Kind.NO_LICENCE, "it names none (about/license)"
    if not contents.licences:
        yield Kind.NO_LICENCE, "it carries no text of one (about/license_file)"
    for file, what in contents.leaks[:10]:
        yield Kind.LEAK, f"{file} holds {what}"
    for member in contents.escapes[:10]:
        yield Kind.ESCAPE, f"{member!r} leads out of the prefix"
    yield from ((Kind.MISMATCH, what) for what in _mismatches(candidate))


def _mismatches(candidate: Candidate) -> Iterator[str]:
    """Tell what a package says otherwise than its cell renders.

    With requirements for building, an engine adds what those export, so then more may stand there than is rendered.
    """
    output, contents = candidate.output, candidate.contents
    assert contents is not None, "its caller has looked"
    if output is None:
        yield "no output of its cell renders it (did the recipe change since?)"
        return
    index = contents.index
    wanted = {"name": output.name, "version": output.version, "build": output.build_string, "subdir": output.subdir}
    for key, value in wanted.items():
        if index.get(key) != value:
            yield f"it says {key} {index.get(key)!r}, the cell renders {value!r}"
    sections = {"depends": output.requirements.run, "constrains": output.requirements.run_constrained}
    for key, specs in sections.items():
        yield from _specs(key, specs, index.get(key, ()), exactly=candidate.needs_nothing_else)


def _specs(key: str, rendered: Iterable[str], told: Iterable[str], *, exactly: bool) -> Iterator[str]:
    given = {_plain(spec) for spec in told}
    wanted = {_plain(spec) for spec in rendered}
    names = {package_name(spec) for spec in given}
    for spec in sorted(wanted - given):
        # A bare name is closed by the engine: it adds the bounds of what it has installed.
        if " " in spec or package_name(spec) not in names:
            yield f"{key} lacks {spec!r}"
    if exactly:
        yield from (f"{key} has {spec!r}, which the cell does not render" for spec in sorted(given - wanted))


def _plain(spec: str) -> str:
    return " ".join(legacy(strict(spec)).split())


def _same_paths(candidates: Iterable[Candidate]) -> Iterator[Reason]:
    """What can lie in one prefix must not install the same file: packages of one cell, of different names."""
    by_cell: dict[str, list[Candidate]] = {}
    for candidate in candidates:
        for cell in candidate.cells:
            by_cell.setdefault(cell, []).append(candidate)
    for cell, named in by_cell.items():
        owners: dict[str, set[str]] = {}
        for each in named:
            for path in each.contents.paths if each.contents else ():
                owners.setdefault(path, set()).add(each.artifact.name)
        shared = [(path, who) for path, who in sorted(owners.items()) if len(who) > 1]
        for path, who in shared[:10]:
            yield Reason(kind=Kind.SAME_PATH, about=cell, what=f"{path} is in {' and '.join(sorted(who))}")
