"""``kiln init``: make a feedstock, or add what a checkout lacks."""

from __future__ import annotations

import json
import os
import re
import shlex
from pathlib import Path
from shlex import quote
from typing import TYPE_CHECKING

from kiln.base.errors import KilnError, UsageError
from kiln.base.system.files import full_path
from kiln.cli import pinning
from kiln.cli.main import kiln_command_words, make_pasteable
from kiln.cli.options import git_and_pip_environment

if TYPE_CHECKING:
    import argparse

    from kiln.feedstock.init.scaffold import KilnRequirement, NewRecipe
    from kiln.recipe.feedstock import Feedstock

FIRST_VERSION = "0.1.0"
_AT_ONCE = 24  # configs that are rendered in one process
_MAINTAINER = re.compile(r"[A-Za-z0-9](?:[A-Za-z0-9-]*[A-Za-z0-9])?(?:/[A-Za-z0-9-]+)?")


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln init``."""
    parser.add_argument(
        "name",
        nargs="?",
        metavar="NAME",
        help="make a feedstock of this package in NAME-feedstock (default: add what the feedstock here lacks)",
    )
    parser.add_argument(
        "--pypi", action="store_true", help="make the recipe of the project NAME on PyPI, with its source archive"
    )
    parser.add_argument(
        "--version", metavar="VERSION", help=f"use this version (default: {FIRST_VERSION}, or PyPI's newest)"
    )
    parser.add_argument(
        "--format",
        choices=["v1", "v0"],
        help="write a recipe.yaml for rattler-build (v1, the default) or a meta.yaml for conda-build (v0)",
    )
    parser.add_argument(
        "--no-tests",
        action="store_true",
        help="leave the project's own tests out of a recipe of --pypi, which else run by pytest",
    )
    parser.add_argument("--folder", metavar="FOLDER", type=Path, help="make the feedstock in this folder")
    parser.add_argument(
        "--maintainer",
        dest="maintainers",
        action="append",
        metavar="USER",
        help="write this GitHub user into the recipe; can be repeated (default: github.user of git, or your login)",
    )
    parser.add_argument(
        "--kiln",
        dest="requirement",
        metavar="REQUIREMENT",
        help="install kiln by this pinned requirement of pip in build-locally.py and the CI (default: this kiln)",
    )
    parser.add_argument("--json", action="store_true", help="print the files as JSON")
    parser.set_defaults(check=False)  # of rerender
    pinning.add_arguments(parser)


class InitReport:
    """The files that were added and kept, and notes, in the order of the work."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.added: list[str] = []
        self.kept: list[str] = []
        self.notes: list[str] = []
        self.after_lint = "build --all"

    def as_json(self) -> str:
        """Return the report as JSON."""
        values = {"folder": str(self.folder), "added": self.added, "kept": self.kept, "notes": self.notes}
        return json.dumps(values, indent=2)

    def as_lines(self, name: str | None) -> list[str]:
        """Return the report as lines, with the next commands."""
        kiln = shlex.join((*kiln_command_words(), "-C", str(self.folder)))
        return [
            f"{'made' if name else 'completed'} the feedstock in {self.folder}",
            *(f"  added  {path}" for path in self.added),
            *(f"  kept   {path}" for path in self.kept),
            *(f"note: {make_pasteable(note, self.folder)}" for note in self.notes),
            f"next: {kiln} lint; {kiln} {self.after_lint}",
        ]


def run(options: argparse.Namespace, root: Path) -> int:
    """Make or complete a feedstock."""
    from kiln.base import process_table
    from kiln.feedstock.init import scaffold

    if options.name is None and (only := _option_that_needs_new_feedstock(options)):
        raise UsageError(f"{only} needs the name of a new package", hint=f"kiln init NAME {only}")
    variables = git_and_pip_environment(os.environ, "XDG_CONFIG_HOME")
    if options.requirement:
        requirement = scaffold.parse_given_requirement(options.requirement)
    else:
        requirement = scaffold.requirement_of_running_kiln(env=variables)
    with process_table.termination_as_interrupt():  # so that nothing unfinished is left
        report = (
            make_feedstock(options, root, requirement, variables)
            if options.name
            else complete_feedstock(options, root, requirement)
        )
    print(report.as_json() if options.json else "\n".join(report.as_lines(options.name)))
    return 0


