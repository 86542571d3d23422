"""A recipe's text as one config or platform sees it: version, build numbers and sources."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING, Protocol

from kiln.bump.literals import Literal, replace_literals

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kiln.errors import KilnError


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageView:
    """A package: the recipe's top level, or an output by its position; ``number`` is None where the recipe has none."""

    name: str
    version: str
    number: int | None


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceView:
    """A source: a file by its ``urls``, mirrors of each other; a repository ``git`` at a ``revision``; or a folder.

    ``hashes`` are pairs of a key and its value. ``revision`` is empty for a source without one. ``commit`` is the
    commit that the revision must be, if the recipe says so. ``other`` is a repository of another kind than git's.
    """

    urls: tuple[str, ...] = ()
    hashes: tuple[tuple[str, str], ...] = ()
    git: str = ""
    revision: str = ""
    commit: str = ""
    other: str = ""

    @property
    def identity(self) -> tuple[tuple[str, ...], str, str, str]:
        """Return what is downloaded: it changes with the version, unless the source has a version of its own."""
        return (self.urls, self.git, self.revision, self.other)

    @property
    def display_name(self) -> str:
        """The name in messages; empty for a folder."""
        return next(iter((*self.urls, self.git, self.other)), "")


@dataclass(frozen=True, slots=True, kw_only=True)
class RecipeView:
    """A recipe at one variant: the ``version`` is the top level's, ``packages`` have theirs."""

    version: str
    packages: tuple[PackageView, ...]
    sources: tuple[SourceView, ...]


Views = tuple["RecipeView | None", ...]


def sources_of_views(views: Views) -> Iterator[SourceView]:
    """Yield the sources of a recipe at all variants where it is valid."""
    for view in views:
        yield from view.sources if view is not None else ()


def build_numbers(views: Views) -> tuple[int, ...]:
    """Return the different build numbers of a recipe's packages, in ascending order."""
    packages = (package for view in views if view is not None for package in view.packages)
    return tuple(sorted({package.number for package in packages if package.number is not None}))


class RecipeText(Protocol):
    """The text of a recipe, and how it is read at all of its variants; ``file`` is its name in messages.

    ``fault`` is the first fault of the latest text, at a variant where it is invalid.
    """

    file: str
    text: str
    literals: tuple[Literal, ...]
    fault: KilnError | None

    def views_at_variants(self, text: str) -> Views:
        """Return what another text says at each variant, always in the same order; None where it is invalid there."""

    def version_literals_in_urls(self, version: str) -> tuple[Literal, ...]:
        """Return where the URLs and revisions of the text write a version out."""


def views_with_values(recipe: RecipeText, values: Mapping[Literal, str]) -> Views:
    """Return what a recipe says at each variant with other values in place of some literals."""
    return recipe.views_at_variants(replace_literals(recipe.text, values))


def changed_value_positions(
    before: Views, after: Views, of: Callable[[RecipeView], Sequence[object]]
) -> tuple[frozenset[tuple[int, int]], bool]:
    """Return the positions of values that differ after a change, by variant, and whether any became invalid."""
    positions: set[tuple[int, int]] = set()
    invalid = False
    for index, (old, new) in enumerate(zip(before, after, strict=True)):
        if old is None:
            continue
        if new is None or len(of(new)) != len(of(old)):
            invalid = True
            continue
        pairs = enumerate(zip(of(old), of(new), strict=True))
        positions |= {(index, position) for position, (one, other) in pairs if one != other}
    return frozenset(positions), invalid
