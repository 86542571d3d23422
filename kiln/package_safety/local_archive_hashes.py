"""The hashes of packages that are taken from folders; rattler compares those of downloads itself."""

from __future__ import annotations

from typing import TYPE_CHECKING

from rattler import PackageCache, RepoDataRecord

from kiln import files
from kiln.package_safety.refusals import hash_mismatch_error, local_package_file

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path


async def uncached_packages(records: Iterable[RepoDataRecord], cache: Path) -> list[RepoDataRecord]:
    """Return the packages that a cache does not have."""
    index = await PackageCache(cache).index()
    return [record for record in records if not index.contains_record(record)]


def require_matching_hashes(records: Iterable[RepoDataRecord]) -> None:
    """Compare the hashes of packages in folders; those in the cache were compared before.

    Raises:
        HashMismatch: at the first that differs.
    """
    for record in records:
        file = local_package_file(record)
        if file is not None and file.is_file():
            _require_matching_hash(record, file)


def _require_matching_hash(record: RepoDataRecord, file: Path) -> None:
    """Compare by SHA-256, or by MD5 where the index has no other hash."""
    if record.sha256:
        if (digest := files.sha256(file)) != record.sha256.hex():
            raise hash_mismatch_error(record, digest)
    elif record.md5 and (digest := files.sha256_and_md5(file)["md5"]) != record.md5.hex():
        raise hash_mismatch_error(record, digest, kind="MD5")
