"""The files that a script may leave in its prefix and a package cannot have, found before the engine packs them.

- FIFOs, sockets and devices: rattler-build opens each file of the prefix to hash it, and waits for ever for the other
  end of a FIFO (0.73).
- Files that rattler-build leaves out without a word, and conda-build packs. Source: what rattler-build 0.73 did with a
  prefix that had them; see ``src/packaging/file_mapper.rs`` of rattler-build.
- Files with which conda-build refuses a package: a wrong version, and links to the build's folders. Source:
  check_dist_info_version and check_symlinks in conda_build/post.py.
"""

from __future__ import annotations

import json
import os
import shlex
import stat
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import files

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Sequence

# Each begins an error, by which its kind is known.
SPECIAL = "the script left in its prefix what no package can contain: "
LEFT_OUT = "rattler-build leaves out "
UNUSABLE = "the package would not work: "
SHOWN = 5  # files in a message
LIST = "special-files"  # in a step's folder: the kind and the path of each, ended by null characters
_SPECIAL_KINDS = {"p": "FIFO", "s": "socket", "b": "device", "c": "device"}  # by find's letters
_SPECIAL_TESTS = {"p": stat.S_ISFIFO, "s": stat.S_ISSOCK, "b": stat.S_ISBLK, "c": stat.S_ISCHR}
_META = "conda-meta"
_TAG = "CACHEDIR.TAG"
_MODULES, _BINARIES = (".py", ".pyc"), (".so", ".pyd")
_DIST_INFO, _DIST_METADATA = ".dist-info", "METADATA"


def message_naming_files(kind: str, names: Sequence[str], separator: str = ", ") -> str:
    """Return the error of a kind that names the first files, or faults."""
    more = f"{separator.rstrip(', ')} and {len(names) - SHOWN} more" if len(names) > SHOWN else ""
    return f"{kind}{separator.join(names[:SHOWN])}{more}"


def refuse_special_files_lines(folder: Path) -> tuple[str, ...]:
    """Return the line that ends a script with special files in its prefix, and lists them in a step's ``folder``."""
    place = shlex.quote(str(folder / LIST))
    kinds = " -o ".join(f"-type {letter}" for letter in _SPECIAL_KINDS)
    find = f"find \"$PREFIX\" \\( {kinds} \\) -printf '%y %P\\0' >{place}"
    return (f"{{ {find} || true; if [ -s {place} ]; then exit 1; fi; }} 2>/dev/null",)


def special_files_that_ended_script(folder: Path) -> tuple[str, ...]:
    """Return the special files for which the line of `refuse_special_files_lines` ended a script."""
    try:
        entries = os.fsdecode((folder / LIST).read_bytes()).split("\0")
    except FileNotFoundError:
        return ()
    return _paths_with_kinds(entry.split(" ", 1) for entry in entries if entry)


def find_special_files(prefixes: Iterable[Path]) -> tuple[str, ...]:
    """Return the special files in prefixes, for a script that has ended itself before the line that looks for them."""
    return _paths_with_kinds(
        (letter, str(path.relative_to(prefix))) for prefix in prefixes for letter, path in _walk_special_files(prefix)
    )


def _paths_with_kinds(entries: Iterable[Iterable[str]]) -> tuple[str, ...]:
    return tuple(sorted(f"{path} ({_SPECIAL_KINDS[letter]})" for letter, path in entries))


def _walk_special_files(prefix: Path) -> Iterator[tuple[str, Path]]:
    for folder, _, names in files.walk(prefix):
        for path in (Path(folder, name) for name in names):
            mode = path.lstat().st_mode
            yield from ((letter, path) for letter, is_kind in _SPECIAL_TESTS.items() if is_kind(mode))


def files_omitted_by_engine(prefix: Path) -> tuple[tuple[str, ...], tuple[str, ...]]:
    """Return the files that the engine leaves out of a package, with the reasons; and the tags of cache folders.

    It leaves these out, too, but they have no content of their own. Files of the packages that were installed into the
    prefix before the script ran do not count.
    """
    others = installed_package_files(prefix)
    omissions = [(name, why) for name, why in sorted(_walk_omitted_files(prefix)) if name not in others]
    omitted = tuple(f"{name} ({why})" for name, why in omissions if why != _TAG)
    return omitted, tuple(name for name, why in omissions if why == _TAG)


def _walk_omitted_files(prefix: Path) -> Iterator[tuple[str, str]]:
    for folder, folders, names in files.walk(prefix):
        place = Path(folder).relative_to(prefix)
        if not place.parts:
            folders[:] = [name for name in folders if name != _META]  # the engine's own records
        for name in names:
            siblings = [Path(name).with_suffix(end) for end in _BINARIES]
            binary = next((other.name for other in siblings if (Path(folder) / other).exists()), "")
            if _META in place.parts:
                yield str(place / name), f"it is in a folder {_META}"
            elif name == _TAG:
                yield str(place / name), _TAG
            elif Path(name).suffix in _MODULES and binary:
                yield str(place / name), f"{binary} is next to it"


def installed_package_files(prefix: Path) -> frozenset[str]:
    """Return the files of the packages in a prefix, by their records."""
    records = (json.loads(file.read_text(encoding="utf-8")) for file in (prefix / _META).glob("*.json"))
    return frozenset(name for record in records for name in record.get("files", ()))


def version_and_link_faults(prefix: Path, *, name: str, version: str, build_folder: Path) -> tuple[str, ...]:
    """Return the faults of the files that a script installed, in the order of their names.

    ``build_folder`` is that of the engine, which is removed after the build. Files of the packages that were
    installed into the prefix before do not count.
    """
    others = installed_package_files(prefix)
    return tuple(
        sorted({*_version_faults(prefix, others, name, version), *_build_link_faults(prefix, others, build_folder)})
    )


def _version_faults(prefix: Path, others: frozenset[str], name: str, version: str) -> Iterator[str]:
    """Yield the record of Python's package of the same name, where it has another version."""
    for folder in prefix.glob(f"lib/python*/site-packages/*{_DIST_INFO}"):
        own = str((folder / _DIST_METADATA).relative_to(prefix))
        stem = folder.name.lower().removesuffix(_DIST_INFO)
        if own in others or not (prefix / own).is_file() or not stem.startswith(f"{name}-"):
            continue
        installed = stem.removeprefix(f"{name}-")
        if "-" not in installed and installed != version:
            yield f"{own} is of version {installed}, the package of version {version}"


def _build_link_faults(prefix: Path, others: frozenset[str], build_folder: Path) -> Iterator[str]:
    """Yield the links to files of the build outside of the prefix."""
    real_prefix, real_folder = Path(os.path.realpath(prefix)), Path(os.path.realpath(build_folder))
    for folder, folders, names in files.walk(prefix):
        for path in (Path(folder, name) for name in (*folders, *names)):
            if not path.is_symlink() or str(path.relative_to(prefix)) in others:
                continue
            real = Path(os.path.realpath(path))
            if real.is_relative_to(real_folder) and not real.is_relative_to(real_prefix):
                place = path.relative_to(prefix)
                yield f"{place} is a link to {real.relative_to(real_folder)} in the build's folder, which is removed"
