"""The errors of packages that are refused, and of an installation that fails."""

from __future__ import annotations

import re
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import unquote, urlsplit

from kiln import files
from kiln.errors import BrokenPackage, DownloadFailed, HashMismatch, KilnError, LimitExceeded, UnsafePackage

if TYPE_CHECKING:
    from collections.abc import Iterable, Sequence

    from rattler import RepoDataRecord

NOT_FETCHED = "failed to fetch"  # rattler's words, as in the next two
OTHER_HASH = re.compile(r"hash mismatch .* expected ([0-9a-f]+), got ([0-9a-f]+)")
NO_PACKAGE = re.compile(r"invalid zip|failed to unpack|failed to iterate over archive|zstd|unsupported", re.IGNORECASE)
PATHS = 5  # of one package in a message


def package_display_name(record: RepoDataRecord) -> str:
    """Return the name of a package in messages: its file and its channel."""
    return f"{record.file_name} from {record.channel or record.url}"


def unsafe_package_error(name: str, escapes: Sequence[str]) -> UnsafePackage:
    """Return the error of a package whose paths or links lead out of the prefix."""
    more = f" and {len(escapes) - PATHS} more" if len(escapes) > PATHS else ""
    return UnsafePackage(
        f"{name} reaches out of the prefix",
        why=f"its paths or links: {', '.join(map(repr, escapes[:PATHS]))}{more}",
        hint="nothing was installed; do not trust its channel, or report it to the package's maintainers",
    )


def metadata_mismatch_error(record: RepoDataRecord, names: Sequence[str], expected: Sequence[str]) -> BrokenPackage:
    """Return the error of a package whose metadata has another name, version or build than the index."""
    return BrokenPackage(
        f"{package_display_name(record)} is another package",
        why=f"its metadata says {' '.join(names)}, the channel's index {' '.join(expected)}",
        hint="the file was renamed: the channel's owner should index it again",
    )


def hash_mismatch_error(record: RepoDataRecord, digest: str, kind: str = "SHA-256") -> HashMismatch:
    """Return the error of a package whose hash is not the one in the index."""
    indexed = record.md5 if kind == "MD5" else record.sha256
    return HashMismatch(
        f"{package_display_name(record)} is not the package in the channel's index",
        why=f"its {kind} is {digest}, the index has {indexed.hex() if indexed else 'another'}",
        hint="it was damaged in transit or exchanged: try again; if that fails, upload the package again",
    )


def too_large_package_error(record: RepoDataRecord, limit: int) -> KilnError:
    """Return the error of a package that is larger than its index or the limit allows."""
    if record.size:
        return HashMismatch(
            f"{package_display_name(record)} is not the package in the channel's index",
            why=f"it is larger than the {files.human_readable_size(limit)} that the index has for it",
            hint="it was exchanged: try again; if that fails, the channel's owner should index it again",
        )
    return LimitExceeded(
        f"{package_display_name(record)} is larger than {files.human_readable_size(limit)}",
        why="the channel's index does not have its size",
        hint=f"if you trust the channel, allow more: KILN_LIMITS='package={2 * limit // 10**6}MB'",
    )


def installation_error(error: Exception, records: Iterable[RepoDataRecord]) -> KilnError:
    """Return the error that a failure of rattler's installer means."""
    what, *lines = str(error).splitlines() or [repr(error)]
    why = "; ".join(line.removeprefix("Caused by: ") for line in lines)
    record = next((record for record in records if what.endswith(f" {record.file_name}")), None)
    if record and (hashes := OTHER_HASH.search(why)):
        return hash_mismatch_error(record, hashes[2], kind="SHA-256" if len(hashes[2]) == 64 else "MD5")
    is_local = record is not None and (file := local_package_file(record)) is not None and file.is_file()
    if NOT_FETCHED in what and not is_local and not NO_PACKAGE.search(why):
        hint = "check that the channels can be reached, then run the same command again"
        return DownloadFailed(what, why=why, hint=hint)
    what = f"{package_display_name(record)} cannot be installed" if record else what
    return BrokenPackage(what, why=why, hint="it is damaged, or not a package")


def local_package_file(record: RepoDataRecord) -> Path | None:
    """Return the file of a package in a folder; None when a server has it."""
    address = urlsplit(str(record.url))
    return Path(unquote(address.path)) if address.scheme == "file" else None
