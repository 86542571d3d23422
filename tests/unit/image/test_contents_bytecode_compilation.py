"""The compiled modules of an image."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.image import contents
from kiln.image.oci import LayerEntry

if TYPE_CHECKING:
    from pathlib import Path


def test_compiled_modules_are_added_next_to_their_sources(tmp_path: Path) -> None:
    source = tmp_path / "m.py"
    source.touch()
    (tmp_path / "__pycache__").mkdir()
    (tmp_path / "__pycache__" / "m.cpython-311.pyc").touch()
    (tmp_path / "__pycache__" / "mm.cpython-311.pyc").touch()
    entry = LayerEntry(path="/opt/conda/lib/python3.11/site-packages/m.py", mode=0o644, source=source)
    assert [re.sub(r".*site-packages", "", entry.path) for entry in contents.with_compiled_modules([entry])] == [
        "/m.py",
        "/__pycache__/m.cpython-311.pyc",
    ]
