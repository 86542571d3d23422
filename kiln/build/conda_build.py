"""conda-build, and boa's mambabuild, called as conda-forge's build steps call them: decided purely, as texts.

What conda-smithy's build_steps.sh and conda-forge-ci-setup do for a cell is done here without them: conda's settings,
the clobber file for the build number, and the command line. The engine renders the recipe itself, and tests what it
made.
"""

from __future__ import annotations

import json
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.cell import Cell
    from kiln.model.rendered import Rendered

PROGRAMS = {"conda-build": "conda-build", "mambabuild": "conda-mambabuild"}
PACKAGES = {"conda-build": "conda-build", "mambabuild": "boa"}
MISSING = 97  # the script's exit code when the engine is not there
MODERN = 1000  # conda-forge's build numbers from here on are those of its own compilers


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Where an engine finds and leaves things, all paths as it sees them.

    ``croot`` is where it works and leaves its packages, ``channels`` are the most wanted first.
    """

    engine: str
    recipe: Path
    variant_file: Path
    clobber_file: Path
    condarc: Path
    croot: Path
    cache: Path
    channels: tuple[str, ...]
    extra: Mapping[str, str]


def argv(call: Call) -> tuple[str, ...]:
    """Return the engine's command line."""
    return (
        PROGRAMS[call.engine],
        str(call.recipe),
        *("-m", str(call.variant_file)),
        "--suppress-variables",
        *("--clobber-file", str(call.clobber_file)),
        "--extra-meta",
        *(f"{name}={value}" for name, value in call.extra.items()),
    )


def debug_argv(call: Call, output: str) -> tuple[str, ...]:
    """Return the command line that makes an output ready to be built by hand: conda-build's, boa has none of its own.

    ``output`` is a pattern; nothing leaves the choice to conda-build. Source: ``conda debug`` in conda-smithy's
    build_steps.sh.
    """
    return (
        *("conda", "debug", str(call.recipe)),
        *("-m", str(call.variant_file)),
        *(("--output-id", output) if output else ()),
        *("--clobber-file", str(call.clobber_file)),
    )


def script(call: Call, *, debug: str | None = None) -> str:
    """Return the bash script that enters conda's base environment, where there is one, and runs the engine.

    With ``debug``, an output's pattern or nothing, that output is made ready, and a shell is opened.
    """
    program = PROGRAMS[call.engine] if debug is None else "conda-debug"
    last: tuple[str, ...] = (f"exec {shlex.join(argv(call))}",)
    if debug is not None:
        shell = "if [ -t 0 ]; then exec bash -i; else exec bash -s; fi"
        last = (f"{shlex.join(debug_argv(call, debug))} </dev/null", shell)
    return "\n".join(
        (
            "set -euo pipefail",
            f"export CONDARC={shlex.quote(str(call.condarc))} CONDA_SUBDIR=linux-64",
            "if [ -e /opt/conda/etc/profile.d/conda.sh ]; then",
            "    set +u; . /opt/conda/etc/profile.d/conda.sh; conda activate base; set -u",
            "fi",
            f"command -v {program} >/dev/null || exit {MISSING}",
            *last,
            "",
        )
    )


def condarc(call: Call) -> str:
    """Return conda's settings, as JSON, which is YAML too."""
    settings = {
        "conda-build": {"root-dir": str(call.croot), "pkg_format": "2"},
        "pkgs_dirs": [str(call.cache), "/opt/conda/pkgs"],
        "channels": list(call.channels),
        "default_channels": [],
        "channel_priority": "strict",
        "show_channel_urls": True,
    }
    return json.dumps(settings, indent=2)


def clobber(rendered: Rendered) -> str:
    """Return the clobber file: the build number without the variant's decrement, else nothing that it would change.

    Only conda-forge's old compilers had a decrement; a number below 1000 is theirs already, and stays.
    """
    decrement = _decrement(rendered.cell)
    numbers = {output.build_number for output in rendered.outputs if not output.skip}
    if not decrement or len(numbers) != 1:
        return "{}\n"
    (number,) = numbers
    return json.dumps({"build": {"number": number - decrement if number >= MODERN else number}}) + "\n"


def _decrement(cell: Cell) -> int:
    given = cell.variant.get("build_number_decrement", ("0",))[0]
    return int(given) if given.isdecimal() else 0
