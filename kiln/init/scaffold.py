"""The files of a feedstock that are not its recipe: planned, then written without changing a file that exists."""

from __future__ import annotations

import os
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files, name_rules
from kiln.errors import NotWritable, UsageError
from kiln.expand import github_workflow_writer
from kiln.init.safe_yaml_text import RecipeFormat
from kiln.model.source_position import Place
from kiln.versions import Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.init.running_kiln_requirement import KilnRequirement
    from kiln.init.starter_recipe import NewRecipe
    from kiln.model.feedstock import Feedstock

SCRIPT, REQUIREMENTS, OUTPUTS, FORGE, IGNORED = (
    "build-locally.py",
    "requirements/kiln.txt",
    "outputs.txt",
    "conda-forge.yml",
    ".gitignore",
)
SCRIPT_FILE = Path(__file__).with_name("build-locally.py.txt")
_TOOL = "conda_build_tool: rattler-build\n"
_EXECUTABLE = 0o755
IGNORED_TEXT = "/.venv/\nbuild_artifacts/\n"
_OUTPUTS_HEAD = (
    "# The packages that this feedstock may publish: names or globs, one a line (kiln publish refuses others).\n"
)
_REQUIREMENTS_HEAD = "# kiln, as pip installs it for build-locally.py; a change here makes .venv anew.\n"
# The image is conda-forge's default; a pinning's docker_image takes its place.
_FORGE_TEXT = """\
# Settings of this feedstock; what is not named here has conda-forge's default.
{tool}docker:
  fallback_image: quay.io/condaforge/linux-anvil-x86_64:alma9
github:
  branch_name: main
  tooling_branch_name: main
provider:
  linux_64: github_actions
  osx_64: null
  win_64: null
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class PlannedFiles:
    """Files to add to a feedstock by their paths, and the files that stay as they are."""

    added: Mapping[str, str]
    kept: tuple[str, ...] = ()


def require_valid_package_name(name: str) -> str:
    """Return a package's name.

    Raises:
        UsageError: conda does not accept it.
    """
    if reason := name_rules.invalid_name_reason(name, "package name"):
        hint = f"kiln init {name.lower()}" if not name_rules.invalid_name_reason(name.lower(), "package name") else ""
        raise UsageError(f"{name!r} cannot be the name of a package", why=reason, hint=hint)
    return name


def require_valid_version(version: str) -> str:
    """Return a version.

    Raises:
        UsageError: conda does not accept it.
    """
    reason = name_rules.invalid_name_reason(version, "version")
    try:
        Version(version)
    except ValueError as error:
        reason = reason or str(error)
    if reason:
        raise UsageError(f"{version!r} cannot be a version", why=reason, hint="--version 0.1.0")
    return version


def new_feedstock_files(folder: Path, recipe: NewRecipe, requirement: KilnRequirement) -> PlannedFiles:
    """Return the files of a new feedstock.

    Raises:
        NotWritable: some of them exist.
    """
    tool = _TOOL if recipe.format is RecipeFormat.V1 else ""
    added = {
        FORGE: _FORGE_TEXT.format(tool=tool),
        IGNORED: IGNORED_TEXT,
        OUTPUTS: _outputs_file_text([recipe.name]),
        **_build_script_files(requirement),
        **recipe.files,
    }
    recipes = [form.recipe_path for form in RecipeFormat]
    existing = [name for name in dict.fromkeys([*added, *recipes]) if os.path.lexists(folder / name)]
    if existing:
        raise NotWritable(
            "kiln init overwrites nothing, and these files exist",
            at=Place(file=str(folder)),
            why=", ".join(existing),
            hint=f"name another folder with --folder, or add what is missing: kiln -C {folder} init",
        )
    return PlannedFiles(added=added)


def missing_feedstock_files(feedstock: Feedstock, requirement: KilnRequirement) -> PlannedFiles:
    """Return the files that a feedstock lacks; conda-smithy's build-locally.py needs no requirement."""
    tool = "" if feedstock.meta.is_file() else _TOOL
    texts = {FORGE: _FORGE_TEXT.format(tool=tool), IGNORED: IGNORED_TEXT, **_build_script_files(requirement)}
    if (feedstock.root / SCRIPT).exists() and not github_workflow_writer.has_kiln_build_script(feedstock):
        del texts[REQUIREMENTS]
    existing = tuple(name for name in texts if os.path.lexists(feedstock.root / name))
    return PlannedFiles(added={name: text for name, text in texts.items() if name not in existing}, kept=existing)


def planned_outputs_file(feedstock: Feedstock, packages: Iterable[str]) -> PlannedFiles:
    """Return the list of the packages that a feedstock may publish, if it has none."""
    if os.path.lexists(feedstock.root / OUTPUTS):
        return PlannedFiles(added={}, kept=(OUTPUTS,))
    return PlannedFiles(added={OUTPUTS: _outputs_file_text(packages)})


def _outputs_file_text(packages: Iterable[str]) -> str:
    return _OUTPUTS_HEAD + "".join(f"{name}\n" for name in sorted(set(packages)))


def write_planned_files(folder: Path, planned: PlannedFiles) -> None:
    """Write the planned files; a folder that does not exist appears when it is complete.

    Raises:
        NotWritable: the path of a file contains a link.
        DiskFull: the disk is full.
    """
    if folder.exists():
        for name in planned.added:
            files.safe_path_inside(folder / name, folder)
        _write_into_folder(folder, planned)
        return
    with files.full_disk_as_kiln_error(folder.parent), files.atomic_replacement(folder) as part:
        part.mkdir()
        _write_into_folder(part, planned)


def _write_into_folder(folder: Path, planned: PlannedFiles) -> None:
    for name, text in planned.added.items():
        executable = name == SCRIPT or name.endswith(".sh")
        files.write_text(folder / name, text, mode=_EXECUTABLE if executable else None)


def _build_script_files(requirement: KilnRequirement) -> dict[str, str]:
    return {
        SCRIPT: SCRIPT_FILE.read_text(encoding="utf-8"),
        REQUIREMENTS: f"{_REQUIREMENTS_HEAD}{requirement.line}\n",
    }
