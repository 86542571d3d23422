"""Share the compile step's work directory with the scripts of a recipe's outputs.

rattler-build gives every package a separate work directory. conda-build runs the scripts of all outputs in the one of
the recipe's own build step, so a script may rely on that step's files; here shell lines around the script change into
it. Nothing is copied: a compile's tree can have tens of gigabytes.

An output that inherits a staging output of recipe.yaml gets a copy, since its script must not see what another output's
has left. The copy is made only for outputs with a script, by reference where the file system can.
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


def record_compile_workdir_lines(folder: Path) -> tuple[str, ...]:
    """Return the lines that record the compile step's work directory, and the files of its prefix beforehand."""
    place = shlex.quote(str(folder))
    return (
        f'printf "%s\\n" "$SRC_DIR" >{place}/{WORK}',
        f'printf "%s\\n" "$PREFIX" >{place}/{PREFIX}',
        f'(cd "$PREFIX" && {_LIST}) >{place}/before',
    )


def archive_installed_files_lines(folder: Path) -> tuple[str, ...]:
    """Return the lines that archive the compile step's installed files, for outputs that only pick files."""
    place = shlex.quote(str(folder))
    return (
        f'(cd "$PREFIX" && {_LIST}) >{place}/after',
        f"LC_ALL=C comm -13 {place}/before {place}/after >{place}/new",
        f'tar -C "$PREFIX" -cf {place}/{INSTALLED} -T {place}/new',
    )


def enter_compile_workdir_lines(folder: Path, output: Output, top: str) -> tuple[str, ...]:
    """Return the lines that change to the work directory of the compile step in ``folder``, before an output's script.

    ``top`` is the name of the recipe itself.
    """
    place = shlex.quote(str(folder))
    enter = ('kiln_own="$PWD"', f'export SRC_DIR="$(cat {place}/{WORK})"', 'cd "$SRC_DIR"')
    return (*enter, *(_unpack_installed_files_lines(place) if packs_files_without_script(output, top) else ()))


def packs_files_without_script(output: Output, top: str) -> bool:
    """Return whether an output has no script, and takes files that the compile step installed.

    These are the files that it names, or all for the output named like the recipe (conda-build's ``build.build``).
    """
    return (bool(output.files) or output.name == top) and output.script.file is None and not output.script.lines


def copy_staging_workdir_lines(folder: Path, output: Output, licenses: Iterable[str]) -> tuple[str, ...]:
    """Return the lines that bring an output a copy of a staging output's work directory, and its installed files.

    The paths of the staging output's prefix and work directory become the output's, with unchanged times of files, so
    that a build tool finds nothing to do again. Sources of the output's own stay.
    """
    place = shlex.quote(str(folder))
    enter = (
        'kiln_own="$PWD"',
        f'kiln_work="$(cat {place}/{WORK})"',
        *_unpack_installed_files_lines(place, "--skip-old-files "),
    )
    tested = any(test.source_files for test in output.tests)
    if output.script.file is None and not output.script.lines and not tested:
        patterns = [shell_quoted_glob(pattern) for pattern in licenses]
        copies = (f"for kiln_file in {pattern}; do {_COPY_ONE}; done" for pattern in patterns)
        return (*enter, 'cd "$kiln_work"', *copies, 'cd "$SRC_DIR"')
    copied = _COPY_BESIDE if output.sources else _COPY
    return (*enter, copied, *_RELOCATE)


