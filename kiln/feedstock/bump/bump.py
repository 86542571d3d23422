"""Bump a recipe: another version with the hashes of its sources, or another build number."""

from __future__ import annotations

import codecs
import contextlib
import re
import tempfile
from dataclasses import replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files, http, limits
from kiln.base.errors import DownloadFailed, KilnError, NotWritable, RecipeFault, UnsafeTemplate
from kiln.base.position import Place
from kiln.base.yaml import read_text
from kiln.feedstock import config_file
from kiln.feedstock.bump import changes, upstream
from kiln.feedstock.bump.changes import BumpPlan, SourceDownload
from kiln.feedstock.bump.literals import (
    Literal,
    SourceView,
    build_numbers,
    changed_value_positions,
    paired_sources,
    place_of_offset,
    replace_literals,
    sources_of_views,
    url_literals,
    version_expression,
    views_with_values,
)
from kiln.feedstock.bump.requirements import requirement_changes, requirements_of_archive
from kiln.feedstock.bump.views import MetaYamlText, RecipeYamlText
from kiln.feedstock.difference import changed_outputs, with_recipe_text
from kiln.recipe import render
from kiln.recipe.feedstock import is_v1

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.feedstock.bump.literals import RecipeText, Views
    from kiln.feedstock.bump.upstream import OnFile, UpstreamVersion, WheelPythons
    from kiln.recipe.feedstock import Feedstock


def recipe_text_for_format(feedstock: Feedstock, text: str) -> RecipeText:
    """Return the text of a feedstock's recipe, in either format."""
    return RecipeYamlText(feedstock, text) if is_v1(feedstock) else MetaYamlText(feedstock, text)


def plan_build_bump(feedstock: Feedstock, text: str) -> BumpPlan:
    """Return the plan for another build number of the same version."""
    recipe = recipe_text_for_format(feedstock, text)
    views = _valid_recipe_views(feedstock, recipe)
    edits = changes.new_build_numbers(recipe, views, None)
    old = ", ".join(changes.recipe_versions(views))
    numbers = (build_numbers(views), build_numbers(views_with_values(recipe, edits)))
    return BumpPlan(file=recipe.file, text=text, old=old, new=old, edits=edits, numbers=numbers)


def plan_version_bump(feedstock: Feedstock, text: str, target: str) -> BumpPlan:
    """Return the plan for another version."""
    changes.require_valid_version(target)
    recipe = recipe_text_for_format(feedstock, text)
    views = _valid_recipe_views(feedstock, recipe)
    old = changes.recipe_version(recipe, views)
    edits = {**changes.new_version_values(recipe, views, target)} if target != old else {}
    after = views_with_values(recipe, edits)
    new = changes.recipe_version(recipe, after)
    note = changes.downgrade_note(old, new)
    edits |= _version_edits_in_urls(recipe, views, after, old, new)
    positions, _ = changed_value_positions(views, after, lambda view: [package.version for package in view.packages])
    edits |= changes.new_build_numbers(recipe, views, positions)
    changes.require_valid_recipe(recipe, views, edits, new)
    downloads, unchanged, pins = changes.source_changes(recipe, views, edits)
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
        former=changes.former_urls(views, views_with_values(recipe, edits), downloads),
        notes=(*([note] if note else ()), *_unchanged_output_notes(after, old)),
    )


def plan_hash_refresh(feedstock: Feedstock, text: str) -> BumpPlan:
    """Return the plan for the hashes of all sources as they are now, at the same version and build number."""
    recipe = recipe_text_for_format(feedstock, text)
    views = _valid_recipe_views(feedstock, recipe)
    old = ", ".join(changes.recipe_versions(views))
    downloads, _, _ = changes.source_changes(recipe, views, {}, unchanged=True)
    if not downloads:
        why = "no source that is downloaded has a hash"
        raise RecipeFault("the recipe has no hash of a source", at=Place(file=recipe.file), why=why)
    numbers = build_numbers(views)
    return BumpPlan(
        file=recipe.file, text=text, old=old, new=old, edits={}, numbers=(numbers, numbers), downloads=downloads
    )


