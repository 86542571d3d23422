"""Records of packages, as JSON between the processes, and as the library's type."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kiln.operating_system.file_operations import temporary_file_with_content

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rattler import RepoDataRecord

OF_A_PREFIX = frozenset({"files", "paths_data", "link", "extracted_package_dir", "package_tarball_full_path"})
_NOWHERE = {"extracted_package_dir": "", "files": [], "paths_data": {"paths": [], "paths_version": 1}}


def records_from_json(records: Iterable[Mapping[str, Any]]) -> list[RepoDataRecord]:
    """Return JSON values as the library's records; it can only read records of a prefix, from files."""
    from rattler import PrefixRecord

    loaded: list[RepoDataRecord] = []
    for record in records:
        with temporary_file_with_content(json.dumps({**record, **_NOWHERE}).encode()) as path:
            loaded.append(PrefixRecord.from_path(path))
    return loaded


def records_to_json(records: Iterable[RepoDataRecord]) -> list[dict[str, Any]]:
    """Return records as JSON values, without the fields of a prefix."""
    values = (json.loads(record.to_json()) for record in records)
    return [{key: field for key, field in value.items() if key not in OF_A_PREFIX} for value in values]