# The engine's own files in each work directory.
_ENGINES = ("conda_build.sh", "build_env.sh", "conda_build.log", ".source_info.json")
_COPY_ONE = 'if [ -e "$kiln_file" ]; then cp -r --parents -- "$kiln_file" "$kiln_own/"; fi'
_COPY = (
    f'find "$kiln_work" -mindepth 1 -maxdepth 1 {" ".join(f"! -name {name}" for name in _ENGINES)} '
    '-exec cp -a --reflink=auto -t "$SRC_DIR" {} +'
)
_COPY_BESIDE = (
    f'tar -C "$kiln_work" {" ".join(f"--exclude=./{name}" for name in _ENGINES)} -cf - . '
    '| tar -C "$SRC_DIR" --skip-old-files -xf -'
)
_RELOCATE = (
    "kiln_replace() {",
    '  while IFS= read -r -d "" kiln_file; do',
    '    touch -r "$kiln_file" "$kiln_own/.kiln-time"',
    '    LC_ALL=C sed -i "s|$1|$2|g" "$kiln_file"',
    '    touch -r "$kiln_own/.kiln-time" "$kiln_file"',
    "  done",
    "}",
    f'kiln_skip="{" ".join(f"--exclude={name}" for name in _ENGINES)}"',
    '{ grep -rlFZ $kiln_skip -e "$kiln_old" . || true; } | kiln_replace "$kiln_old" "$PREFIX"',
    '{ grep -rlIFZ $kiln_skip -e "$kiln_work" . || true; } | kiln_replace "$kiln_work" "$SRC_DIR"',
    'kiln_relink . "$kiln_work" "$SRC_DIR"',
    'kiln_relink . "$kiln_old" "$PREFIX"',
    'rm -f "$kiln_own/.kiln-time" "$kiln_own/.kiln-relocated"',
)
# Have the absolute links of a folder that lead into an old folder lead into a new one.
_RELINK = (
    "kiln_relink() {",
    '  find "$1" -type l -lname "$2/*" -print0 | while IFS= read -r -d "" kiln_file; do',
    '    kiln_aim="$(readlink "$kiln_file")"',
    '    ln -sfn "$3${kiln_aim#"$2"}" "$kiln_file"',
    "  done",
    "}",
)


def copy_test_sources_lines(patterns: Iterable[str], place: Path) -> tuple[str, ...]:
    """Return the lines that copy the source files of a test to ``place``; globs are the shell's.

    The engine's own files among them hold paths of this machine.
    """
    target = shlex.quote(str(place))
    copies = (f"cp -r --parents -- {shell_quoted_glob(pattern)} {target}/" for pattern in patterns)
    return (f"rm -rf {target}", f"mkdir -p {target}", *copies, f"(cd {target} && rm -f {' '.join(_ENGINES)})")


def shell_quoted_glob(pattern: str) -> str:
    """Return a pattern as the shell expands it, all but its wildcards quoted."""
    return re.sub(r"[^*?\[\]]+", lambda part: shlex.quote(part[0]), pattern)


def copy_licenses_to_engine_lines(licenses: Iterable[str]) -> tuple[str, ...]:
    """Return the lines that copy licenses to the engine's own work directory, where it looks for them."""
    return tuple(
        f'if [ -e {name} ] && [ "$kiln_own" != "$PWD" ]; then cp -r --parents {name} "$kiln_own/"; fi'
        for name in map(shlex.quote, licenses)
    )


def _unpack_installed_files_lines(place: str, options: str = "") -> tuple[str, ...]:
    """Return the lines that unpack the compile step's files and relocate them; prefixes are padded to equal length.

    ``options`` are tar's: with ``--skip-old-files``, files of the packages in the prefix stay.
    """
    return (
        f'kiln_old="$(cat {place}/{PREFIX})"',
        f'tar -C "$PREFIX" {options}-xf {place}/{INSTALLED}',
        'cd "$PREFIX"',
        f'{{ xargs -r -d "\\n" grep -lF -e "$kiln_old" -- <{place}/new || true; }} >"$kiln_own/.kiln-relocated"',
        'xargs -r -d "\\n" sed -i --follow-symlinks "s|$kiln_old|$PREFIX|g" <"$kiln_own/.kiln-relocated"',
        *_RELINK,
        'kiln_relink "$PREFIX" "$kiln_old" "$PREFIX"',
        'cd "$SRC_DIR"',
    )
