"""Make the feedstock of a published package again, from the package and its record alone.

A package carries its recipe, in conda-build's or rattler-build's layout; the record has the other files that its build
read. The record's hash over the recipe decides whether the result is the feedstock that the package was built from.
"""

from __future__ import annotations

from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING, Any

from kiln import files, folder_lock, git
from kiln.build.recipe_files_in_info import META, TEMPLATE, VARIANT, VARIANT_V1
from kiln.conda_package import reader
from kiln.errors import BrokenPackage, NotWritable, ProvenanceBroken
from kiln.model.feedstock import Feedstock

if TYPE_CHECKING:
    from collections.abc import Mapping

LARGEST = 1 << 18  # bytes of a file in a record
_RENDERED_V1 = "rendered_recipe.yaml"


def read_feedstock_files_to_record(feedstock: Feedstock, config: str) -> dict[str, str]:
    """Return the texts of the files that a build of a config reads, and that its packages do not carry."""
    places = (feedstock.conda_forge_yml, feedstock.config_folder / f"{config}.yaml", feedstock.recipe / VARIANT)
    texts = {}
    for place in places:
        if place.is_file() and place.stat().st_size <= LARGEST:
            texts[place.relative_to(feedstock.root).as_posix()] = place.read_bytes().decode("utf-8", "replace")
    return texts


def restore_feedstock(package: Path, record: Mapping[str, Any], into: Path) -> Feedstock:
    """Write the feedstock of a package into a new folder, completely or not at all.

    Raises:
        NotWritable: when the folder is not empty.
        ProvenanceBroken: when the record lacks the files.
        BrokenPackage: when the package carries no recipe, or paths that lead out of it.
    """
    if into.exists() and (not into.is_dir() or any(into.iterdir())):
        raise NotWritable(f"{into} is not empty", hint="name a new folder")
    texts, config = record.get("feedstock_files"), record.get("config")
    commit = git.base_commit(record.get("commit")) or "the commit of its release"
    allowed = {"conda-forge.yml", f".ci_support/{config}.yaml", f"recipe/{VARIANT}"}
    if (
        not isinstance(texts, dict)
        or f".ci_support/{config}.yaml" not in texts
        or not _is_portable_file_name(str(config))
    ):
        raise ProvenanceBroken(
            f"the record of {package.name} does not have the files of its feedstock",
            why="they are recorded since kiln 0.1; or its config file is too large",
            hint=f"git checkout {commit}, and rebuild there",
        )
    if texts.keys() - allowed or not all(isinstance(text, str) for text in texts.values()):
        raise ProvenanceBroken(f"the record of {package.name} has files that are not of a feedstock")
    contents = {**_recipe_in_package(package), **{name: text.encode() for name, text in texts.items()}}
    root = into.absolute()
    with (
        files.full_disk_as_kiln_error(root.parent),
        folder_lock.exclusive_folder_lock(root),
        files.atomic_replacement(root) as part,
    ):
        for name, data in contents.items():
            files.write_bytes(part / name, data)
    return Feedstock(root=root)


def _recipe_in_package(package: Path) -> dict[str, bytes]:
    """Return the recipe's files in a package, by their paths in the feedstock."""
    carried = {
        name.removeprefix("recipe/"): data
        for name, data in reader.read_info_files(package).items()
        if name.startswith("recipe/")
    }
    if f"parent/{META}" in carried:
        parent = "parent/"
        recipe = {name.removeprefix(parent): data for name, data in carried.items() if name.startswith(parent)}
    elif TEMPLATE in carried:
        recipe = {name: data for name, data in carried.items() if name not in {META, TEMPLATE, VARIANT}}
        recipe[META] = carried[TEMPLATE]
    elif "recipe.yaml" in carried:
        recipe = {name: data for name, data in carried.items() if name not in {_RENDERED_V1, VARIANT_V1}}
    else:
        raise BrokenPackage(f"{package.name} carries no recipe", hint="rebuild it in a checkout of its feedstock")
    if wrong := [
        name
        for name in recipe
        if not all(map(_is_portable_file_name, PurePosixPath(name).parts)) or name.startswith("/")
    ]:
        raise BrokenPackage(f"{package.name} has a recipe with a path that leads out of it: {wrong[0]!r}")
    return {f"recipe/{name}": data for name, data in recipe.items()}


def _is_portable_file_name(part: str) -> bool:
    """Return whether a text is the name of a file on every system."""
    return bool(part) and part not in {".", ".."} and not set(part) & set('/\\:*?"<>|') and part.isprintable()
