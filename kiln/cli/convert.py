"""``kiln convert``: write recipe.yaml from meta.yaml, after a proof that both render to the same."""

from __future__ import annotations

import dataclasses
import json
import sys
from typing import TYPE_CHECKING

from kiln.base.errors import ConversionRefused
from kiln.base.text import first_of
from kiln.cli import pinning
from kiln.cli.main import make_pasteable

if TYPE_CHECKING:
    import argparse
    from collections.abc import Iterator
    from pathlib import Path

    from kiln.feedstock.convert.convert import Conversion
    from kiln.feedstock.convert.proof import Difference

_SHOWN = 40  # differences that are shown; the rest is counted
_LONGEST = 400  # characters of each side


def add_arguments(parser: argparse.ArgumentParser) -> None:
    """Add the arguments of ``kiln convert``."""
    parser.add_argument(
        "--check", action="store_true", help="write nothing; show the proof, and fail if the recipes would differ"
    )
    parser.add_argument(
        "--print", action="store_true", help="print the recipe.yaml instead of writing it, even if the recipes differ"
    )
    parser.add_argument("--json", action="store_true", help="print the proof as JSON")
    parser.add_argument(
        "--leave-out",
        action="append",
        default=[],
        metavar="SECTION/KEY",
        help="leave out a key that has no equivalent in recipe.yaml, such as about/doc_source_url; can be repeated",
    )
    parser.add_argument(
        "-e",
        dest="pinning",
        metavar="PINNING",
        help="expand both recipes with this variant file, or this version of conda-forge-pinning, instead of reading "
        "the configs of .ci_support",
    )


def run(options: argparse.Namespace, root: Path) -> int:
    """Convert the recipe and show the proof; write the files if it holds.

    Raises:
        ConversionRefused: if the recipe cannot be converted, or the recipes differ.
    """
    from kiln.feedstock.convert import convert
    from kiln.recipe.feedstock import load

    feedstock = load(root)
    conversion = convert.convert(
        feedstock,
        pinning.pinning_file_by_name(options.pinning) if options.pinning else None,
        leave_out=options.leave_out,
    )
    fault = failed_proof_error(conversion)
    if options.json:
        print(json.dumps(proof_as_json(conversion), indent=2))
    elif options.print:
        print(conversion.recipe, end="")
        print("\n".join(proof_lines(conversion)), file=sys.stderr)
    else:
        print("\n".join(proof_lines(conversion)))
    if fault:
        raise fault
    if not (options.check or options.print):
        convert.write_conversion(feedstock, conversion)
        print("wrote recipe/recipe.yaml, and conda_build_tool: rattler-build in conda-forge.yml", file=sys.stderr)
        next_step = "recipe/meta.yaml is not read any more: remove it, then run kiln rerender"
        print(make_pasteable(next_step, root), file=sys.stderr)
    return 0


def failed_proof_error(conversion: Conversion) -> ConversionRefused | None:
    """Return the error of a proof that does not hold; None if it does."""
    count = len(conversion.blocking_differences)
    if not count:
        return None
    return ConversionRefused(
        "recipe.yaml would not render to the same as meta.yaml, so nothing is written",
        why=f"{count} {'difference' if count == 1 else 'differences'}, shown above",
        hint="kiln convert --print shows the recipe.yaml; change these parts of meta.yaml, or convert them yourself",
    )


def proof_as_json(conversion: Conversion) -> dict[str, object]:
    """Return the proof as data for other programs."""
    proof = conversion.proof
    return {
        "holds": proof.holds,
        "configs": proof.configs,
        "packages": proof.packages,
        "equal_hashes": proof.equal_hashes,
        "differences": [dataclasses.asdict(item) for item in conversion.blocking_differences],
        "notes": list(proof.notes),
    }


def proof_lines(conversion: Conversion) -> Iterator[str]:
    """Yield the lines of a proof."""
    from kiln.base.text import count_text

    proof, differences = conversion.proof, conversion.blocking_differences
    for difference in differences[:_SHOWN]:
        yield from difference_lines(difference)
    if len(differences) > _SHOWN:
        yield f"... and {len(differences) - _SHOWN} more differences"
    yield from (f"note: {note}" for note in proof.notes)
    equal = "render to the same" if proof.holds else f"differ in {count_text(len(differences), 'point')}"
    counts = f"{count_text(proof.configs, 'config')}, {count_text(proof.packages, 'package')}"
    yield f"meta.yaml and recipe.yaml {equal}: {counts}"
    if proof.packages:
        yield f"build strings equal with their hashes: {proof.equal_hashes} of {proof.packages}"


def difference_lines(difference: Difference) -> Iterator[str]:
    """Yield the lines of a difference: old and new, and the first of the configs."""
    configs = difference.configs
    yield f"{difference.package}: {difference.what}" + (f"  ({first_of(configs, 1)})" if configs else "")
    for sign, side in (("-", difference.old), ("+", difference.new)):
        text = side if len(side) <= _LONGEST else f"{side[:_LONGEST]} ..."
        yield f"  {sign} {text}"
