"""The index of a channel in every form that today's clients ask for, and its change from one moment to the next.

The records are the library's (py-rattler reads them out of a package); here they are put together. A channel of
thousands of packages takes one more without any of the others being read again.
"""

from __future__ import annotations

from kiln.repodata.entry import Entry, read
from kiln.repodata.formats import BASE, INSTRUCTIONS, SHARDS, forms
from kiln.repodata.subdir import Subdir, adopted, parsed

__all__ = ["BASE", "INSTRUCTIONS", "SHARDS", "Entry", "Subdir", "adopted", "forms", "parsed", "read"]
