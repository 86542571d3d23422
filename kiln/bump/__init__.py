"""Bump a recipe: another version with the hashes of its sources, or another build number; nothing else changes.

What has to change is found by trying: a literal of the recipe belongs to the version if the recipe, read at its configs
and on all platforms, has another version once the literal is another. So it does not matter through how many variables,
filters and selectors a value goes.
"""

from __future__ import annotations

import codecs
from dataclasses import replace
from typing import TYPE_CHECKING

from kiln import files, limits
from kiln.bump import download, upstream, version_literals
from kiln.bump import plan as planning
from kiln.bump.plan import BumpPlan
from kiln.bump.recipe_views import SourceView, sources_of_views
from kiln.errors import NotWritable
from kiln.recipe_v1.format_detection import is_v1
from kiln.yamltext import read_text

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.bump.download import OnFile
    from kiln.bump.upstream import UpstreamVersion
    from kiln.model.feedstock import Feedstock

__all__ = ["BumpPlan", "prepare_build_bump", "prepare_version_bump", "recipe_and_upstream_versions", "write_recipe"]


def prepare_version_bump(feedstock: Feedstock, target: str, *, env: Mapping[str, str], on_file: OnFile) -> BumpPlan:
    """Return the plan for another version, with the hashes of its sources, which are downloaded for it.

    ``env`` is git's environment; ``on_file`` gets the name of each download, and is a context whose value gets its
    progress.

    Raises:
        KilnError: the recipe cannot be bumped, or a source cannot be downloaded.
    """
    text = _recipe_text(feedstock)
    plan = limits.run_bounded(lambda: planning.plan_version_bump(feedstock, text, target))
    digests, notes = download.hashes_of_downloads(plan.downloads, feedstock.recipe, env=env, on_file=on_file)
    commits, unchanged = upstream.new_pinned_commits(plan, feedstock.recipe, env=env)
    plan = replace(
        plan,
        edits={**plan.edits, **commits},
        digests=digests,
        unchanged=(*plan.unchanged, *unchanged),
        notes=(*plan.notes, *notes),
    )
    limits.run_bounded(lambda: planning.verify_changed_text(feedstock, plan))
    return plan


def prepare_build_bump(feedstock: Feedstock) -> BumpPlan:
    """Return the plan for the next build number.

    Raises:
        KilnError: the recipe is invalid, or a build number is computed.
    """
    text = _recipe_text(feedstock)
    return limits.run_bounded(lambda: planning.plan_build_bump(feedstock, text))


def recipe_and_upstream_versions(
    feedstock: Feedstock, *, env: Mapping[str, str]
) -> tuple[str, tuple[UpstreamVersion, ...]]:
    """Return the recipe's version, and the newest version of each of its sources, spelled as the recipe has it.

    Raises:
        KilnError: the recipe is invalid.
    """
    text = _recipe_text(feedstock)
    current, is_literal, sources = limits.run_bounded(lambda: _version_and_sources(feedstock, text))
    answers = upstream.newest_upstream_versions(sources, current, feedstock.recipe, env=env)
    # A recipe that computes its version has it as upstream spells it.
    return current, tuple(replace(item, spelled=item.newest) if is_literal else item for item in answers)


def _version_and_sources(feedstock: Feedstock, text: str) -> tuple[str, bool, tuple[SourceView, ...]]:
    recipe = planning.recipe_text_for_format(feedstock, text)
    views = recipe.views_at_variants(text)
    sources = dict.fromkeys(sources_of_views(views))
    current = version_literals.recipe_version(recipe, views)
    return current, any(literal.text == current for literal in recipe.literals), tuple(sources)


def write_recipe(feedstock: Feedstock, plan: BumpPlan) -> None:
    """Write the recipe, atomically and with its permissions.

    Raises:
        NotWritable: it is reached through a link, or was changed meanwhile.
    """
    path = files.safe_path_inside(_recipe_path(feedstock), feedstock.root)
    data = path.read_bytes()
    mark = codecs.BOM_UTF8 if data.startswith(codecs.BOM_UTF8) else b""
    if data != mark + plan.text.encode():
        hint = "run the same command again"
        raise NotWritable(f"{plan.file} was changed meanwhile", why="another program wrote it", hint=hint)
    files.write_bytes(path, mark + plan.changed_text.encode(), mode=path.stat().st_mode & 0o777)


def _recipe_path(feedstock: Feedstock) -> Path:
    return feedstock.recipe_v1 if is_v1(feedstock) else feedstock.meta


def _recipe_text(feedstock: Feedstock) -> str:
    path = _recipe_path(feedstock)
    return read_text(path, f"recipe/{path.name}")
