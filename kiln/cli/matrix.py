"""``kiln matrix``: list the configs with their varying keys, and compare two revisions of the matrix."""

from __future__ import annotations

import json
import os
import sys
from contextlib import contextmanager
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln.cli import pinning_selection
from kiln.cli.commands_in_hints import make_pasteable
from kiln.cli.environment_filters import variables_of_names
from kiln.cli.run_view_choice_and_printing import print_notes, terminal_width
from kiln.errors import KilnError, MalformedYaml, PinningNeeded, UnsafeTemplate, UnsupportedPython, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence

    from kiln.model.matrix_config import BuildConfig

_TREE = ("recipe", "conda-forge.yml", ".ci_support")  # the files that define a matrix


class MatrixSource(NamedTuple):
    """A tree of files that define a matrix, and the pinning to expand it with."""

    root: Path
    pinning: Path | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln matrix``."""
    parser.add_argument("--json", action="store_true", help="print the configs, or the differences, as JSON")
    parser.add_argument("--diff", metavar="REV", help="show the changes of the matrix since a git revision")
    parser.add_argument(
        "--was",
        metavar="PINNING",
        help="with --diff: use this pinning for the earlier matrix (default: the one of -e)",
    )
    pinning_selection.add_arguments(parser)


def run(options: argparse.Namespace, root: Path) -> int:
    """Print the matrix, or its differences from an earlier revision."""
    from kiln import limits

    if options.was and not options.diff:
        raise UsageError("--was requires --diff", hint="kiln matrix --diff HEAD --was OLD -e NEW")
    notes: list[str] = []
    if options.diff is None:
        try:
            text, note = pinning_selection.run_with_pinning(
                options, root, lambda file: matrix_text_and_note(options, root, file, or_existing=False)
            )
        except PinningNeeded as error:
            notes = pinning_selection.unfetched_pinning_notes(root, error)
            text, note = limits.run_bounded(lambda: matrix_text_and_note(options, root, None, or_existing=True))
        notes += [note] if note else []
    else:
        with extracted_git_revision(root, options.diff) as before:
            try:
                variant_file = pinning_selection.run_with_pinning(options, root, lambda file: file)
            except PinningNeeded as error:
                variant_file, notes = None, pinning_selection.unfetched_pinning_notes(root, error)
            earlier = variant_file
            if options.was:
                earlier = pinning_selection.pinning_file_by_name(options.was, options.pinning_channel)
            if earlier is None and not options.no_pinning:
                notes += pinning_selection.keys_without_value_notes(before, f" at {options.diff}")
            trees = MatrixSource(root=before, pinning=earlier), MatrixSource(root=root, pinning=variant_file)
            text = limits.run_bounded(lambda: matrix_difference_text(options, *trees))
    print_notes(make_pasteable(note, root) for note in notes)
    print(text)
    return 0


def matrix_text_and_note(
    options: argparse.Namespace, root: Path, variant_file: Path | None, *, or_existing: bool
) -> tuple[str, str]:
    """Return the text of the matrix, and a note.

    ``or_existing`` takes the configs in .ci_support when the recipe cannot be expanded, unless no pinning would help.
    """
    from kiln import expand, feedstock_folder_check

    feedstock, note = feedstock_folder_check.load(root), ""
    try:
        configs = expand.configs(feedstock, variant_file)
    except KilnError as error:
        names = feedstock.config_names
        if not (or_existing and names) or isinstance(error, (MalformedYaml, UnsafeTemplate)):
            raise
        configs = expand.read_configs(feedstock, names)
        note = f"these are the configs of .ci_support, as last rerendered ({error.what})"
    text = (
        json.dumps([config_as_data(config) for config in configs])
        if options.json
        else "\n".join(matrix_table_lines(configs, terminal_width(sys.stdout)))
    )
    return text, note


def matrix_difference_text(options: argparse.Namespace, before: MatrixSource, after: MatrixSource) -> str:
    """Return the text of the differences from the matrix of an earlier tree."""
    from kiln import expand, feedstock_folder_check

    configs = expand.configs(feedstock_folder_check.load(after.root), after.pinning)
    changes = matrix_changes(expand.configs(feedstock_folder_check.load(before.root), before.pinning), configs)
    return json.dumps(changes) if options.json else "\n".join(matrix_change_lines(changes, options.diff, len(configs)))


def config_as_data(config: BuildConfig) -> dict[str, Any]:
    """Return a config as JSON values."""
    return {
        "name": config.name,
        "platform": config.platform,
        "image": config.image,
        "variant": {key: list(values) for key, values in config.variant.items()},
        "zip_keys": [list(group) for group in config.zip_keys],
    }


def matrix_table_lines(configs: Sequence[BuildConfig], width: int | None = None) -> Iterator[str]:
    """Yield a line for each config, with the keys that vary between configs, folded to a terminal's width."""
    from kiln.console.text import count_text, table

    if not configs:
        yield "no configs: the recipe skips all of them"
        return
    keys = varying_keys(configs)
    rows = [[config.name, *(", ".join(config.variant.get(key, ("-",))) for key in keys)] for config in configs]
    yield table(["config", *keys], rows, width=width)
    loops = sorted({key for config in configs for key, values in config.variant.items() if len(set(values)) > 1})
    yield ""
    yield count_text(len(configs), "config") + (f"; {', '.join(loops)} vary inside a config" if loops else "")


