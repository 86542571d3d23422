"""The hashes in a recipe and what they are of: found by writing other hashes in their places.

A hash may stand at its source, under a selector, in a variable or in a table of platforms. So each hash that is written
out is replaced by a mark, and where the mark comes out, there belongs the hash.
"""

from __future__ import annotations

from collections import defaultdict
from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kiln.bump.literals import HASHES, Literal, place_of_offset
from kiln.bump.recipe_views import RecipeText, SourceView, Views, sources_of_views, views_with_values
from kiln.errors import RecipeFault, raise_all
from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping


COMMIT = lazy_pattern(r"[0-9a-f]{7,40}")


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceDownload:
    """A source to download, by the first of its URLs that works, or to look up by its revision in its repository.

    ``hashes`` are the literals that hold its hashes, with their algorithms; the algorithm ``commit`` is the commit of a
    revision. Only repositories of git are looked up, not Mercurial's or Subversion's.
    """

    source: SourceView
    hashes: tuple[tuple[Literal, str], ...] = ()

    @property
    def display_name(self) -> str:
        """The name in messages."""
        repository = self.source.git or self.source.other
        return f"{repository} at {self.source.revision}" if repository else self.source.urls[0]


def source_changes(
    recipe: RecipeText, before: Views, edits: Mapping[Literal, str]
) -> tuple[tuple[SourceDownload, ...], tuple[str, ...], tuple[SourceDownload, ...]]:
    """Return the effect of a version's edits on the sources: the downloads, the names of unchanged sources, the pins.

    Pins are unchanged sources at a commit: the tags of their repositories show whether that is one of the version.

    Raises:
        RecipeFault: a hash is not written out, or belongs to no source at any config or platform.
    """
    marks = {literal: _placeholder_hash(index, literal) for index, literal in enumerate(_hash_literals(recipe, before))}
    by_mark = {mark: literal for literal, mark in marks.items()}
    old = views_with_values(recipe, marks)
    new = views_with_values(recipe, {**edits, **marks})
    _require_used_hashes(recipe, marks, (*old, *new))
    former = {(source.identity, source.hashes) for source in sources_of_views(old)}
    downloads: dict[SourceView, dict[tuple[Literal, str], None]] = defaultdict(dict)
    unchanged: dict[str, None] = {}
    pins: dict[SourceDownload, None] = {}
    for source in sources_of_views(new):
        if not source.display_name:
            continue  # a folder
        if (source.identity, source.hashes) in former:
            pin = _commit_pin(recipe, source)
            unchanged.update({source.display_name: None} if pin is None else {})
            pins.update({pin: None} if pin is not None else {})
        else:
            hashes = _hash_literals_of_source(recipe, source, by_mark)
            downloads[replace(source, hashes=(), commit="")].update(dict.fromkeys(hashes))
    files = tuple(SourceDownload(source=source, hashes=tuple(hashes)) for source, hashes in downloads.items())
    return files, tuple(unchanged), tuple(pins)


def _commit_pin(recipe: RecipeText, source: SourceView) -> SourceDownload | None:
    """Return a source at a commit that the recipe writes out; None for others."""
    literals = [literal for literal in recipe.literals if literal.alone and literal.text == source.revision]
    if not (source.git and literals and COMMIT.fullmatch(source.revision)):
        return None
    return SourceDownload(
        source=SourceView(git=source.git, revision=source.revision),
        hashes=tuple((literal, "commit") for literal in literals),
    )


def _hash_literals(recipe: RecipeText, views: Views) -> list[Literal]:
    """Return the literals that are hashes: by their keys, or as values that are the hash of a source."""
    values = {value for source in sources_of_views(views) for value in _hash_values(source)}
    return [literal for literal in recipe.literals if literal.key in HASHES or literal.text in values]


def _hash_values(source: SourceView) -> Iterator[str]:
    yield from (value for _, value in source.hashes)
    if source.commit:
        yield source.commit


def _placeholder_hash(index: int, literal: Literal) -> str:
    """Return a hash of the same length that no file has."""
    length = len(literal.text) if literal.text.isalnum() and len(literal.text) in HASHES.values() else 64
    return f"{index:x}".rjust(length, "a")


def _hash_literals_of_source(
    recipe: RecipeText, source: SourceView, by_mark: Mapping[str, Literal]
) -> Iterator[tuple[Literal, str]]:
    hashes = source.hashes if source.urls else [("commit", source.commit)] if source.commit else []
    for algorithm, value in hashes:
        if value not in by_mark:
            at = place_of_offset(recipe.file, recipe.text, max(recipe.text.find(f"{algorithm}:"), 0))
            what = f"the {algorithm} of {source.display_name} is not written out in the recipe"
            raise RecipeFault(what, at=at, why=f"it is computed: {value[:80]}", hint="change it by hand")
        yield by_mark[value], algorithm


def _require_used_hashes(recipe: RecipeText, marks: Mapping[Literal, str], views: Views) -> None:
    """Refuse hashes that come out nowhere: they would stay those of the old version.

    Raises:
        RecipeFault: there are some.
    """
    values = {value for source in sources_of_views(views) for value in _hash_values(source)}
    faults = [
        RecipeFault(
            f"the hash {literal.text[:16]}... belongs to no source",
            at=place_of_offset(recipe.file, recipe.text, literal.start),
            why="no config and no platform has the selector or condition that leads to it",
            hint="remove it, or make a config that has it: kiln rerender",
        )
        for literal, mark in marks.items()
        if mark not in values
    ]
    raise_all(faults)
