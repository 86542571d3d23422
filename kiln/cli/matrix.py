"""``kiln matrix`` and ``kiln render``: the configs with what varies between them, and each one's outputs."""

from __future__ import annotations

import json
import os
import sys
import textwrap
from typing import TYPE_CHECKING, Any, NamedTuple

from kiln.base.errors import KilnError, MalformedYaml, PinningNeeded, UnknownConfig, UnsafeTemplate, UsageError
from kiln.cli import pinning as cli_pinning
from kiln.cli.main import make_pasteable
from kiln.cli.options import variables_of_names
from kiln.cli.output import print_folded, print_notes, terminal_width

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator, Sequence
    from pathlib import Path

    from kiln.recipe.feedstock import BuildConfig
    from kiln.recipe.rendered import Output, RenderedConfig, Script
    from kiln.recipe.template.names import Doubts


_WIDTH = 110
_NBSP = "\N{NO-BREAK SPACE}"


def add_render_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln render``."""
    parser.add_argument(
        "configs", nargs="*", metavar="CONFIG", help="name of a config's file in .ci_support (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object: {CONFIG: [output, ...]}")
    parser.add_argument(
        "--final", action="store_true", help="resolve the pins that need no solver, such as pins between outputs"
    )


def run_render(options: argparse.Namespace, root: Path) -> int:
    """Render the configs and print them; warnings about keys of the recipe go to standard error."""
    from kiln.base import limits

    output, warnings = limits.run_bounded(lambda: rendered_text(options, root))
    if options.json:
        print(output)
    else:
        print_folded(output)
    for warning in warnings:
        print(f"warning: {warning}", file=sys.stderr)
    return 0


def rendered_text(options: argparse.Namespace, root: Path) -> tuple[str, tuple[str, ...]]:
    """Return the text of the rendered configs, and the warnings about keys of their recipe."""
    from kiln.feedstock import config_file
    from kiln.recipe import pins, render
    from kiln.recipe.feedstock import load

    feedstock = load(root)
    names = options.configs or feedstock.config_names
    if not names:
        hint = "kiln rerender writes them, and none for a recipe that skips everything"
        raise UnknownConfig("no configs in .ci_support", hint=hint)
    configs = {name: config_file.read_config(feedstock, name) for name in names}
    rendered = {name: render.render(feedstock, config) for name, config in configs.items()}
    pins.require_pins_of_outputs(feedstock, rendered.values())
    warnings = tuple(dict.fromkeys(line for config in rendered.values() for line in render.key_fault_warnings(config)))
    if options.final:
        rendered = {name: pins.close_static_pins(config) for name, config in rendered.items()}
    if options.json:
        return json.dumps({name: render.as_plain_data(config) for name, config in rendered.items()}), warnings
    return "\n\n".join("\n".join(rendered_config_lines(config)) for config in rendered.values()), warnings


def rendered_config_lines(rendered: RenderedConfig) -> Iterator[str]:
    """Yield the lines of a rendered config."""
    config = rendered.config
    yield f"{config.name}  ({config.platform}{f', {config.image}' if config.image else ''})"
    if not rendered.outputs:
        yield "  all outputs are skipped"
    for source in rendered.sources:
        where = ", ".join(source.url) or source.git_url or source.path or ""
        yield from labeled_lines("source", [where, *(f"patch {patch}" for patch in source.patches)])
    for staging in rendered.stagings:
        yield from labeled_lines(staging.title, script_lines(staging.script))
    for output in rendered.outputs:
        yield ""
        yield from rendered_output_lines(output)


def rendered_output_lines(output: Output) -> Iterator[str]:
    """Yield the lines of an output."""
    yield f"  {output.name} {output.version} {output.build_string}  [{output.noarch or output.subdir}]"
    for section in ("build", "host", "run", "run_constrained"):
        yield from labeled_lines(
            section.replace("run_constrained", "constrained"), list(getattr(output.requirements, section))
        )
    for kind, specs in output.run_exports.items():
        yield from labeled_lines("run exports" if kind == "weak" else f"{kind} exports", list(specs))
    yield from labeled_lines("features", list(output.track_features))
    yield from labeled_lines("script", script_lines(output.script))
    yield from labeled_lines("imports", [name for test in output.tests for name in test.imports])
    yield from labeled_lines("tests", [line for test in output.tests for line in script_lines(test.script)], apart=True)
    yield from labeled_lines("hashed", [f"{key} {value}" for key, value in sorted(output.used.items())])


def script_lines(script: Script) -> list[str]:
    """Return a script's file, or its lines."""
    return [script.file] if script.file else list(script.lines)


