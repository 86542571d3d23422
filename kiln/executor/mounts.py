"""Plan the mounts of a config's containers: which paths of this machine they see, and which they may write.

Nothing else of the feedstock is visible: not ``.git``, the ledger, the channel or other configs' folders. The paths
that a recipe or a variant names are untrusted, so they are resolved first.
"""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kiln.errors import RecipeFault
from kiln.executor.conda_forge_variables_and_paths import (
    CACHE_INSIDE,
    DISTDIR_INSIDE,
    PACKAGE_INSIDE,
    PACKAGE_ROOT,
    RECIPE,
    ROOT,
    container_path,
)
from kiln.job.required_channels_and_network import channel_sources
from kiln.model.container import Mount
from kiln.model.source_position import Place
from kiln.name_rules import existing_subdirs

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.model.feedstock import Feedstock
    from kiln.model.matrix_config import BuildConfig
    from kiln.model.rendered import RenderedConfig

HIDDEN = frozenset({".git", "build_artifacts", ".venv", ".venv-fleet"})  # in the feedstock, never mounted
_FILES_OF_ABOUT = ("license_file", "prelink_message", "recipe_log_file")
PUBLISHED = ".kiln/index"  # the index of a channel that kiln has published


@dataclass(frozen=True, slots=True, kw_only=True)
class MountedFolders:
    """The folders of this machine that a config's build uses, along with the feedstock's.

    ``work`` is the config's, ``packages`` the cache of fetched packages, ``compile_cache`` Bazel's, ``distdir`` the
    downloads, ``wheels`` a rehearsal's. ``shared_packages`` are packages of the channel that another config has made.
    """

    work: Path
    packages: Path
    compile_cache: Path | None = None
    distdir: Path | None = None
    wheels: Path | None = None
    shared_packages: tuple[Path, ...] = ()


def script_container_mounts(
    feedstock: Feedstock, rendered: RenderedConfig, folders: MountedFolders
) -> tuple[Mount, ...]:
    """Return the mounts of every container of a config; a container of scripts has only these.

    Raises:
        RecipeFault: when the recipe names a path that no container may see.
    """
    read_only = {
        RECIPE: feedstock.recipe,
        **{container_path(path, feedstock): path for path in (feedstock.recipe, feedstock.config_folder)},
        Path(PACKAGE_INSIDE, "kiln"): PACKAGE_ROOT / "kiln",
        **({} if folders.distdir is None else {DISTDIR_INSIDE: folders.distdir}),
        **({} if folders.wheels is None else {container_path(folders.wheels, feedstock): folders.wheels}),
        **_paths_outside_recipe(feedstock, rendered),
    }
    for path in (feedstock.recipe, feedstock.config_folder):
        _require_inside_feedstock(path.resolve(), feedstock, str(path.relative_to(feedstock.root)), rendered.file)
    cache = folders.compile_cache
    return (
        *(Mount(source=source, target=str(target)) for target, source in read_only.items()),
        Mount(source=folders.work, target=str(container_path(folders.work, feedstock)), read_only=False),
        *(() if cache is None else (Mount(source=cache, target=str(CACHE_INSIDE), read_only=False),)),
    )


def engine_container_mounts(feedstock: Feedstock, config: BuildConfig, folders: MountedFolders) -> tuple[Mount, ...]:
    """Return the further mounts of the engine's container: packages and channels."""
    packages = folders.packages
    return (
        *(Mount(source=path, target=str(container_path(path, feedstock))) for path in folders.shared_packages),
        *_local_channel_mounts(feedstock, config),
        *(
            ()
            if packages.is_relative_to(folders.work)
            else (Mount(source=packages, target=str(container_path(packages, feedstock)), read_only=False),)
        ),
    )


def _paths_outside_recipe(feedstock: Feedstock, rendered: RenderedConfig) -> dict[Path, Path]:
    """Return the paths outside its own folder that the recipe names, by their paths in the container."""
    root, recipe = feedstock.root.resolve(), feedstock.recipe.resolve()
    places: dict[Path, Path] = {}
    for name in _paths_named_by_recipe(rendered):
        place = (recipe / name).resolve()
        if not place.is_relative_to(recipe) and place.exists():
            _require_inside_feedstock(place, feedstock, name, rendered.file)
            places |= {ROOT / path.relative_to(root): path for path in _visible_entries(place, root)}
    return places


def _paths_named_by_recipe(rendered: RenderedConfig) -> Iterator[str]:
    """Yield the paths that a recipe names, relative to itself."""
    for source in rendered.sources:
        yield from (*([] if source.path is None else [source.path]), *source.patches)
        yield from (url for url in source.url if "://" not in url)
        if source.checkout is not None and source.checkout.url.startswith("."):
            yield source.checkout.url
    stagings, outputs = rendered.stagings, rendered.outputs
    for script in (*(staging.script for staging in stagings), *(output.script for output in outputs)):
        yield from [] if script.file is None else [script.file]
    for output in rendered.outputs:
        for key in _FILES_OF_ABOUT:
            yield from output.about_texts(key)
        for test in output.tests:
            yield from (*test.files, *([] if test.script.file is None else [test.script.file]))


def _require_inside_feedstock(place: Path, feedstock: Feedstock, name: str, file: str) -> None:
    """Refuse a path outside the feedstock, or in a hidden folder."""
    root = feedstock.root.resolve()
    if place.is_relative_to(root) and not HIDDEN.intersection(place.relative_to(root).parts[:1]):
        return
    raise RecipeFault(
        f"{name} leads to {place}, which containers do not see",
        at=Place(file=file),
        why=f"of this machine they see what the recipe names inside of {root}, without {', '.join(sorted(HIDDEN))}",
        hint="copy it into the recipe's folder, or build with --container none",
    )


def _visible_entries(place: Path, root: Path) -> Iterator[Path]:
    """Yield a path; for the feedstock's root, each entry that is not hidden."""
    if place != root:
        yield place
        return
    for entry in sorted(root.iterdir()):
        if entry.name not in HIDDEN and not entry.is_symlink():
            yield entry


def _local_channel_mounts(feedstock: Feedstock, config: BuildConfig) -> Iterator[Mount]:
    """Yield the parts of the channels on this machine, under their own paths; a channel has an index."""
    for name in channel_sources(config):
        folder = _local_channel_folder(name)
        if folder is None:
            continue
        inside = folder.is_relative_to(ROOT)  # a path in the container
        place = feedstock.root / folder.relative_to(ROOT) if inside else folder
        subdirs = existing_subdirs(place)
        is_channel = any(next((place / subdir).glob("repodata*.json*"), None) for subdir in subdirs)
        for part in (*subdirs, PUBLISHED) if is_channel else ():
            if (place / part).is_dir() and not (place / part).is_symlink():
                yield Mount(source=place / part, target=str(folder / part))


def _local_channel_folder(channel: str) -> Path | None:
    """Return the folder of a channel on this machine; None for a remote one."""
    if channel.startswith("file:"):
        channel = unquote(urlsplit(channel).path)
    return Path(os.path.normpath(channel)) if channel.startswith("/") else None