def varying_keys(configs: Sequence[BuildConfig]) -> list[str]:
    """Return the keys whose values differ between configs."""
    keys = sorted({key for config in configs for key in config.variant})
    return [key for key in keys if len({config.variant.get(key) for config in configs}) > 1]


@contextmanager
def extracted_git_revision(root: Path, revision: str) -> Iterator[Path]:
    """Provide a temporary tree of the files that define the matrix at a git revision.

    Raises:
        UsageError: if git does not know the revision.
        UnsupportedPython: if it lacks PEP 706, and would unpack links and paths that lead out of the folder.
    """
    import tarfile
    import tempfile

    from kiln import git

    if not hasattr(tarfile, "data_filter"):
        raise UnsupportedPython("this Python cannot unpack a revision safely", hint="3.10.12, 3.11.4 or newer can")

    with tempfile.TemporaryDirectory(prefix="kiln-matrix-") as folder:
        archive, tree = Path(folder, "tree.tar"), Path(folder, "tree")
        git_output = partial(git.output, root, env=variables_of_names(os.environ, ("PATH", "HOME")))
        commit = git_output("rev-parse", "--verify", "--end-of-options", f"{revision}^{{commit}}").strip()
        names = [name for name in git_output("ls-tree", "--name-only", commit).splitlines() if name in _TREE]
        if "recipe" not in names:
            raise UsageError(f"{revision} has no recipe in {root}")
        git_output("archive", "--format=tar", "-o", str(archive), commit, *names)
        with tarfile.open(archive) as file:
            file.extractall(tree, filter="data")
        yield tree


def matrix_changes(before: Sequence[BuildConfig], after: Sequence[BuildConfig]) -> dict[str, Any]:
    """Return the added and removed configs, and the changed values of the others."""
    old, new = ({config.name: config_as_data(config)["variant"] for config in configs} for configs in (before, after))
    changed = {
        name: {
            key: [old[name].get(key), new[name].get(key)]
            for key in sorted(old[name].keys() | new[name].keys())
            if old[name].get(key) != new[name].get(key)
        }
        for name in sorted(old.keys() & new.keys())
        if old[name] != new[name]
    }
    return {"added": sorted(new.keys() - old.keys()), "removed": sorted(old.keys() - new.keys()), "changed": changed}


def matrix_change_lines(changes: dict[str, Any], revision: str, total: int) -> Iterator[str]:
    """Yield the changes as lines of text."""
    from kiln.console.text import count_text

    for sign, names in (("+", changes["added"]), ("-", changes["removed"])):
        yield from (f"{sign} {name}" for name in names)
    for name, keys in changes["changed"].items():
        yield f"~ {name}"
        for key, (before, after) in keys.items():
            yield f"    {key}: {', '.join(before or ['(none)'])} -> {', '.join(after or ['(none)'])}"
    counts = {what: len(changes[what]) for what in ("added", "removed", "changed")}
    listed = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    yield f"{count_text(total, 'config')}; since {revision}: {listed or 'no change'}"
