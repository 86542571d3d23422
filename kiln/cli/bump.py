"""``kiln bump``: write another version or build number into the recipe, or show upstream's newest version."""

from __future__ import annotations

import dataclasses
import json
import os
from contextlib import contextmanager
from typing import TYPE_CHECKING, Any

from kiln.base.errors import UsageError
from kiln.cli.main import make_pasteable
from kiln.cli.options import git_and_pip_environment
from kiln.cli.output import command_steps_view, print_notes

if TYPE_CHECKING:
    import argparse
    from collections.abc import Callable, Iterator
    from pathlib import Path

    from kiln.feedstock.bump.changes import BumpPlan
    from kiln.recipe.feedstock import Feedstock

_CONFIGS = 4  # that are named of those with the same outputs
_SHOWN = 16  # characters of a hash
_VARIABLES = ("SSH_AUTH_SOCK", "XDG_CONFIG_HOME", "NETRC")  # of git and pip


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln bump``."""
    parser.add_argument(
        "version",
        nargs="?",
        metavar="VERSION",
        help="write this version, the hashes of its sources, which are downloaded, and build number 0",
    )
    parser.add_argument("--build", action="store_true", help="increment the build number by 1")
    parser.add_argument(
        "--hashes", action="store_true", help="write the hashes of all sources as they are now, at the same version"
    )
    parser.add_argument(
        "--check", action="store_true", help="show upstream's newest version of each source, and write nothing"
    )
    parser.add_argument("--dry-run", action="store_true", help="show the difference, and write nothing")
    parser.add_argument("--json", action="store_true", help="print the changes, or the newest versions, as JSON")


def run(options: argparse.Namespace, root: Path) -> int:
    """Bump the recipe, or show what could be."""
    from kiln.feedstock.bump import bump
    from kiln.recipe.feedstock import load

    if [options.version is not None, options.build, options.hashes, options.check].count(True) != 1:
        raise UsageError("kiln bump takes one of VERSION, --build, --hashes and --check", hint="kiln bump --check")
    if options.check and options.dry_run:
        raise UsageError("--check and --dry-run exclude each other", hint="--check writes nothing")
    feedstock = load(root)
    if options.check:
        return print_newest_versions(feedstock, as_json=options.json)
    plan = bump.prepare_build_bump(feedstock) if options.build else downloaded_plan(feedstock, options.version)
    if not options.dry_run:
        bump.write_recipe(feedstock, plan)
    print_notes(plan.notes)
    if options.json:
        print(json.dumps(bump_as_json(plan, written=not options.dry_run), indent=2))
    else:
        # Committed first: packages of a recipe that is not cannot be published, and a build takes long.
        following = "git commit, then kiln build --changed --since HEAD~1"
        following = f"next: {'' if options.hashes else 'kiln rerender, '}{following}"
        lines = (*bump_summary_lines(plan, len(feedstock.config_names)), make_pasteable(following, root))
        print("".join(diff_lines(plan)) if options.dry_run else "\n".join(lines))
    return 0


def downloaded_plan(feedstock: Feedstock, version: str | None) -> BumpPlan:
    """Return the plan for a version, or for the hashes of this one, and show the progress of its downloads."""
    from kiln.feedstock.bump import bump

    view = command_steps_view()

    @contextmanager
    def show_download(name: str) -> Iterator[Callable[[int, int | None], None]]:
        with view.step(f"download {name}") as step:
            yield step.show_received

    env = git_and_pip_environment(os.environ, *_VARIABLES)
    if version is None:
        return bump.prepare_hash_refresh(feedstock, env=env, on_file=show_download)
    return bump.prepare_version_bump(feedstock, version, env=env, on_file=show_download)


def print_newest_versions(feedstock: Feedstock, *, as_json: bool) -> int:
    """Print upstream's newest version of each source."""
    from kiln.feedstock.bump import bump

    env = git_and_pip_environment(os.environ, *_VARIABLES)
    version, sources = bump.recipe_and_upstream_versions(feedstock, env=env)
    wheels = bump.pythons_missing_in_matrix(feedstock, env=env)
    if as_json:
        rows = [
            {
                "source": item.source,
                "index": item.index,
                "newest": item.newest or None,
                "newer": item.is_newer(version),
                "reason": item.reason,
            }
            for item in sources
        ]
        missing = None if wheels is None else dataclasses.asdict(wheels)
        print(json.dumps({"version": version, "sources": rows, "pythons_not_in_matrix": missing}, indent=2))
        return 0
    print(f"the recipe has version {version}")
    for item in sources:
        print(item.source)
        print(f"  newest: {item.newest}, by {item.index}" if item.newest else f"  unknown: {item.reason}")
    if wheels is not None:
        pythons = ", ".join(wheels.pythons)
        print(f"{wheels.project} {wheels.version} has wheels for Python {pythons}, which no config is for")
    newer = {item.spelled for item in sources if item.is_newer(version)}
    if newer:
        commands = ", or ".join(f"kiln bump {spelled}" for spelled in sorted(newer))
        print("next: " + make_pasteable(commands, feedstock.root))
    elif not sources:
        print("it has no source that is downloaded")
    elif all(item.newest for item in sources):
        print("it is up to date")
    return 0