def labeled_lines(label: str, items: list[str], *, apart: bool = False) -> list[str]:
    """Return labeled items, wrapped into lines or, if ``apart``, on separate lines."""
    if not items:
        return []
    lead = f"    {label:<11} "
    if apart:
        texts = [item.replace("\n", "\n" + " " * len(lead)) for item in items]
        return [(lead if not index else " " * len(lead)) + item for index, item in enumerate(texts)]
    unbroken = [item.replace(" ", _NBSP) for item in items]  # a line must not break inside a requirement
    lines = textwrap.wrap(
        ", ".join(unbroken),
        _WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_NBSP, " ") for line in lines]


class MatrixSource(NamedTuple):
    """A tree of files that define a matrix, and the pinning to expand it with."""

    root: Path
    pinning: Path | None


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln matrix``."""
    parser.add_argument("--json", action="store_true", help="print the configs, or the differences, as JSON")
    parser.add_argument("--diff", metavar="REV", help="show the changes of the matrix since a git revision")
    parser.add_argument(
        "--was", metavar="PINNING", help="with --diff: use this pinning for the earlier matrix (default: the one of -e)"
    )
    cli_pinning.add_arguments(parser)


def run(options: argparse.Namespace, root: Path) -> int:
    """Print the matrix, or its differences from an earlier revision."""
    from kiln.base import limits

    if options.was and not options.diff:
        raise UsageError("--was requires --diff", hint="kiln matrix --diff HEAD --was OLD -e NEW")
    notes: list[str] = []
    if options.diff is None:
        try:
            text, notes = cli_pinning.run_with_pinning(
                options, root, lambda file: matrix_text_and_notes(options, root, file, or_existing=False)
            )
        except PinningNeeded as error:
            notes = cli_pinning.unfetched_pinning_notes(root, error)
            try:
                text, more = limits.run_bounded(lambda: matrix_text_and_notes(options, root, None, or_existing=True))
            except (MalformedYaml, UnsafeTemplate):
                raise
            except KilnError as fault:  # which the missing values may be to blame for
                raise error from fault
            notes += more
    else:
        from kiln.feedstock.difference import extracted_git_revision

        env = variables_of_names(os.environ, ("PATH", "HOME"))
        with extracted_git_revision(root, options.diff, env=env) as before:
            try:
                variant_file = cli_pinning.run_with_pinning(options, root, lambda file: file)
            except PinningNeeded as error:
                variant_file, notes = None, cli_pinning.unfetched_pinning_notes(root, error)
            earlier = variant_file
            if options.was:
                earlier = cli_pinning.pinning_file_by_name(options.was, options.pinning_channel)
            if earlier is None and not options.no_pinning:
                notes += cli_pinning.keys_without_value_notes(before, f" at {options.diff}")
            trees = MatrixSource(root=before, pinning=earlier), MatrixSource(root=root, pinning=variant_file)
            text = limits.run_bounded(lambda: matrix_difference_text(options, *trees))
    print_notes(make_pasteable(note, root) for note in notes)
    print(text)
    return 0


def matrix_text_and_notes(
    options: argparse.Namespace, root: Path, variant_file: Path | None, *, or_existing: bool
) -> tuple[str, list[str]]:
    """Return the text of the matrix, and notes.

    ``or_existing`` takes the configs in .ci_support when the recipe cannot be expanded, unless no pinning would help.
    """
    from kiln.feedstock import config_file, matrix
    from kiln.recipe.feedstock import load

    feedstock = load(root)
    doubts: Doubts = {}
    try:
        configs = matrix.configs(feedstock, variant_file, doubts)
        notes = [*map(str, doubts.values())]
    except KilnError as error:
        names = feedstock.config_names
        if not (or_existing and names) or isinstance(error, (MalformedYaml, UnsafeTemplate)):
            raise
        configs = config_file.read_configs(feedstock, names)
        notes = [f"these are the configs of .ci_support, as last rerendered ({error.what})"]
    text = (
        json.dumps([config_as_data(config) for config in configs])
        if options.json
        else "\n".join(matrix_table_lines(configs, terminal_width(sys.stdout)))
    )
    return text, notes


def matrix_difference_text(options: argparse.Namespace, before: MatrixSource, after: MatrixSource) -> str:
    """Return the text of the differences from the matrix of an earlier tree."""
    from kiln.feedstock import matrix
    from kiln.recipe.feedstock import load

    configs = matrix.configs(load(after.root), after.pinning)
    changes = matrix_changes(matrix.configs(load(before.root), before.pinning), configs)
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
    from kiln.base.text import count_text, table

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
    from kiln.base.text import count_text

    for sign, names in (("+", changes["added"]), ("-", changes["removed"])):
        yield from (f"{sign} {name}" for name in names)
    for name, keys in changes["changed"].items():
        yield f"~ {name}"
        for key, (before, after) in keys.items():
            yield f"    {key}: {', '.join(before or ['(none)'])} -> {', '.join(after or ['(none)'])}"
    counts = {what: len(changes[what]) for what in ("added", "removed", "changed")}
    listed = ", ".join(f"{count} {what}" for what, count in counts.items() if count)
    yield f"{count_text(total, 'config')}; since {revision}: {listed or 'no change'}"