def _option_that_needs_new_feedstock(options: argparse.Namespace) -> str:
    values = {
        "--pypi": options.pypi,
        "--no-tests": options.no_tests,
        "--version": options.version,
        "--format": options.format,
        "--folder": options.folder,
        "--maintainer": options.maintainers,
    }
    return next((name for name, value in values.items() if value), "")


def make_feedstock(
    options: argparse.Namespace, root: Path, requirement: KilnRequirement, variables: dict[str, str]
) -> InitReport:
    """Make a feedstock from nothing or from PyPI; return what was written."""
    from kiln.feedstock.init import scaffold
    from kiln.recipe.feedstock import load, require_usable_path

    maintainers, note = maintainers_and_note(options.maintainers, root, variables)
    recipe = _new_recipe(options, maintainers, variables)
    folder = full_path(root / (options.folder or f"{recipe.name}-feedstock"))
    require_usable_path(folder, " ,")  # what a container, or this machine, does not take
    planned = scaffold.new_feedstock_files(folder, recipe, requirement)
    scaffold.write_planned_files(folder, planned)
    report = InitReport(folder)
    report.added += planned.added
    report.kept += planned.kept
    report.notes += [*recipe.notes, *([note] if note else []), *([requirement.note] if requirement.note else [])]
    rerender_or_note_reason(options, load(folder), report)
    report.notes += [note for note in [commit_new_feedstock(folder, recipe.name, variables)] if note]
    return report


def commit_new_feedstock(folder: Path, name: str, variables: dict[str, str]) -> str:
    """Make a git repository of a new feedstock, whose packages then name a commit; return a note on what is left to do.

    In a checkout that exists, and where git has no name of a user, the commit is the user's to make.
    """
    from kiln.base import git
    from kiln.base.errors import MissingTool

    commit = shlex.join(("git", "-C", str(folder), "commit", "--message", f"{name}: a new feedstock"))
    if any((place / ".git").exists() for place in (folder, *folder.absolute().parents)):
        return f"commit it before you publish: git -C {quote(str(folder))} add --all; {commit}"
    try:
        git.output(folder, "init", "--quiet", "--initial-branch", "main", env=variables)
        git.output(folder, "add", "--all", env=variables)
        if not git.output_or_empty(folder, "config", "user.email", env=variables).strip():
            return f"git has no user.name and user.email: set them, then {commit}"
        git.output(folder, "commit", "--quiet", "--message", f"{name}: a new feedstock", env=variables)
    except (MissingTool, UsageError) as error:
        return f"no git repository was made, so that packages name no commit: {error.why or error.what}"
    return ""


def _new_recipe(options: argparse.Namespace, maintainers: list[str], variables: dict[str, str]) -> NewRecipe:
    from kiln.feedstock.init import pypi, scaffold
    from kiln.feedstock.init.scaffold import RecipeFormat, python_recipe, starter_recipe

    form = RecipeFormat(options.format or "v1")
    if options.version:
        scaffold.require_valid_version(options.version)
    if options.pypi:
        python_min = pypi.python_min_of_pinning(pinning.readable_pinning_file(options))
        project = pypi.fetch_project(
            options.name, options.version, python_min=python_min, own_tests=not options.no_tests, env=variables
        )
        return python_recipe(project, form, maintainers)
    name = scaffold.require_valid_package_name(options.name)
    return starter_recipe(name, options.version or FIRST_VERSION, form, maintainers)


def maintainers_and_note(given: list[str] | None, root: Path, variables: dict[str, str]) -> tuple[list[str], str]:
    """Return the maintainers, and a note if they are not given."""
    if given:
        if invalid := [name for name in given if not _MAINTAINER.fullmatch(name)]:
            raise UsageError(f"{invalid[0]!r} is not a GitHub user or team", hint="--maintainer USER")
        return given, ""
    from kiln.base import git

    folder = root if root.is_dir() else Path.cwd()
    name = git.output_or_empty(folder, "config", "github.user", env=variables).strip()
    if _MAINTAINER.fullmatch(name):
        return [name], ""
    login = next((os.environ[key] for key in ("LOGNAME", "USER") if os.environ.get(key)), "")
    name = login if _MAINTAINER.fullmatch(login) else "maintainer"
    return [name], f"extra/recipe-maintainers is {name}; write GitHub users there, or give them with --maintainer"