def changed_values(plan: BumpPlan) -> list[dict[str, Any]]:
    """Return the changed values in the order of the text."""
    from kiln.feedstock.bump.literals import place_of_offset

    values = sorted({**plan.edits, **plan.digests}.items(), key=lambda pair: pair[0].start)
    return [
        {
            "line": place_of_offset(plan.file, plan.text, literal.start).line,
            "column": place_of_offset(plan.file, plan.text, literal.start).column,
            "key": literal.key,
            "old": literal.text,
            "new": value,
        }
        for literal, value in values
        if literal.text != value
    ]


def bump_as_json(plan: BumpPlan, *, written: bool) -> dict[str, Any]:
    """Return a bump as JSON values."""
    return {
        "file": plan.file,
        "version": {"old": plan.old, "new": plan.new},
        "build_numbers": {"old": plan.numbers[0], "new": plan.numbers[1]},
        "changes": changed_values(plan),
        "downloads": [download.display_name for download in plan.downloads],
        "unchanged": list(plan.unchanged),
        "requirements": list(plan.requirements),
        "touched": {config: list(names) for config, names in plan.touched.items()},
        "notes": list(plan.notes),
        "written": written,
    }


def bump_summary_lines(plan: BumpPlan, total: int) -> Iterator[str]:
    """Yield the lines of what was written, and of what follows; ``total`` is the number of configs."""
    from kiln.base.text import count_text, first_of

    old, new = (", ".join(map(str, numbers)) for numbers in plan.numbers)
    versions = plan.old if plan.old == plan.new else f"{plan.old} -> {plan.new}"
    yield f"{plan.file}: version {versions}, build number {old if old == new else f'{old} -> {new}'}"
    if plan.old == plan.new and plan.downloads and not changed_values(plan):
        yield "  the hashes are those of the sources"
    for change in changed_values(plan):
        old_value, new_value = _shortened_value(change["old"]), _shortened_value(change["new"])
        yield f"  line {change['line']}, {change['key']}: {old_value} -> {new_value}"
    for name in plan.unchanged:
        yield f"  unchanged: {name} does not depend on the version"
    if plan.requirements:
        yield f"upstream asks for other things than {plan.old}:"
        yield from (f"  {line}" for line in plan.requirements)
    if plan.touched:
        yield f"it touches {count_text(len(plan.touched), 'config')} of {total}:"
        groups: dict[tuple[str, ...], list[str]] = {}
        for config, names in plan.touched.items():
            groups.setdefault(names, []).append(config)
        for names, configs in groups.items():
            yield f"  {', '.join(names)}: in {first_of(configs, _CONFIGS)}"


def _shortened_value(value: str) -> str:
    return value if len(value) <= 2 * _SHOWN else f"{value[:_SHOWN]}..."


def diff_lines(plan: BumpPlan) -> Iterator[str]:
    """Yield the lines of a difference that ``patch`` and ``git apply`` take."""
    from difflib import unified_diff

    before, after = (text.splitlines(keepends=True) for text in (plan.text, plan.changed_text))
    yield from unified_diff(before, after, f"a/{plan.file}", f"b/{plan.file}", n=3)