def verify_changed_text(feedstock: Feedstock, plan: BumpPlan) -> None:
    """Check that the changed text says what was planned."""
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
    """Return what the recipe says at each variant."""
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
    version = version_expression(recipe.file)
    raise RecipeFault(
        "no source depends on the version",
        at=place_of_offset(recipe.file, recipe.text, offset),
        why=f"with the new version the sources are still {', '.join(unchanged)}",
        hint=f"write {version} in the URL or the revision, or change them and their hashes by hand",
    )


def prepare_version_bump(feedstock: Feedstock, target: str, *, env: Mapping[str, str], on_file: OnFile) -> BumpPlan:
    """Return the plan for another version, with the hashes of its sources, which are downloaded for it.

    ``env`` is git's environment; ``on_file`` gets the name of each download, and is a context whose value gets its
    progress.

    Raises:
        KilnError: the recipe cannot be bumped, or a source cannot be downloaded.
    """
    text = _recipe_text(feedstock)
    plan = limits.run_bounded(lambda: plan_version_bump(feedstock, text, target))
    renamed: dict[Literal, str] = {}

    def elsewhere(download: SourceDownload) -> SourceDownload | None:
        archives = upstream.source_archives_on_package_index(download.source.urls, plan.new, env)
        spellings = limits.run_bounded(lambda: _respelled_sources(feedstock, plan, download, archives))
        for literal, address, moved in spellings:
            with contextlib.suppress(DownloadFailed), on_file(moved.display_name) as progress:
                http.fetch_and_hash(moved.source.urls[0], feedstock.recipe, algorithms=(), progress=progress)
                renamed[literal] = address
                return moved
        return None

    with tempfile.TemporaryDirectory(prefix="kiln-bump-") as folder:
        new = Path(folder, "new")
        digests, notes = upstream.hashes_of_downloads(
            plan.downloads, feedstock.recipe, env=env, on_file=on_file, elsewhere=elsewhere, keep=new
        )
        requirements, note = _changed_requirements(plan.former, new, feedstock.recipe, env, on_file)
    notes = (*notes, *([note] if note else []))
    plan = replace(plan, edits=_with_addresses(plan.edits, renamed), requirements=requirements)
    commits, unchanged = upstream.new_pinned_commits(plan, feedstock.recipe, env=env)
    plan = replace(
        plan,
        edits={**plan.edits, **commits},
        digests=digests,
        unchanged=(*plan.unchanged, *unchanged),
        notes=(*plan.notes, *notes),
    )
    limits.run_bounded(lambda: verify_changed_text(feedstock, plan))
    return _with_touched_outputs(feedstock, plan)


def _changed_requirements(
    urls: tuple[str, ...], new: Path, folder: Path, env: Mapping[str, str], on_file: OnFile
) -> tuple[tuple[str, ...], str]:
    """Return what the new archive of a source requires otherwise than the old one, and a note where that is unknown."""
    old = new.with_name("old")
    try:
        if not (urls and new.is_file() and limits.run_bounded(lambda: requirements_of_archive(new))):
            return (), ""
        former = SourceDownload(source=SourceView(urls=urls))
        upstream.hashes_of_downloads((former,), folder, env=env, on_file=on_file, keep=old)
        return limits.run_bounded(lambda: requirement_changes(old, new)), ""
    except (DownloadFailed, UnsafeTemplate) as error:  # the second for one that takes too much time or memory to read
        why = f"{error.what}: {error.why}" if error.why else error.what
        return (), f"what upstream requires is not compared with the old version ({why})"


def _with_touched_outputs(feedstock: Feedstock, plan: BumpPlan) -> BumpPlan:
    """Return a plan with the outputs that it touches; without, where the recipe renders only after a rerender."""
    with contextlib.suppress(KilnError), with_recipe_text(feedstock, plan.changed_text) as after:
        return replace(plan, touched=changed_outputs(feedstock, after))
    return plan


