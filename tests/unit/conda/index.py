"""An index of small packages."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kiln.conda.index import SubdirIndex, read_index_entry
from kiln.conda.index_files import render_index_files
from tests.packages import release_package

if TYPE_CHECKING:
    from pathlib import Path


def index(tmp_path: Path, *names: str) -> SubdirIndex:
    """Return an index of packages, each named as ``NAME-VERSION`` or ``NAME-VERSION-BUILD``."""
    entries = [read_index_entry(release_package(tmp_path, *name.split("-"))) for name in names]
    return SubdirIndex.empty("linux-64").with_packages(entries)


def offered(subdir: SubdirIndex, form: str = "repodata.json") -> dict[str, Any]:
    """Return the records of one form of an index."""
    records: dict[str, Any] = json.loads(render_index_files(subdir)[form])["packages.conda"]
    return records
