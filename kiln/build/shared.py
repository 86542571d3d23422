"""The work directory that a recipe's outputs share: what the compile step leaves there, and how a script finds it.

rattler-build gives every package a work directory of its own. conda-build runs the scripts of all outputs in the one
where the recipe's own build step ran, so a script may count on what that step left; here it is led there by shell lines
around it. Nothing is copied: a compile's tree can have tens of gigabytes.
"""

from __future__ import annotations

import re
import shlex
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kiln.model.rendered import Output

WORK, PREFIX, INSTALLED = "work_directory", "prefix", "installed.tar"
_LIST = "find . -mindepth 1 ! -type d | LC_ALL=C sort"


def before_compile(folder: Path) -> tuple[str, ...]:
    """Return the lines that note down where the compile step works, and what its prefix holds beforehand."""
    place = shlex.quote(str(folder))
    return (
        f'printf "%s\\n" "$SRC_DIR" >{place}/{WORK}',
        f'printf "%s\\n" "$PREFIX" >{place}/{PREFIX}',
        f'(cd "$PREFIX" && {_LIST}) >{place}/before',
    )


def after_compile(folder: Path) -> tuple[str, ...]:
    """Return the lines that keep what the compile step installed, for outputs that only pick files of it."""
    place = shlex.quote(str(folder))
    return (
        f'(cd "$PREFIX" && {_LIST}) >{place}/after',
        f"LC_ALL=C comm -13 {place}/before {place}/after >{place}/new",
        f'tar -C "$PREFIX" -cf {place}/{INSTALLED} -T {place}/new',
    )


def before_output(folder: Path, output: Output, top: str) -> tuple[str, ...]:
    """Return the lines that lead an output's script into the work directory of the compile step in ``folder``.

    ``top`` is the name of the recipe itself.
    """
    place = shlex.quote(str(folder))
    enter = ('kiln_own="$PWD"', f'export SRC_DIR="$(cat {place}/{WORK})"', 'cd "$SRC_DIR"')
    return (*enter, *(_installed(place) if picks_files(output, top) else ()))


def picks_files(output: Output, top: str) -> bool:
    """Whether an output has no script, and takes files that the compile step installed.

    They are those that it names, or all for the one that is named as the recipe is (conda-build's ``build.build``).
    """
    return (bool(output.files) or output.name == top) and output.script.file is None and not output.script.lines


def kept_sources(patterns: Iterable[str], place: Path) -> tuple[str, ...]:
    """Return the lines that keep, in ``place``, what a test wants out of the work directory; globs are the shell's."""
    kept = shlex.quote(str(place))
    copies = (f"cp -r --parents -- {glob(pattern)} {kept}/" for pattern in patterns)
    return (f"rm -rf {kept}", f"mkdir -p {kept}", *copies)


def glob(pattern: str) -> str:
    """Return a pattern as the shell expands it, all but its wildcards quoted."""
    return re.sub(r"[^*?\[\]]+", lambda part: shlex.quote(part[0]), pattern)


def after_output(licences: Iterable[str]) -> tuple[str, ...]:
    """Return the lines that put licences where the engine looks for them: its own work directory."""
    return tuple(
        f'if [ -e {name} ] && [ "$kiln_own" != "$PWD" ]; then cp -r --parents {name} "$kiln_own/"; fi'
        for name in map(shlex.quote, licences)
    )


def _installed(place: str) -> tuple[str, ...]:
    """Unpack what the compile step installed; both prefixes are padded to the same length, so also in binaries."""
    return (
        f'kiln_old="$(cat {place}/{PREFIX})"',
        f'tar -C "$PREFIX" -xf {place}/{INSTALLED}',
        'cd "$PREFIX"',
        f'{{ xargs -r -d "\\n" grep -lF -e "$kiln_old" -- <{place}/new || true; }} >"$kiln_own/.kiln-relocated"',
        'xargs -r -d "\\n" sed -i "s|$kiln_old|$PREFIX|g" <"$kiln_own/.kiln-relocated"',
        'cd "$SRC_DIR"',
    )
