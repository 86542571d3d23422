"""The cache of unpacked packages, whose files prefixes have as hard links: what a script has changed there is removed.

A prefix with its own copies would need no check. But those for CUDA have gigabytes and 100,000 files, which hard links
bring in a second or two; so what is shared is looked at once the script has ended, at 10 microseconds for each file. No
script of an output sees what another has changed; only while it runs may it see what one of another config does to a
package that both have in their prefixes.
"""

from __future__ import annotations

import json
import stat
from typing import TYPE_CHECKING, Any

from kiln.base.files import remove, sha256
from kiln.base.system import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator
    from pathlib import Path


def discard_damaged_entries(cache: Path, prefixes: Iterable[Path]) -> tuple[str, ...]:
    """Remove the packages of a cache of which a file was changed through a prefix, and return what was changed.

    They are fetched or unpacked anew when they are needed again. A changed file is not as its package lists it; it is
    read only where it has another size, or was written after it was unpacked. A script may have written anything into
    the prefix, of which the names of the packages count alone: nothing outside the cache is removed.
    """
    names = {record.stem for prefix in prefixes for record in (prefix / "conda-meta").glob("*.json")}
    folders = sorted(cache.iterdir()) if names and cache.is_dir() else []
    entries = [entry for entry in folders if entry.is_dir() and not entry.is_symlink()]
    damaged = {
        entry: next(_changed_files(entry), "")
        for entry in entries
        if entry.name in names or entry.name.rpartition("-")[0] in names  # the name may end in a hash of the origin
    }
    for entry in (entry for entry, file in damaged.items() if file):
        with entry.with_name(f"{entry.name}.lock").open("ab") as lock:  # rattler's, held while it installs the package
            files.acquire_lock(lock.fileno(), wait=True)
            remove(entry)
    return tuple(f"{file} of {entry.name}" for entry, file in damaged.items() if file)


def _changed_files(entry: Path) -> Iterator[str]:
    """Yield the files of an unpacked package that are not as it lists them; none without a list."""
    try:
        listed: list[dict[str, Any]] = json.loads((entry / "info" / "paths.json").read_bytes())["paths"]
        unpacked = (entry / "info" / "index.json").stat().st_ctime_ns  # no prefix has a link to it
    except (OSError, ValueError, KeyError):  # an old package, or one that is being unpacked
        return
    for item in listed:
        file = entry / item["_path"]
        try:
            status = file.lstat()
        except FileNotFoundError:
            yield item["_path"]
            continue
        is_as_unpacked = status.st_size == item.get("size_in_bytes") and status.st_mtime_ns <= unpacked
        if stat.S_ISREG(status.st_mode) and not is_as_unpacked and sha256(file) != item.get("sha256"):
            yield item["_path"]