def _respelled_sources(
    feedstock: Feedstock, plan: BumpPlan, download: SourceDownload, archives: tuple[str, ...]
) -> tuple[tuple[Literal, str, SourceDownload], ...]:
    """Return the other spellings of a download's address: where it is written, the new text, and the download then."""
    recipe = recipe_text_for_format(feedstock, plan.text)
    before = views_with_values(recipe, plan.edits)
    found: dict[str, tuple[Literal, str, SourceDownload]] = {}

    def moved_urls(literal: Literal, address: str) -> tuple[str, ...]:
        after = views_with_values(recipe, _with_addresses(plan.edits, {literal: address}))
        for old, new in paired_sources(before, after):
            if old.identity == download.source.identity != new.identity:
                return tuple(url for url in new.urls if url not in old.urls)
        return ()

    for literal in url_literals(plan.text):
        address = replace_literals(plan.text, _inside(plan.edits, literal))
        address = address[literal.start : len(address) - len(plan.text) + literal.end]
        if moved_urls(literal, f"{address}x"):
            for spelled in upstream.respelled_addresses(address, archives, plan.new):
                if spelled != address and (urls := moved_urls(literal, spelled)):
                    moved = replace(download, source=replace(download.source, urls=urls))
                    found.setdefault(urls[0], (literal, spelled, moved))
    return tuple(found.values())


def _inside(edits: Mapping[Literal, str], outer: Literal) -> dict[Literal, str]:
    return {literal: value for literal, value in edits.items() if outer.start <= literal.start < outer.end}


def _with_addresses(edits: Mapping[Literal, str], addresses: Mapping[Literal, str]) -> dict[Literal, str]:
    """Return edits with whole addresses in the place of edits inside them."""
    replaced = [inner for address in addresses for inner in _inside(edits, address)]
    return {**{literal: value for literal, value in edits.items() if literal not in replaced}, **addresses}


def prepare_build_bump(feedstock: Feedstock) -> BumpPlan:
    """Return the plan for the next build number.

    Raises:
        KilnError: the recipe is invalid, or a build number is computed.
    """
    text = _recipe_text(feedstock)
    return _with_touched_outputs(feedstock, limits.run_bounded(lambda: plan_build_bump(feedstock, text)))


def prepare_hash_refresh(feedstock: Feedstock, *, env: Mapping[str, str], on_file: OnFile) -> BumpPlan:
    """Return the plan for the hashes of all sources as they are now.

    ``env`` and ``on_file`` are as for `prepare_version_bump`.

    Raises:
        KilnError: the recipe is invalid, or a source cannot be downloaded.
    """
    text = _recipe_text(feedstock)
    plan = limits.run_bounded(lambda: plan_hash_refresh(feedstock, text))
    digests, notes = upstream.hashes_of_downloads(plan.downloads, feedstock.recipe, env=env, on_file=on_file)
    plan = replace(plan, digests=digests, notes=notes)
    limits.run_bounded(lambda: verify_changed_text(feedstock, plan))
    return _with_touched_outputs(feedstock, plan)


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


def pythons_missing_in_matrix(feedstock: Feedstock, *, env: Mapping[str, str]) -> WheelPythons | None:
    """Return the Pythons newer than the matrix's that an output has wheels for on pip's index; None without any."""
    configs = config_file.read_configs(feedstock, feedstock.config_names)
    values = {value for config in configs for value in config.variant.get("python", ())}
    minors = {int(match[1]) for value in values if (match := re.match(r"3\.(\d{1,2})", value))}
    if not minors:
        return None
    outputs = limits.run_bounded(lambda: render.render(feedstock, configs[0]).outputs)
    projects = [output.name for output in outputs if "python" in output.used]
    found = upstream.pythons_with_wheels(projects, env=env)
    if found is None:
        return None
    newer = tuple(python for python in found.pythons if int(python.partition(".")[2]) > max(minors))
    return replace(found, pythons=newer) if newer else None


def _version_and_sources(feedstock: Feedstock, text: str) -> tuple[str, bool, tuple[SourceView, ...]]:
    recipe = recipe_text_for_format(feedstock, text)
    views = recipe.views_at_variants(text)
    sources = dict.fromkeys(sources_of_views(views))
    current = changes.recipe_version(recipe, views)
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
