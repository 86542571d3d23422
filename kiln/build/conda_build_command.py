"""Plan a call of conda-build, or of boa's mambabuild, as conda-forge's build steps call them: texts, nothing is run.

The steps of conda-smithy's build_steps.sh and conda-forge-ci-setup are done here without them: conda's settings,
the clobber file for the build number, and the command line. The engine renders the recipe itself, and tests the
packages.
"""

from __future__ import annotations

import json
import re
import shlex
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.build import rattler_build_failure_kinds
from kiln.errors import (
    BuildFailed,
    DownloadFailed,
    HashMismatch,
    KilnError,
    SolveFailed,
    TestsFailed,
    program_output_with_margin,
)

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.rendered import RenderedConfig

PROGRAMS = {"conda-build": "conda-build", "mambabuild": "conda-mambabuild"}
PACKAGES = {"conda-build": "conda-build", "mambabuild": "boa"}
NO_ENGINE = 97  # the script's exit code when the engine is not there
TRACEBACK = "Traceback (most recent call last):"
CHAINED = ("During handling of the above", "The above exception was the direct cause")
RAISED = re.compile(r"[A-Za-z_][\w.]*(?:Error|Exception|Exit|NotFound|InvalidMatchSpec|Interrupt)\b(?:: |$)")
SAID = 8  # lines of a script, or of an error message, that are shown
# Patterns of the last exceptions of conda, conda-build and boa; the first match decides the kind.
KINDS = (
    (
        r"SHA256 mismatch|MD5 mismatch|hash mismatch|ChecksumMismatchError",
        HashMismatch,
        rattler_build_failure_kinds.HASH.hint,
    ),
    (
        r"CondaHTTPError|CondaSSLError|CONNECTION FAILED|Could not download|Download error \(|downloading repodata",
        DownloadFailed,
        rattler_build_failure_kinds.NETWORK.hint,
    ),
    (
        r"Unsatisfiable|(?<!metadata\.)PackageNotFound|PackagesNotFound|nothing provides",  # not importlib.metadata's
        SolveFailed,
        rattler_build_failure_kinds.PACKAGES.hint,
    ),
    (r"TESTS FAILED", TestsFailed, "--keep-failed leaves the work directory"),
)
# The last lines with which conda-build until 24.5 and boa exit without an exception.
PLAIN_EXIT = re.compile(r"^(?:TESTS FAILED: |Download error \(|(?:\w+: )?Error downloading repodata)")
MODERN = 1000  # conda-forge's build numbers from here on are those of its own compilers


@dataclass(frozen=True, slots=True, kw_only=True)
class CondaBuildCall:
    """The paths and settings of an engine's run, all paths as the engine sees them.

    ``croot`` is its working folder and holds its packages, ``fetched`` the folder of the packages that it fetches, and
    of its own packages while they are tested. ``cache`` holds the packages fetched by other configs. ``channels`` are
    in order of priority, ``settings`` are conda-build's own. A build for CUDA assumes a driver for the version ``cuda``
    and GPUs of the capability ``cuda_arch``, on every machine. The packages of a ``cross``-compiled config are not
    tested. ``subdir`` is that of the machine that builds.
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
    cross: bool = False
    subdir: str = "linux-64"


def build_command_line(call: CondaBuildCall) -> tuple[str, ...]:
    """Return the engine's command line."""
    return (
        PROGRAMS[call.engine],
        str(call.recipe),
        *("-m", str(call.variant_file)),
        "--suppress-variables",
        *("--clobber-file", str(call.clobber_file)),
        "--extra-meta",
        *(f"{name}={value}" for name, value in call.extra.items()),
        *(("--no-test",) if call.cross else ()),
    )


def debug_command_line(call: CondaBuildCall, output: str) -> tuple[str, ...]:
    """Return the command line that prepares an output to be built by hand: conda-build's, since boa has none.

    ``output`` is a pattern; an empty one leaves the choice to conda-build. Source: ``conda debug`` in conda-smithy's
    build_steps.sh.
    """
    return (
        *("conda", "debug", str(call.recipe)),
        *("-m", str(call.variant_file)),
        *(("--output-id", output) if output else ()),
        *("--clobber-file", str(call.clobber_file)),
    )


