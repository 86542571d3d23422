"""pip chooses wheels, and runs no code of a source archive or a repository that a wheel requires."""

from __future__ import annotations

import io
import os
import subprocess
import tarfile
import zipfile
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RehearsalRefused
from kiln.build.rehearsal.wheel_choice import resolve_wheels

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.sampled


def add_wheel(folder: Path, name: str, requirement: str = "") -> None:
    """Write an empty wheel with one requirement."""
    info = f"{name}-1.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", metadata + (f"Requires-Dist: {requirement}\n" if requirement else ""))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.parametrize("address", ["{root}/evil-1.tar.gz", "{root}/evil", "git+{root}/evil"])
def test_a_wheel_cannot_have_pip_run_a_source_archives_code(tmp_path: Path, address: str) -> None:
    (tmp_path / "evil").mkdir()
    backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (tmp_path / "evil/pyproject.toml").write_text(backend)
    (tmp_path / "evil/backend.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.example")
    for words in (("init", "-q", "."), ("add", "."), ("commit", "-q", "-m", "x")):
        subprocess.run((*git, *words), cwd=tmp_path / "evil", check=True)
    with tarfile.open(tmp_path / "evil-1.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "evil", "evil-1")
        member = tarfile.TarInfo("evil-1/PKG-INFO")
        archive.addfile(member, io.BytesIO(b""))
    add_wheel(tmp_path, "a", f"evil @ {address.format(root=tmp_path.as_uri())}")
    add_wheel(tmp_path, "harmless")
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    try:
        with pytest.raises(RehearsalRefused, match="requires a source archive or a repository") as caught:
            resolve_wheels(["a", "harmless"], python="3.11", glibc="2.36", env=env)
    finally:
        assert not (tmp_path / "ran").exists()
    assert "a, harmless" in caught.value.why
    (wheel,) = resolve_wheels(["harmless"], python="3.11", glibc="2.36", env=env).wheels
    assert wheel.name == "harmless"
