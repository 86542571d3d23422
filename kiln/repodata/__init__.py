"""The index of a channel in every form that today's clients request, and its changes.

The records are the library's (py-rattler reads them from a package); here they are combined. A package is added to a
channel of thousands without reading any of the others again.
"""

from __future__ import annotations

from kiln.repodata.channeldata import channeldata_with_entries
from kiln.repodata.editable_index import SubdirIndex
from kiln.repodata.index_document import BASE, CHANNELDATA, PACKAGES, SHARDS, STALE
from kiln.repodata.index_entry import IndexEntry, read_index_entry
from kiln.repodata.index_file_formats import render_index_files
from kiln.repodata.index_reading import index_from_repodata, read_packages_only, read_whole_index

__all__ = [
    "BASE",
    "CHANNELDATA",
    "PACKAGES",
    "SHARDS",
    "STALE",
    "IndexEntry",
    "SubdirIndex",
    "channeldata_with_entries",
    "index_from_repodata",
    "read_index_entry",
    "read_packages_only",
    "read_whole_index",
    "render_index_files",
]
