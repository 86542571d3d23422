"""``kiln render``: every output of a cell, for people or for programs."""

from __future__ import annotations

import json
import textwrap
from typing import TYPE_CHECKING

from kiln.errors import UnknownConfig

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from kiln.model.rendered import Output, Rendered, Script

_WIDTH = 110
_TIED = "\N{NO-BREAK SPACE}"


def arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln render``."""
    parser.add_argument(
        "configs", nargs="*", metavar="CONFIG", help="cells by the names of their files in .ci_support (default: all)"
    )
    parser.add_argument("--json", action="store_true", help="one JSON object: {CONFIG: [output, ...]}")
    parser.add_argument(
        "--final", action="store_true", help="close the bounds that need no solver, such as pins between outputs"
    )


def run(options: argparse.Namespace, root: Path) -> int:
    """Render the cells and print them."""
    from kiln import expand, load, render

    feedstock = load.find(root)
    names = options.configs or sorted(path.stem for path in feedstock.configs.glob("*.yaml"))
    if not names:
        raise UnknownConfig("there is no cell in .ci_support", hint="kiln rerender writes them")
    cells = {name: expand.read(feedstock, name) for name in names}
    rendered = {name: render.render(feedstock, cell) for name, cell in cells.items()}
    if options.final:
        rendered = {name: render.finalise(found) for name, found in rendered.items()}
    if options.json:
        print(json.dumps({name: render.as_json(found) for name, found in rendered.items()}))
    else:
        print("\n\n".join("\n".join(shown(found)) for found in rendered.values()))
    return 0


def shown(rendered: Rendered) -> Iterator[str]:
    """A rendered cell as a maintainer reads it."""
    cell = rendered.cell
    yield f"{cell.name}  ({cell.platform}{f', {cell.image}' if cell.image else ''})"
    if not rendered.outputs:
        yield "  every output is skipped here"
    for source in rendered.sources:
        where = ", ".join(source.url) or source.git_url or source.path or ""
        yield from field("source", [where, *(f"patch {patch}" for patch in source.patches)])
    if rendered.compile.file or rendered.compile.lines:
        yield from field("compile", steps(rendered.compile))
    for output in rendered.outputs:
        yield ""
        yield from of_output(output)


def of_output(output: Output) -> Iterator[str]:
    """One output as a maintainer reads it."""
    yield f"  {output.name} {output.version} {output.build_string}  [{output.noarch or output.subdir}]"
    for section in ("build", "host", "run", "run_constrained"):
        yield from field(section.replace("run_constrained", "constrained"), list(getattr(output.requirements, section)))
    for kind, specs in output.run_exports.items():
        yield from field("run exports" if kind == "weak" else f"{kind} exports", list(specs))
    yield from field("features", list(output.track_features))
    yield from field("script", steps(output.script))
    yield from field("imports", list(output.tests.imports))
    yield from field("tests", list(output.tests.commands), apart=True)
    yield from field("hashed", [f"{key} {value}" for key, value in sorted(output.used.items())])


def steps(script: Script) -> list[str]:
    """A script's file, or its lines."""
    return [script.file] if script.file else list(script.lines)


def field(label: str, items: list[str], *, apart: bool = False) -> list[str]:
    """Labelled items, filled into lines or each on its own; nothing for no items."""
    if not items:
        return []
    lead = f"    {label:<12}"
    if apart:
        texts = [item.replace("\n", "\n" + " " * len(lead)) for item in items]
        return [(lead if not index else " " * len(lead)) + item for index, item in enumerate(texts)]
    whole = [item.replace(" ", _TIED) for item in items]  # a line never breaks inside a requirement
    lines = textwrap.wrap(
        ", ".join(whole),
        _WIDTH,
        initial_indent=lead,
        subsequent_indent=" " * len(lead),
        break_long_words=False,
        break_on_hyphens=False,
    )
    return [line.replace(_TIED, " ") for line in lines]
