"""Name the license files that a build has found neither in its sources nor in the recipe; the engine names none."""

from __future__ import annotations

from pathlib import Path, PurePath
from typing import TYPE_CHECKING

from kiln.build.rattler_build_paths import source_work_folders
from kiln.build.unpackable_prefix_files import message_naming_files

if TYPE_CHECKING:
    from kiln.model.build_and_test_steps import BuildStep

_MISSING = "about/license_file: neither in the sources nor in the recipe: "


def missing_licenses_message(step: BuildStep) -> str:
    """Return the error that names the missing files; empty where each name has a file."""
    value = step.recipe.get("about", {}).get("license_file") or ()
    recipe_folder = (step.recipe_folder,) if step.recipe_folder is not None else ()
    folders = (*source_work_folders(step.folder), *recipe_folder)
    names = (value,) if isinstance(value, str) else value
    missing = tuple(name for name in names if not any(_named_license_exists(folder, name) for folder in folders))
    return message_naming_files(_MISSING, missing) if missing else ""


def _named_license_exists(folder: Path, name: str) -> bool:
    if PurePath(name).is_absolute() or "${{" in name:
        return True  # the engine's expressions, and paths that are not names of the sources
    try:
        return (folder / name).exists() or next(folder.glob(name), None) is not None
    except (ValueError, NotImplementedError):  # not a pattern of Python's
        return True