def engine_bash_script(call: CondaBuildCall, *, debug: str | None = None) -> str:
    """Return the bash script that enters conda's base environment, where there is one, and runs the engine.

    With ``debug``, an output's pattern or an empty text, prepare that output and open a shell in its work directory,
    with its environment.
    """
    program = PROGRAMS[call.engine] if debug is None else "conda-debug"
    last: tuple[str, ...] = (f"exec {shlex.join(build_command_line(call))}",)
    if debug is not None:
        shell = "if [ -t 0 ]; then exec bash -i; else exec bash -s; fi"
        ready = f"{shlex.join(debug_command_line(call, debug))} </dev/null"
        last = (ready, 'cd "$CONDA_BLD_PATH"/debug_*/work', "set +euo pipefail; . ./build_env_setup.sh", shell)
    return "\n".join(
        (
            "set -euo pipefail",
            "unset PYTHONPATH PYTHONDONTWRITEBYTECODE",  # they are for kiln's own processes
            *(f"export {name}={shlex.quote(value)}" for name, value in conda_build_environment(call).items()),
            "if [ -e /opt/conda/etc/profile.d/conda.sh ]; then",
            "    set +u; . /opt/conda/etc/profile.d/conda.sh; conda activate base; set -u",
            "fi",
            f"command -v {program} >/dev/null || exit {NO_ENGINE}",
            # conda deletes by way of a folder in the current one: two engines in the same folder would race there.
            f"cd {shlex.quote(str(call.condarc.parent))}",
            *last,
            "",
        )
    )


def conda_build_environment(call: CondaBuildCall) -> dict[str, str]:
    """Return the environment variables of conda and the engine.

    Source: conda-smithy's build_steps.sh, and ``run_conda_forge_build_setup_linux`` of conda-forge-ci-setup.
    """
    cuda = {"CONDA_OVERRIDE_CUDA": call.cuda, "CONDA_OVERRIDE_CUDA_ARCH": call.cuda_arch if call.cuda else None}
    return {
        "CONDARC": str(call.condarc),
        "CONDA_SUBDIR": call.subdir,
        "CONDA_BLD_PATH": str(call.croot),
        "CONDA_LIBMAMBA_SOLVER_NO_CHANNELS_FROM_INSTALLED": "1",
        "PYTHONUNBUFFERED": "1",
        **{name: value for name, value in cuda.items() if value is not None},
    }


def error_from_engine_output(engine: str, exit_code: int, output: str) -> KilnError:
    """Return why an engine failed, from the end of its ``output``: the last lines of the script, and the exceptions.

    The engine is written in Python: some forty lines of traceback follow the output of a script or a test.
    """
    output_lines, raised = _split_output_at_exceptions(output.splitlines())
    if not raised:
        raised = [line for line in output_lines[-SAID:] if PLAIN_EXIT.match(line.strip())]
        output_lines = [line for line in output_lines if line not in raised]
    text = "\n".join(raised)
    why = program_output_with_margin("\n".join((*output_lines[-SAID:], *raised[-SAID:])))
    if rattler_build_failure_kinds.DISK.words.search(text):
        return rattler_build_failure_kinds.DISK.error(
            f"{engine} ended with exit code {exit_code}", why=why, hint=rattler_build_failure_kinds.DISK.hint
        )
    kinds = ((error, hint) for words, error, hint in KINDS if re.search(words, text, re.IGNORECASE))
    error, hint = next(kinds, (BuildFailed, ""))
    return error(f"{engine} ended with exit code {exit_code}", why=f"it said\n{why}", hint=hint)


def _split_output_at_exceptions(lines: list[str]) -> tuple[list[str], list[str]]:
    """Return the lines before the last chain of exceptions, and the messages of these; all lines without any."""
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


def condarc_content(call: CondaBuildCall) -> str:
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


def clobber_file_text(rendered: RenderedConfig) -> str:
    """Return the clobber file: the build number without the variant's decrement, or an empty mapping.

    Only conda-forge's old compilers had a decrement; a number below 1000 is theirs already, and stays.
    """
    text = rendered.config.variant.get("build_number_decrement", ("0",))[0]
    decrement = int(text) if text.isdecimal() else 0
    numbers = {output.build_number for output in rendered.outputs if not output.skip}
    if not decrement or len(numbers) != 1:
        return "{}\n"
    (number,) = numbers
    return json.dumps({"build": {"number": number - decrement if number >= MODERN else number}}) + "\n"
