"""The index of a channel in every form that today's clients request, and its changes.

The records are the library's (py-rattler reads them from a package); here they are combined. A package is added to a
channel of thousands without reading any of the others again.
"""

from __future__ import annotations

from kiln.repodata.channeldata import with_entries
from kiln.repodata.editable_index import Subdir
from kiln.repodata.index_document import BASE, CHANNELDATA, PACKAGES, SHARDS, STALE
from kiln.repodata.index_entry import IndexEntry, read
from kiln.repodata.index_file_formats import index_files
from kiln.repodata.index_reading import from_repodata, packages_only, whole_index

__all__ = [
    "BASE",
    "CHANNELDATA",
    "PACKAGES",
    "SHARDS",
    "STALE",
    "IndexEntry",
    "Subdir",
    "from_repodata",
    "index_files",
    "packages_only",
    "read",
    "whole_index",
    "with_entries",
]
