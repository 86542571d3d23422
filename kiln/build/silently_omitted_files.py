"""Find the installed files that rattler-build leaves out of a package without a word, and conda-build packs.

Source: what rattler-build 0.73 did with a prefix that had them; see ``src/packaging/file_mapper.rs`` of rattler-build.
"""

from __future__ import annotations

import json
import os
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Iterator

SHOWN = 5  # files in a message
LEFT_OUT = "rattler-build leaves out "  # begins the error, by which its kind is known
_META = "conda-meta"
_TAG = "CACHEDIR.TAG"
_MODULES, _BINARIES = (".py", ".pyc"), (".so", ".pyd")


def left_out(prefix: Path) -> dict[str, str]:
    """Return the files that the engine leaves out of a package, with the reasons; tags of caches are not among them.

    Files of the packages that were installed into the prefix before the script ran do not count.
    """
    others = files_of_packages(prefix)
    return {name: why for name, why in sorted(_reasons(prefix)) if why != _TAG and name not in others}


def cache_tags(prefix: Path) -> tuple[str, ...]:
    """Return the tags of cache folders, which the engine leaves out, too; they have no content of their own."""
    others = files_of_packages(prefix)
    return tuple(name for name, why in sorted(_reasons(prefix)) if why == _TAG and name not in others)


def message(files: dict[str, str]) -> str:
    """Return the error that names the files and the reasons."""
    named = ", ".join(f"{name} ({why})" for name, why in list(files.items())[:SHOWN])
    return f"{LEFT_OUT}{named}{f' and {len(files) - SHOWN} more' if len(files) > SHOWN else ''}"


def _reasons(prefix: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, names in os.walk(prefix):
        place = Path(folder).relative_to(prefix)
        if not place.parts:
            folders[:] = [name for name in folders if name != _META]  # the engine's own records
        for name in names:
            beside = [Path(name).with_suffix(end) for end in _BINARIES]
            binary = next((other.name for other in beside if (Path(folder) / other).exists()), "")
            if _META in place.parts:
                yield str(place / name), f"it is in a folder {_META}"
            elif name == _TAG:
                yield str(place / name), _TAG
            elif Path(name).suffix in _MODULES and binary:
                yield str(place / name), f"{binary} is next to it"


def files_of_packages(prefix: Path) -> frozenset[str]:
    """Return the files of the packages in a prefix, by their records."""
    records = (json.loads(file.read_text(encoding="utf-8")) for file in (prefix / _META).glob("*.json"))
    return frozenset(name for record in records for name in record.get("files", ()))
