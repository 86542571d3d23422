"""Shell lines that prepare the sources before an output's script: wheels unpacked, checkout marks removed."""

from __future__ import annotations

import shlex
from typing import TYPE_CHECKING

from kiln.archive_kinds import file_name_of_url, is_wheel
from kiln.build.sources_fetched_by_engine_or_kiln import is_unpacked_by_kiln

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from kiln.model.rendered import Source


def prepare_sources_lines(sources: Sequence[Source]) -> tuple[str, ...]:
    """Return the lines that leave the sources as conda-build has them when the script starts."""
    return (*unpack_wheels_lines(sources), *remove_checkout_marks_lines(sources))


def unpack_wheels_lines(sources: Iterable[Source]) -> tuple[str, ...]:
    """Return the lines that unpack wheels among the sources next to them, as conda-build does."""
    lines = []
    for source in sources:
        name = source.file_name or (file_name_of_url(source.url[0]) if source.url else "")
        if is_wheel(name) and not source.by_engine and not is_unpacked_by_kiln(source):
            folder = f"cd {shlex.quote(source.folder)} && " if source.folder else ""
            unpack = f'"$kiln_python" -m zipfile -e {shlex.quote(name)} .'
            lines.append(f"({folder}{unpack})")
    choice = (
        'for kiln_python in "$PREFIX/bin/python" "$BUILD_PREFIX/bin/python" python3; do',
        '  if command -v "$kiln_python" >/dev/null; then break; fi',
        "done",
    )
    return (*choice, *lines) if lines else ()


def remove_checkout_marks_lines(sources: Iterable[Source]) -> tuple[str, ...]:
    """Return the lines that remove the engine's mark of a finished checkout, ``.ok``, from git repositories.

    A repository's own file of that name stays.
    """
    lines = []
    for source in sources:
        if source.git_url is not None and not source.by_engine:
            folder = shlex.quote(source.folder or ".")
            lines.append(f"git -C {folder} ls-files --error-unmatch .ok >/dev/null 2>&1 || rm -f {folder}/.ok")
    return tuple(lines)
