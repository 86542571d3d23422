"""The files that ``about`` names and a package carries in ``info``: a readme, messages, and the log of the recipe.

Source: copy_readme, copy_prelink_message and copy_recipe_log in conda_build/build.py. Licenses are the engine's.
"""

from __future__ import annotations

import shlex
from pathlib import Path, PurePosixPath
from typing import TYPE_CHECKING

from kiln.errors import RecipeFault

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.model.rendered import Output

MESSAGES, LOG = "prelink_messages", "recipe_log.json"
# The names in ``info`` that have a meaning of their own, which no readme may have.
_RESERVED = frozenset(
    {
        *("about.json", "files", "git", "has_prefix", "hash_input.json", "index.json", "link.json", "no_link"),
        *("paths.json", "run_exports.json", "licenses", "recipe", "repodata_record.json", "test", "tests"),
        *(MESSAGES, LOG),
    }
)


def copy_about_files_lines(output: Output, recipe_folder: Path, place: Path) -> tuple[str, ...]:
    """Return the lines that copy the files of ``about`` to a folder, from the work directory or from the recipe.

    Raises:
        RecipeFault: a readme is not a file of the sources by its name, or has a name of the package's metadata.
    """
    target, lines = (
        shlex.quote(str(place)),
        [*_copy_readme_lines(output), *_copy_prelink_message_lines(output, recipe_folder)],
    )
    log = output.about_texts("recipe_log_file") or (LOG,)
    lines += [
        f"for kiln_file in {shlex.quote(str(recipe_folder / log[0]))} {shlex.quote(log[0])}; do",
        f'  if [ -f "$kiln_file" ]; then cp "$kiln_file" "$kiln_about/{LOG}"; break; fi',
        "done",
    ]
    return (f"kiln_about={target}", 'rm -rf "$kiln_about"; mkdir -p "$kiln_about"', *lines)


def _copy_readme_lines(output: Output) -> Iterator[str]:
    for name in output.about_texts("readme"):
        path = PurePosixPath(name)
        if path.is_absolute() or ".." in path.parts or {*path.parts[:1]} <= _RESERVED:
            raise RecipeFault(
                f"{output.name}: about/readme is {name[:80]!r}",
                why="the file gets this name in the package's metadata, next to its own files",
                hint="README.md, README.rst or README, a file of the sources",
            )
        quoted = shlex.quote(name)
        yield f'[ -f {quoted} ] || {{ echo "about/readme is not in the sources: "{quoted} >&2; exit 1; }}'
        yield f'cp --parents {quoted} "$kiln_about/"'


def _copy_prelink_message_lines(output: Output, recipe_folder: Path) -> Iterator[str]:
    """Yield the lines for messages, files or folders; one by an absolute path, or a dotted one, is numbered."""
    number = 0
    for name in output.about_texts("prelink_message"):
        own, target = shlex.quote(name), f'"$kiln_about"/{MESSAGES}/{shlex.quote(name)}'
        yield f"kiln_file={own}; [ -e {own} ] || kiln_file={shlex.quote(str(recipe_folder / name))}"
        missing = f'echo "about/prelink_message is neither in the sources nor in the recipe: "{own} >&2'
        yield f'[ -e "$kiln_file" ] || {{ {missing}; exit 1; }}'
        if name.startswith(("/", ".")) or ".." in PurePosixPath(name).parts:
            target = f'"$kiln_about"/{MESSAGES}/PRELINK_MESSAGE{number}"$([ -d "$kiln_file" ] || echo .txt)"'
            number += 1
        yield f'mkdir -p "$(dirname {target})"; cp -RL "$kiln_file" {target}'