def complete_feedstock(options: argparse.Namespace, root: Path, requirement: KilnRequirement) -> InitReport:
    """Add what a feedstock lacks, and change no file; return what was written."""
    from kiln.feedstock import rerender
    from kiln.feedstock.init import scaffold
    from kiln.recipe.feedstock import load

    feedstock = load(root)
    planned = scaffold.missing_feedstock_files(feedstock, requirement)
    scaffold.write_planned_files(root, planned)
    report = InitReport(root)
    report.added += planned.added
    report.kept += planned.kept
    if scaffold.REQUIREMENTS in planned.added and requirement.note:
        report.notes.append(requirement.note)
    if scaffold.SCRIPT in planned.kept and not rerender.has_kiln_build_script(feedstock):
        report.notes.append(f"{scaffold.SCRIPT} stays conda-smithy's; `kiln build` builds with kiln")
    if feedstock.config_names:
        report.kept.append(".ci_support")
        _add_ci_workflow(feedstock, report)
    else:
        rerender_or_note_reason(options, feedstock, report)
    _write_output_names(feedstock, report)
    if ignored := files_ignored_by_git(root, report.added):
        report.notes.append(f".gitignore leaves out what was added: git add -f {' '.join(map(quote, ignored))}")
    return report


def files_ignored_by_git(root: Path, names: list[str]) -> list[str]:
    """Return the files of a checkout that git ignores: conda-smithy's .gitignore names most files of the root."""
    if not names or not (root / ".git").exists():
        return []
    from kiln.base import git

    words = ("-c", "core.quotePath=false", "check-ignore", "--", *names)
    listing = git.output_or_empty(root, *words, env=git_and_pip_environment(os.environ, "XDG_CONFIG_HOME"))
    return listing.splitlines()


def _add_ci_workflow(feedstock: Feedstock, report: InitReport) -> None:
    """Write the workflow of the configs in .ci_support, unless there is one."""
    from kiln.feedstock import config_file, rerender

    place = feedstock.root / rerender.NAME
    if place.exists():
        report.kept.append(rerender.NAME)
        return
    names = feedstock.config_names
    lines = rerender.write_workflows(feedstock, config_file.read_configs(feedstock, names))
    if place.exists():
        report.added.append(rerender.NAME)
    else:
        report.notes += lines


def _write_output_names(feedstock: Feedstock, report: InitReport) -> None:
    """Write the names of the packages that the configs render to, where they render."""
    from kiln.feedstock.init import scaffold

    try:
        packages = rendered_package_names(feedstock)
    except KilnError as error:
        report.notes.append(f"no {scaffold.OUTPUTS}: {error.what}")
        return
    if not packages:
        report.notes.append(f"no {scaffold.OUTPUTS}: no config is known; run kiln rerender, then kiln init")
        return
    planned = scaffold.planned_outputs_file(feedstock, packages)
    scaffold.write_planned_files(feedstock.root, planned)
    report.added += planned.added
    report.kept += planned.kept


def rendered_package_names(feedstock: Feedstock) -> set[str]:
    """Return the names of the packages that the configs render to; some configs at a time within limits."""
    from kiln.base import limits
    from kiln.feedstock import config_file
    from kiln.recipe import render

    names = feedstock.config_names

    def package_names_of_configs(part: tuple[str, ...]) -> set[str]:
        configs = config_file.read_configs(feedstock, part)
        return {output.name for config in configs for output in render.render(feedstock, config).outputs}

    packages: set[str] = set()
    for start in range(0, len(names), _AT_ONCE):
        part = names[start : start + _AT_ONCE]
        packages |= limits.run_bounded(lambda part=part: package_names_of_configs(part))  # type: ignore[misc]
    return packages


def rerender_or_note_reason(options: argparse.Namespace, feedstock: Feedstock, report: InitReport) -> None:
    """Write .ci_support and the workflow, or note why not: the feedstock is complete without them but for its CI."""
    from kiln.cli import rerender as cli_rerender
    from kiln.feedstock import rerender

    before = (feedstock.root / rerender.NAME).exists()
    try:
        notes, lines, _ = pinning.run_with_pinning(
            options, feedstock.root, lambda variant_file: cli_rerender.rerender(options, feedstock.root, variant_file)
        )
    except KilnError as error:
        reason = ": ".join(filter(None, (error.what, error.why)))
        report.notes.append(f".ci_support and the workflow are not written: {reason}")
        report.after_lint = f"rerender {error.hint}" if error.hint.startswith("-e ") else "rerender"
        return
    report.added += [f".ci_support/{name}.yaml" for name in feedstock.config_names]
    written = (feedstock.root / rerender.NAME).exists()
    if written:
        (report.kept if before else report.added).append(rerender.NAME)
    report.notes += [*notes, *([] if written else lines[1:])]
