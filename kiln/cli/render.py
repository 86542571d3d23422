"""``kiln render``: show the outputs of configs, as text or as JSON."""

from __future__ import annotations

import json
import sys
import textwrap
from typing import TYPE_CHECKING

from kiln.cli.run_view_choice_and_printing import print_folded
from kiln.errors import UnknownConfig

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from kiln.model.rendered import Output, RenderedConfig, Script

_WIDTH = 110
_NBSP = "\N{NO-BREAK SPACE}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln render``."""
    parser.add_argument(
        "configs", nargs="*", metavar="CONFIG", help="name of a config's file in .ci_support (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="print a JSON object: {CONFIG: [output, ...]}")
    parser.add_argument(
        "--final", action="store_true", help="resolve the pins that need no solver, such as pins between outputs"
    )


def run(options: argparse.Namespace, root: Path) -> int:
    """Render the configs and print them; warnings about keys of the recipe go to standard error."""
    from kiln import limits

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
    from kiln import expand, feedstock_folder_check, render

    feedstock = feedstock_folder_check.load(root)
    names = options.configs or feedstock.config_names
    if not names:
        raise UnknownConfig("no configs in .ci_support", hint="kiln rerender writes them")
    configs = {name: expand.read_config(feedstock, name) for name in names}
    rendered = {name: render.render(feedstock, config) for name, config in configs.items()}
    warnings = tuple(dict.fromkeys(line for config in rendered.values() for line in render.key_fault_warnings(config)))
    if options.final:
        rendered = {name: render.close_static_pins(config) for name, config in rendered.items()}
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
    lead = f"    {label:<12}"
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
