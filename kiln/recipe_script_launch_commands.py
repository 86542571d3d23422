"""The shell lines that run a script of a recipe, whatever its interpreter."""

from __future__ import annotations

import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.model.rendered import Script

# The command of each interpreter, by its names in recipe.yaml, and the interpreters of files by their suffixes.
COMMANDS = {
    "bash": "bash -e",
    "python": "python",
    "perl": "perl",
    "rscript": "Rscript",
    "ruby": "ruby",
    "node": "node",
    "nodejs": "node",
    "nu": "nu",
    "nushell": "nu",
}
SUFFIXES = {".py": "python", ".pl": "perl", ".r": "rscript", ".rb": "ruby", ".js": "nodejs", ".nu": "nushell"}
_INLINE, _END = ".kiln-script", "KILN_END_OF_SCRIPT"
_UNTRACE = "{ case $- in *x*) kiln_trace=-x ;; *) kiln_trace=+x ;; esac; set +x; } 2>/dev/null"
_TRACE = 'set "$kiln_trace"; { unset kiln_trace; } 2>/dev/null'


def export_lines(environment: Mapping[str, str]) -> list[str]:
    """Return the shell lines that set variables."""
    return [f"export {name}={shlex.quote(value)}" for name, value in sorted(environment.items())]


def lines_without_shell_trace(lines: Iterable[str]) -> tuple[str, ...]:
    """Return shell lines that leave no trace of `set -x` in a build's output, which is the recipe's script alone."""
    content = tuple(lines)
    return (_UNTRACE, *content, _TRACE) if content else ()


def script_run_lines(script: Script, recipe_folder: Path) -> tuple[str, ...]:
    """Return the shell lines that run a script: a file of the recipe by its kind, or its lines."""
    entrance = export_lines(script.environment)
    if script.folder is not None:
        prefix = "" if PurePosixPath(script.folder).is_absolute() else '"$PREFIX"/'
        entrance.append(f"cd {prefix}{shlex.quote(script.folder)}")
    return (*entrance, *_script_commands(script, recipe_folder))


def _script_commands(script: Script, recipe_folder: Path) -> tuple[str, ...]:
    suffix = PurePosixPath(script.file or "").suffix.lower()
    interpreter = script.interpreter or SUFFIXES.get(suffix, "bash")
    command = shlex.join(script.program.split()) if script.program else COMMANDS[interpreter]
    if script.file is not None:
        return (f"{command} {shlex.quote(str(recipe_folder / script.file))}",)
    if interpreter == "bash" or not script.lines:
        return script.lines
    inline = "\n".join((f"cat >{_INLINE} <<'{_END}'", *script.lines, _END))
    # One item for each step: those of a test are counted.
    return (
        "\n".join(lines_without_shell_trace((inline,))),
        f"{command} {_INLINE}",
        "\n".join(lines_without_shell_trace((f"rm {_INLINE}",))),
    )
