"""The plan of a bump: which literals of the recipe change, and what is downloaded for it."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.bump import build_number_literals, source_hash_literals, version_literals
from kiln.bump.literals import Literal, place_of_offset, replace_literals
from kiln.bump.meta_yaml_at_variants import MetaYamlText
from kiln.bump.recipe_views import build_numbers, changed_value_positions, sources_of_views, views_with_values
from kiln.bump.recipe_yaml_at_variants import RecipeYamlText
from kiln.errors import RecipeFault
from kiln.model.source_position import Place
from kiln.recipe_v1.format_detection import is_v1

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.bump.recipe_views import RecipeText, Views
    from kiln.bump.source_hash_literals import SourceDownload
    from kiln.model.feedstock import Feedstock


@dataclass(frozen=True, slots=True, kw_only=True)
class BumpPlan:
    """The edits of a recipe's text; the hashes follow from the ``downloads``.

    ``old`` and ``new`` are the versions, and ``numbers`` the build numbers of all packages, before and after.
    ``unchanged`` names the sources that do not depend on the version; ``pins`` are those at a commit.
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

    @property
    def changed_text(self) -> str:
        """The recipe's text after the bump."""
        return replace_literals(self.text, {**self.edits, **self.digests})


def recipe_text_for_format(feedstock: Feedstock, text: str) -> RecipeText:
    """Return the text of a feedstock's recipe, in either format."""
    return RecipeYamlText(feedstock, text) if is_v1(feedstock) else MetaYamlText(feedstock, text)


def plan_build_bump(feedstock: Feedstock, text: str) -> BumpPlan:
    """Return the plan for another build number of the same version.

    Raises:
        KilnError: the recipe is invalid, or a build number is computed.
    """
    recipe = recipe_text_for_format(feedstock, text)
    views = _valid_recipe_views(feedstock, recipe)
    edits = build_number_literals.new_build_numbers(recipe, views, None)
    old = version_literals.recipe_version(recipe, views)
    numbers = (build_numbers(views), build_numbers(views_with_values(recipe, edits)))
    return BumpPlan(file=recipe.file, text=text, old=old, new=old, edits=edits, numbers=numbers)


def plan_version_bump(feedstock: Feedstock, text: str, target: str) -> BumpPlan:
    """Return the plan for another version.

    Raises:
        UsageError: the version is invalid, or the recipe's.
        KilnError: the recipe is invalid, or a value that has to change is not written out in it.
    """
    version_literals.require_valid_version(target)
    recipe = recipe_text_for_format(feedstock, text)
    views = _valid_recipe_views(feedstock, recipe)
    old = version_literals.recipe_version(recipe, views)
    edits = {**version_literals.new_version_values(recipe, views, target)} if target != old else {}
    after = views_with_values(recipe, edits)
    new = version_literals.recipe_version(recipe, after)
    note = version_literals.downgrade_note(old, new)
    edits |= _version_edits_in_urls(recipe, views, after, old, new)
    positions, _ = changed_value_positions(views, after, lambda view: [package.version for package in view.packages])
    edits |= build_number_literals.new_build_numbers(recipe, views, positions)
    version_literals.require_valid_recipe(recipe, views, edits, new)
    downloads, unchanged, pins = source_hash_literals.source_changes(recipe, views, edits)
    if unchanged and not (downloads or pins):
        _refuse_unchanged_sources(recipe, unchanged)
    return BumpPlan(
        file=recipe.file,
        text=text,
        old=old,
        new=new,
        edits=edits,
        numbers=(build_numbers(views), build_numbers(views_with_values(recipe, edits))),
        downloads=downloads,
        unchanged=unchanged,
        pins=pins,
        notes=(*([note] if note else ()), *_unchanged_output_notes(after, old)),
    )


def verify_changed_text(feedstock: Feedstock, plan: BumpPlan) -> None:
    """Check that the changed text says what was planned.

    Raises:
        RecipeFault: a version, a build number or a hash is another one.
    """
    recipe = recipe_text_for_format(feedstock, plan.text)
    before = views_with_values(recipe, plan.edits)
    after = recipe.views_at_variants(plan.changed_text)
    expected = {value.lower() for value in plan.digests.values()}
    for old, new in zip(before, after, strict=True):
        if old is None:
            continue
        same = new is not None and (old.version, old.packages) == (new.version, new.packages)
        if new is None or not same or [one.identity for one in old.sources] != [one.identity for one in new.sources]:
            raise RecipeFault("the new hashes change more than the hashes", at=Place(file=plan.file))
        hashes = {value.lower() for source in new.sources for _, value in source.hashes}
        expected -= hashes | {source.commit for source in new.sources}
    if expected:
        raise RecipeFault("a hash has no effect", at=Place(file=plan.file), why=", ".join(sorted(expected)))


def _valid_recipe_views(feedstock: Feedstock, recipe: RecipeText) -> Views:
    """Return what the recipe says at each variant.

    Raises:
        KilnError: it is valid at none.
    """
    views = recipe.views_at_variants(recipe.text)
    if any(views):
        return views
    fault = recipe.fault or RecipeFault(
        "the recipe is valid at no config and on no platform", at=Place(file=recipe.file)
    )
    if feedstock.config_names:
        raise fault
    hint = "kiln rerender first: keys of variants have their values in .ci_support, which has no configs"
    raise type(fault)(fault.what, at=fault.at, why=fault.why, hint=hint)


def _version_edits_in_urls(recipe: RecipeText, before: Views, after: Views, old: str, new: str) -> dict[Literal, str]:
    """Return the places where sources that do not change with the version write it out."""
    fixed = {source.identity for source in sources_of_views(before)}
    fixed &= {source.identity for source in sources_of_views(after)}
    edits: dict[Literal, str] = {}
    for literal in recipe.version_literals_in_urls(old) if any(old in str(identity) for identity in fixed) else ():
        trial = views_with_values(recipe, {literal: new})
        positions, invalid = changed_value_positions(
            before, trial, lambda view: [source.identity for source in view.sources]
        )
        if positions and not invalid:
            edits[literal] = new
    return edits


def _unchanged_output_notes(views: Views, old: str) -> list[str]:
    """Return a note for each output that still has the old version."""
    names = {package.name for view in views if view is not None for package in view.packages if package.version == old}
    return [f"the output {name} keeps the version {old}, which it writes out" for name in sorted(names)]


def _refuse_unchanged_sources(recipe: RecipeText, unchanged: tuple[str, ...]) -> None:
    offset = recipe.text.find("\nsource:") + 1
    raise RecipeFault(
        "no source depends on the version",
        at=place_of_offset(recipe.file, recipe.text, offset),
        why=f"with the new version the sources are still {', '.join(unchanged)}",
        hint="write {{ version }} in the URL or the revision, or change them and their hashes by hand",
    )
