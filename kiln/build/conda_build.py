"""conda-build, and boa's mambabuild, called as conda-forge's build steps call them: decided purely, as texts.

What conda-smithy's build_steps.sh and conda-forge-ci-setup do for a cell is done here without them: conda's settings,
the clobber file for the build number, and the command line. The engine renders the recipe itself, and tests what it
made.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.build import faults
from kiln.errors import BuildFailed, DownloadFailed, HashMismatch, KilnError, SolveFailed, TestsFailed, excerpt

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.cell import Cell
    from kiln.model.rendered import Rendered

PROGRAMS = {"conda-build": "conda-build", "mambabuild": "conda-mambabuild"}
PACKAGES = {"conda-build": "conda-build", "mambabuild": "boa"}
MISSING = 97  # the script's exit code when the engine is not there
TRACEBACK = "Traceback (most recent call last):"
CHAINED = ("During handling of the above", "The above exception was the direct cause")
RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|NotFound|InvalidMatchSpec|Interrupt)\b(?:: |$)")
SAID = 8  # lines of a script, or of an error message, that are shown
# What conda, conda-build and boa say in their last exceptions; the first that fits tells the kind.
KINDS = (
    (r"SHA256 mismatch|MD5 mismatch|hash mismatch|ChecksumMismatchError", HashMismatch, faults.HASH.hint),
    (r"CondaHTTPError|CondaSSLError|CONNECTION FAILED|Could not download", DownloadFailed, faults.NETWORK.hint),
    (r"Unsatisfiable|PackageNotFound|PackagesNotFound|nothing provides", SolveFailed, faults.PACKAGES.hint),
    (r"TESTS FAILED", TestsFailed, "--keep-failed leaves the work directory"),
)
MODERN = 1000  # conda-forge's build numbers from here on are those of its own compilers


@dataclass(frozen=True, slots=True, kw_only=True)
class Call:
    """Where an engine finds and leaves things, all paths as it sees them.

    ``croot`` is where it works and leaves its packages, ``fetched`` where it puts what it fetches, its own packages for
    their tests among them. In ``cache`` lies what other cells have fetched. ``channels`` are the most wanted first,
    ``settings`` conda-build's own. A build for CUDA counts on a driver for the version ``cuda``, and on GPUs of the
    capability ``cuda_arch``, wherever it is made.
    """

    engine: str
    recipe: Path
    variant_file: Path
    clobber_file: Path
    condarc: Path
    croot: Path
    fetched: Path
    cache: Path
    channels: tuple[str, ...]
    channel_priority: str
    settings: Mapping[str, str]
    solver: str | None
    cuda: str | None
    cuda_arch: str | None
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

    With ``debug``, an output's pattern or nothing, that output is made ready, and a shell is opened in its work
    directory, with its environment.
    """
    program = PROGRAMS[call.engine] if debug is None else "conda-debug"
    last: tuple[str, ...] = (f"exec {shlex.join(argv(call))}",)
    if debug is not None:
        shell = "if [ -t 0 ]; then exec bash -i; else exec bash -s; fi"
        ready = f"{shlex.join(debug_argv(call, debug))} </dev/null"
        last = (ready, 'cd "$CONDA_BLD_PATH"/debug_*/work', "set +euo pipefail; . ./build_env_setup.sh", shell)
    return "\n".join(
        (
            "set -euo pipefail",
            "unset PYTHONPATH PYTHONDONTWRITEBYTECODE",  # they are for kiln's own processes
            *(f"export {name}={shlex.quote(value)}" for name, value in environment(call).items()),
            "if [ -e /opt/conda/etc/profile.d/conda.sh ]; then",
            "    set +u; . /opt/conda/etc/profile.d/conda.sh; conda activate base; set -u",
            "fi",
            f"command -v {program} >/dev/null || exit {MISSING}",
            *last,
            "",
        )
    )


def environment(call: Call) -> dict[str, str]:
    """Return what conda and the engine find in their environment.

    Source: conda-smithy's build_steps.sh, and ``run_conda_forge_build_setup_linux`` of conda-forge-ci-setup.
    """
    cuda = {"CONDA_OVERRIDE_CUDA": call.cuda, "CONDA_OVERRIDE_CUDA_ARCH": call.cuda_arch if call.cuda else None}
    return {
        "CONDARC": str(call.condarc),
        "CONDA_SUBDIR": "linux-64",
        "CONDA_BLD_PATH": str(call.croot),
        "CONDA_LIBMAMBA_SOLVER_NO_CHANNELS_FROM_INSTALLED": "1",
        "PYTHONUNBUFFERED": "1",
        **{name: value for name, value in cuda.items() if value is not None},
    }


def failure(engine: str, exit_code: int, output: str) -> KilnError:
    """Return why an engine ended, by the end of its ``output``: what it said last, and its exceptions alone.

    It is written in Python, and what a script or a test said stands before some forty lines of calls.
    """
    said, raised = _parted(output.splitlines())
    told = "\n".join(raised)
    why = excerpt("\n".join((*said[-SAID:], *raised[-SAID:])))
    if faults.DISK.words.search(told):
        return faults.DISK.error(f"{engine} ended with exit code {exit_code}", why=why, hint=faults.DISK.hint)
    found = ((error, hint) for words, error, hint in KINDS if re.search(words, told, re.IGNORECASE))
    error, hint = next(found, (BuildFailed, ""))
    return error(f"{engine} ended with exit code {exit_code}", why=f"it said\n{why}", hint=hint)


def _parted(lines: list[str]) -> tuple[list[str], list[str]]:
    """What stands before the last exception and those that led to it, and what these say; no exceptions, no parting."""
    starts = [index for index, line in enumerate(lines) if line == TRACEBACK]
    if not starts:
        return lines, []
    first = starts.pop()
    while starts and any(line.startswith(CHAINED) for line in lines[max(0, first - 2) : first]):
        first = starts.pop()
    raised: list[str] = []
    open_message = False
    for line in lines[first:]:
        starting = RAISED.match(line) is not None
        open_message = starting or (open_message and line != TRACEBACK and not line.startswith(CHAINED))
        if open_message and line.strip():
            raised.append(line)
    return lines[:first], raised


def condarc(call: Call) -> str:
    """Return conda's settings, as JSON, which is YAML too."""
    settings = {
        "conda-build": {"root-dir": str(call.croot), **call.settings},
        "pkgs_dirs": [str(call.fetched), str(call.cache), "/opt/conda/pkgs"],
        "channels": list(call.channels),
        "default_channels": [],
        "channel_priority": call.channel_priority,
        "show_channel_urls": True,
        "auto_update_conda": False,
        "add_pip_as_python_dependency": False,
        "aggressive_update_packages": ["ca-certificates", "certifi"],
        **({"solver": call.solver} if call.solver else {}),
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
