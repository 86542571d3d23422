"""The libraries that an image needs and lacks."""

from __future__ import annotations

import sys
from pathlib import Path

from kiln.image import contents
from kiln.image.oci import LayerEntry


def test_a_missing_library_is_reported() -> None:
    """The interpreter that runs this needs the C library at least."""
    python = Path(sys.executable).resolve()
    assert "libc.so.6" in contents.needed_libraries(python)
    missing = contents.missing_libraries([LayerEntry(path="/bin/python", mode=0o755, source=python)])
    assert missing["libc.so.6"] == "/bin/python"
    libraries = [LayerEntry(path=f"/lib/{name}", mode=0o644, data=b"") for name in missing]
    assert contents.missing_libraries([LayerEntry(path="/bin/python", mode=0o755, source=python), *libraries]) == {}


def test_a_damaged_elf_file_needs_no_library(tmp_path: Path) -> None:
    (tmp_path / "x").write_bytes(b"\x7fELF and then nothing")
    assert contents.needed_libraries(tmp_path / "x") == ()
