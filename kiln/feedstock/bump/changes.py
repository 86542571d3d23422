"""The literals that a version, build numbers and hashes come from, and their values after a bump."""

from __future__ import annotations

import re
from collections import defaultdict
from dataclasses import dataclass, field, replace
from typing import TYPE_CHECKING

from kiln.base import patterns
from kiln.base.errors import RecipeFault, UsageError, raise_all
from kiln.base.patterns import lazy_pattern
from kiln.base.position import Place
from kiln.conda.specs import Version
from kiln.feedstock.bump.literals import (
    HASHES,
    Literal,
    RecipeText,
    SourceView,
    Views,
    changed_value_positions,
    hash_values,
    line_numbers_text,
    paired_sources,
    place_of_offset,
    placeholder_hashes,
    replace_literals,
    sources_of_views,
    views_with_values,
)

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence


_OFFSET = 100  # build numbers of variants differ by hundreds, so that one of them is preferred

Position = tuple[int, int]  # of a variant, and of a package in it


def new_build_numbers(recipe: RecipeText, views: Views, positions: frozenset[Position] | None) -> Mapping[Literal, str]:
    """Return the literals of build numbers with their new values.

    The packages at some positions begin again at 0, offsets of variants aside; without positions, all increase by 1.
    """
    numbers = {
        (index, position): package.number
        for index, view in enumerate(views)
        if view is not None
        for position, package in enumerate(view.packages)
    }
    if positions is None:
        goals = {at for at, number in numbers.items() if number is not None} or set(numbers)
    else:
        goals = {at for at in positions if numbers.get(at)}
    literals = _build_number_literals(recipe, views)
    bases: dict[Literal, None] = {}
    of_package: dict[int, set[Literal]] = defaultdict(set)
    for at in sorted(goals):
        literal = _base_build_number_literal(
            recipe, [literal for literal, effects in literals.items() if at in effects], numbers[at]
        )
        if literal is not None:
            bases[literal] = None
            of_package[at[1]].add(literal)
    if positions is None:
        return {literal: str(int(literal.text) + 1) for literal in bases}
    for group in of_package.values():
        _require_offsets_of_hundreds(recipe, group)
    apart = {literal for group in of_package.values() if len(group) > 1 for literal in group}
    return {literal: str(int(literal.text) // _OFFSET * _OFFSET if literal in apart else 0) for literal in bases}


def _build_number_literals(recipe: RecipeText, views: Views) -> dict[Literal, frozenset[Position]]:
    """Return the literals of which a build number is the value or the sum, with the packages that each is for."""
    candidates = [literal for literal in recipe.literals if literal.alone and literal.text.isdecimal()]
    literals = {}
    for literal in candidates:
        after = views_with_values(recipe, {literal: str(int(literal.text) + 1)})
        effects, invalid = changed_value_positions(
            views, after, lambda view: [package.number for package in view.packages]
        )
        others, _ = changed_value_positions(
            views, after, lambda view: (view.version, *(source.identity for source in view.sources))
        )
        if effects and not invalid and not others and all(_is_raised_by_one(views, after, at) for at in effects):
            literals[literal] = effects
    return literals


def _is_raised_by_one(before: Views, after: Views, at: Position) -> bool:
    old, new = (views[at[0]] for views in (before, after))
    numbers = [view.packages[at[1]].number for view in (old, new) if view is not None]
    return len(numbers) == 2 and None not in numbers and numbers[1] == (numbers[0] or 0) + 1


def _base_build_number_literal(recipe: RecipeText, literals: list[Literal], number: int | None) -> Literal | None:
    """Return the literal that is the base of a build number: not one of the offsets that are added to it."""
    if len(literals) > 1:
        literals = [item for item in literals if int(item.text) % _OFFSET or item.text == "0"] or literals
    if len(literals) == 1:
        return literals[0]
    if literals:
        why = f"{line_numbers_text(recipe.text, literals)} are added up to {number}"
        at = place_of_offset(recipe.file, recipe.text, literals[0].start)
        raise RecipeFault("the build number has several parts", at=at, why=why, hint="change it by hand")
    index = recipe.text.find("number:")
    at = place_of_offset(recipe.file, recipe.text, index) if index >= 0 else Place(file=recipe.file)
    if number is None:
        raise RecipeFault("the recipe has no build number", at=at, hint="add 'number: 0' to its build section")
    why = f"it is {number}, computed from no number that stands alone in a line"
    raise RecipeFault(
        "the build number is computed", at=at, why=why, hint="write it as one number, or change it by hand"
    )


def _require_offsets_of_hundreds(recipe: RecipeText, literals: set[Literal]) -> None:
    """Refuse numbers of one package that differ by other offsets than hundreds."""
    if len({int(literal.text) % _OFFSET for literal in literals}) > 1:
        first = min(literals, key=lambda literal: literal.start)
        numbers = ", ".join(sorted({literal.text for literal in literals}, key=int))
        why = f"{line_numbers_text(recipe.text, literals)} have {numbers} for variants of one package"
        hint = "write one number, and add an offset of hundreds to it for some variants"
        at = place_of_offset(recipe.file, recipe.text, first.start)
        raise RecipeFault("the build numbers differ, and it is unclear which are offsets", at=at, why=why, hint=hint)


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
    recipe: RecipeText, before: Views, edits: Mapping[Literal, str], *, unchanged: bool = False
) -> tuple[tuple[SourceDownload, ...], tuple[str, ...], tuple[SourceDownload, ...]]:
    """Return the effect of a version's edits on the sources: the downloads, the names of unchanged sources, the pins.

    Pins are unchanged sources at a commit: the tags of their repositories show whether that is one of the version.
    With ``unchanged``, the sources that do not change are downloads, too, if they have a hash.
    """
    marks = placeholder_hashes(_hash_literals(recipe, before))
    by_mark = {mark: literal for literal, mark in marks.items()}
    old = views_with_values(recipe, marks)
    new = views_with_values(recipe, {**edits, **marks})
    _require_used_hashes(recipe, marks, (*old, *new))
    former = set() if unchanged else {(source.identity, source.hashes) for source in sources_of_views(old)}
    downloads: dict[SourceView, dict[tuple[Literal, str], None]] = defaultdict(dict)
    same: dict[str, None] = {}
    pins: dict[SourceDownload, None] = {}
    positions = {at for at, source in _sources_by_position(new) if source.hashes}
    for at, source in _sources_by_position(new):
        # A folder; or a source without the hash that it has elsewhere, which conda-build would not verify: no variant
        # that is built has the values of this one.
        if not source.display_name or (source.urls and not source.hashes and at in positions):
            continue
        if (source.identity, source.hashes) in former:
            pin = _commit_pin(recipe, source)
            same.update({source.display_name: None} if pin is None else {})
            pins.update({pin: None} if pin is not None else {})
        elif source.hashes or source.commit or not unchanged:
            hashes = _hash_literals_of_source(recipe, source, by_mark)
            downloads[replace(source, hashes=(), commit="")].update(dict.fromkeys(hashes))
    files = tuple(SourceDownload(source=source, hashes=tuple(hashes)) for source, hashes in downloads.items())
    return files, tuple(same), tuple(pins)


def former_urls(before: Views, after: Views, downloads: Sequence[SourceDownload]) -> tuple[str, ...]:
    """Return the addresses that the first file of the downloads has before a bump; empty without one."""
    first = next((download.source.identity for download in downloads if download.source.urls), None)
    return next((old.urls for old, new in paired_sources(before, after) if new.identity == first), ())


def _sources_by_position(views: Views) -> Iterator[tuple[tuple[int, int], SourceView]]:
    """Yield the sources of all variants, each with the number of sources there, and its place among them."""
    for view in views:
        for at, source in enumerate(view.sources if view is not None else ()):
            yield (len(view.sources if view is not None else ()), at), source


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
    values = {value for source in sources_of_views(views) for value in hash_values(source)}
    return [literal for literal in recipe.literals if literal.key in HASHES or literal.text in values]


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
    """Refuse hashes that come out nowhere: they would stay those of the old version."""
    values = {value for source in sources_of_views(views) for value in hash_values(source)}
    raise_all([_unused_hash_error(recipe, literal) for literal, mark in marks.items() if mark not in values])


def _unused_hash_error(recipe: RecipeText, literal: Literal) -> RecipeFault:
    what = f"the source of the hash {literal.text[:16]}... is not found"
    line = recipe.text[: recipe.text.find("\n", literal.end) + 1 or None].splitlines()[-1]
    why = "no config, no platform and no value in the recipe leads to its line"
    if match := re.search(r"#\s*\[(.+?)\]", line):
        why = f"no config, no platform and no value in the recipe makes its selector [{match[1]}] hold"
    hint = "correct the condition; or let a config meet it, by values in conda_build_config.yaml and kiln rerender"
    return RecipeFault(what, at=place_of_offset(recipe.file, recipe.text, literal.start), why=why, hint=hint)


_ARGUMENT = lazy_pattern(r"[0-9A-Za-z][0-9A-Za-z._+!-]*")
_MARK = "kilnmark{}x"
_TRIED = 60  # literals


def require_valid_version(text: str) -> None:
    """Refuse a text that cannot be a version.

    Raises:
        UsageError: the version is invalid; a hyphen is allowed, which recipes replace.
    """
    if not _is_valid_version(text):
        why = "a version begins with a digit, and has letters, digits, '.', '_', '+', '!' and '-'"
        bare = text.lstrip("vV")
        hint = f"kiln bump {bare}" if _is_valid_version(bare) else "kiln bump --check shows upstream's newest version"
        raise UsageError(f"invalid version {text!r}", why=why, hint=hint)


def _is_valid_version(text: str) -> bool:
    return bool(_ARGUMENT.fullmatch(text)) and text[0].isdigit() and len(text) <= patterns.MAX_LENGTH


def recipe_versions(views: Views) -> list[str]:
    """Return the versions of a recipe, of which it may have several: by platform, or by a key of its variants."""
    return sorted({view.version for view in views if view is not None})


def recipe_version(recipe: RecipeText, views: Views) -> str:
    """Return the one version of a recipe."""
    versions = recipe_versions(views)
    if not versions:
        raise recipe.fault or RecipeFault(
            "the recipe is valid at no config and on no platform", at=_place_of_literals(recipe)
        )
    if len(versions) > 1:
        why = f"at its configs and platforms they are {', '.join(versions)}"
        lines = [literal for literal in recipe.literals if literal.text in versions]
        elsewhere = "change it where it is written, such as in conda_build_config.yaml"
        hint = f"change {line_numbers_text(recipe.text, lines)} by hand" if lines else elsewhere
        raise RecipeFault("the recipe has several versions", at=_place_of_literals(recipe, lines), why=why, hint=hint)
    if not versions[0]:
        raise RecipeFault("the recipe has no version", at=_place_of_literals(recipe))
    return versions[0]


def new_version_values(recipe: RecipeText, views: Views, version: str) -> Mapping[Literal, str]:
    """Return the literals that make up the version, with their values for another one."""
    old = recipe_version(recipe, views)
    same = [literal for literal in recipe.literals if literal.text == old]
    values = {literal: version for literal in same if _changes_version(recipe, views, {literal: version})}
    if not (values and _rendered_version(recipe, values) == version):
        values = (
            _value_of_single_literal(recipe, views, old, version)
            or _values_of_version_parts(recipe, version)
            or _value_of_single_literal(recipe, views, old, version, ends=True)
        )
    if not values:
        require_valid_recipe(recipe, views, dict.fromkeys(same, version), version)
        raise _computed_version_error(recipe, old)
    return values


def require_valid_recipe(recipe: RecipeText, before: Views, values: Mapping[Literal, str], version: str) -> None:
    """Refuse values with which the recipe is invalid at a variant where it was valid."""
    after = views_with_values(recipe, values)
    fault = recipe.fault
    if fault is not None and any(old is not None and new is None for old, new in zip(before, after, strict=True)):
        raise type(fault)(f"with version {version}, {fault.what}", at=fault.at, why=fault.why, hint=fault.hint)


def _value_of_single_literal(
    recipe: RecipeText, views: Views, old: str, version: str, *, ends: bool = False
) -> dict[Literal, str]:
    """Return the one literal that the version comes from in another spelling, such as ``2.30.4-1`` for ``2.30.4.1``.

    With ``ends`` what the recipe puts before or after it may stay: ``14.2.4`` for ``14.2.4.post0``.
    """
    parts = [
        literal for literal in _version_part_candidates(recipe) if _changes_version(recipe, views, {literal: version})
    ]
    if len(parts) != 1:
        return {}
    (part,) = parts
    before, found, after = old.partition(part.text)
    for value in dict.fromkeys((_with_separators_of(part.text, old, version), version)):
        rendered = _rendered_version(recipe, {part: value})
        if rendered is None:
            continue
        if rendered == f"{before}{value}{after}" if ends and found else _is_same_version(rendered, version):
            return {part: value}
    return {}


def _with_separators_of(written: str, rendered: str, version: str) -> str:
    """Return a version with the separators that a recipe writes, and replaces where it renders them."""
    signs: dict[str, set[str]] = defaultdict(set)
    for sign, shown in zip(*(re.findall(r"[._-]", text) for text in (written, rendered)), strict=False):
        signs[shown].add(sign)
    if not _is_same_version(written, rendered):
        return version
    return "".join(min(found) if len(found := signs.get(char, {char})) == 1 else char for char in version)


def _values_of_version_parts(recipe: RecipeText, version: str) -> dict[Literal, str]:
    """Return literals such as a major and a minor version that the version is put together from.

    A part has as many numbers as now: of ``1.5.0`` and ``3``, ``1.6.1.5`` becomes ``1.6.1`` and ``5``.
    """
    marks = {literal: _MARK.format(index) for index, literal in enumerate(_version_part_candidates(recipe))}
    parts = {
        literal: mark for literal, mark in marks.items() if mark in (_rendered_version(recipe, {literal: mark}) or "")
    }
    rendered = _rendered_version(recipe, parts) if parts else None
    if rendered is None:
        return {}
    pattern, order = "", []
    for index, piece in enumerate(re.split(r"(kilnmark\d+x)", rendered)):
        literal = next((literal for literal, mark in parts.items() if mark == piece), None)
        if index % 2 and literal is not None:
            more = len(re.findall(r"[._-]", literal.text))
            pattern += rf"([0-9A-Za-z]+(?:[._-][0-9A-Za-z]+){{{more}}})"
            order.append(literal)
        else:
            pattern += re.escape(piece)
    match = re.fullmatch(pattern, version)
    if match is None or len(set(order)) != len(order):
        return {}
    values = dict(zip(order, match.groups(), strict=True))
    values = {literal: value for literal, value in values.items() if value != literal.text}
    return values if _rendered_version(recipe, values) == version else {}


def _version_part_candidates(recipe: RecipeText) -> Sequence[Literal]:
    """Return the literals that may be a part of a version: those with a digit, except hashes."""
    return [
        literal
        for literal in recipe.literals
        if any(char.isdigit() for char in literal.text) and len(literal.text) < 32 and literal.key != "number"
    ][:_TRIED]


def _changes_version(recipe: RecipeText, views: Views, values: Mapping[Literal, str]) -> bool:
    after = views_with_values(recipe, values)
    positions, _ = changed_value_positions(views, after, lambda view: (view.version,))
    return bool(positions)


def _rendered_version(recipe: RecipeText, values: Mapping[Literal, str]) -> str | None:
    """Return the version of a changed text; None where it is not the same at all variants."""
    versions = {view.version for view in views_with_values(recipe, values) if view is not None}
    return versions.pop() if len(versions) == 1 else None


def _is_same_version(one: str, other: str) -> bool:
    """Return whether two versions differ in separators alone, which recipes replace."""
    return re.split(r"[._-]", one) == re.split(r"[._-]", other)


def downgrade_note(old: str, new: str) -> str:
    """Return a note if a version is not newer than the recipe's."""
    if fault := patterns.invalid_name_reason(new, "version"):
        raise UsageError(f"invalid version {new!r}", why=fault)
    try:
        older = Version(new) < Version(old)
    except ValueError as error:
        raise UsageError(f"invalid version {new!r}", why=str(error)) from error
    if new == old:
        hint = "kiln bump --hashes renews its hashes, and --build increments the build number"
        raise UsageError(f"the recipe has version {new}", hint=hint)
    return f"{new} is older than {old}" if older else ""


def _computed_version_error(recipe: RecipeText, old: str) -> RecipeFault:
    match = re.search(r"(?<![\w.-])version['\"]?[ \t]*[:=]", recipe.text)
    at = place_of_offset(recipe.file, recipe.text, match.start()) if match else _place_of_literals(recipe)
    why = f"it is {old}, but no value of a line, and no values put together by separators, give another version alone"
    return RecipeFault("the version is computed", at=at, why=why, hint="write it as one value, or change it by hand")


def _place_of_literals(recipe: RecipeText, literals: Sequence[Literal] = ()) -> Place:
    return place_of_offset(recipe.file, recipe.text, literals[0].start) if literals else Place(file=recipe.file)


@dataclass(frozen=True, slots=True, kw_only=True)
class BumpPlan:
    """The edits of a recipe's text; the hashes follow from the ``downloads``.

    ``old`` and ``new`` are the versions, and ``numbers`` the build numbers of all packages, before and after.
    ``unchanged`` names the sources that do not depend on the version; ``pins`` are those at a commit. ``former`` are
    the addresses at the old version of the first download. ``requirements`` are lines about what upstream asks for
    otherwise, ``touched`` the names of the outputs that change, by config.
    """

    file: str
    text: str
    old: str
    new: str
    edits: Mapping[Literal, str]
    numbers: tuple[tuple[int, ...], tuple[int, ...]]
    downloads: tuple[SourceDownload, ...] = ()
    unchanged: tuple[str, ...] = ()
    pins: tuple[SourceDownload, ...] = ()
    notes: tuple[str, ...] = ()
    digests: Mapping[Literal, str] = field(default_factory=dict)
    former: tuple[str, ...] = ()
    requirements: tuple[str, ...] = ()
    touched: Mapping[str, tuple[str, ...]] = field(default_factory=dict)

    @property
    def changed_text(self) -> str:
        """The recipe's text after the bump."""
        return replace_literals(self.text, {**self.edits, **self.digests})
