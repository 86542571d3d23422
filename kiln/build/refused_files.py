"""Find the installed files with which conda-build refuses a package: a wrong version, and links to the build's folders.

Source: check_dist_info_version and check_symlinks in conda_build/post.py.
"""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.build.silently_omitted_files import files_of_packages

if TYPE_CHECKING:
    from collections.abc import Iterator

REFUSED = "the package would not work: "  # begins the error, by which its kind is known
SHOWN = 5  # faults in a message
_INFO, _METADATA = ".dist-info", "METADATA"


def faults(prefix: Path, *, name: str, version: str, build_folder: Path) -> tuple[str, ...]:
    """Return the faults of the files that a script installed, in the order of their names.

    ``build_folder`` is that of the engine, which is removed after the build. Files of the packages that were
    installed into the prefix before do not count.
    """
    others = files_of_packages(prefix)
    return tuple(sorted({*_versions(prefix, others, name, version), *_links(prefix, others, build_folder)}))


def message(reasons: tuple[str, ...]) -> str:
    """Return the error that names the faults."""
    more = f"; and {len(reasons) - SHOWN} more" if len(reasons) > SHOWN else ""
    return f"{REFUSED}{'; '.join(reasons[:SHOWN])}{more}"


def _versions(prefix: Path, others: frozenset[str], name: str, version: str) -> Iterator[str]:
    """Yield the record of Python's package of the same name, where it has another version."""
    for folder in prefix.glob(f"lib/python*/site-packages/*{_INFO}"):
        own = str((folder / _METADATA).relative_to(prefix))
        stem = folder.name.lower().removesuffix(_INFO)
        if own in others or not (prefix / own).is_file() or not stem.startswith(f"{name}-"):
            continue
        installed = stem.removeprefix(f"{name}-")
        if "-" not in installed and installed != version:
            yield f"{own} is of version {installed}, the package of version {version}"


def _links(prefix: Path, others: frozenset[str], build_folder: Path) -> Iterator[str]:
    """Yield the links to files of the build outside of the prefix."""
    real_prefix, real_folder = Path(os.path.realpath(prefix)), Path(os.path.realpath(build_folder))
    for folder, folders, names in os.walk(prefix):
        for path in (Path(folder, name) for name in (*folders, *names)):
            if not path.is_symlink() or str(path.relative_to(prefix)) in others:
                continue
            real = Path(os.path.realpath(path))
            if real.is_relative_to(real_folder) and not real.is_relative_to(real_prefix):
                place = path.relative_to(prefix)
                yield f"{place} is a link to {real.relative_to(real_folder)} in the build's folder, which is removed"
