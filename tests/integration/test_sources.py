"""The origin of sources: their own address, a folder, a mirror; and the refusal of other content."""

from __future__ import annotations

import hashlib
import http.server
import io
import shutil
import tarfile
import threading
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import HashMismatch
from tests import warm

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Iterator

pytestmark = pytest.mark.slow("a feedstock is built")

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
CONFIG = min(file.stem for file in (SMALL / ".ci_support").glob("*None*.yaml"))
# A name that no resolver knows (RFC 6761): what is not elsewhere is nowhere.
URL = "https://sources.invalid/small/archive/v1.2.tar.gz"


@pytest.fixture
def archive(tmp_path: Path) -> bytes:
    """The small feedstock's sources as a release archive."""
    data = io.BytesIO()
    with tarfile.open(fileobj=data, mode="w:gz") as tar:
        tar.add(SMALL / "recipe" / "src", arcname="small-1.2")
    return data.getvalue()


@pytest.fixture
def feedstock(tmp_path: Path, archive: bytes) -> Path:
    """The small feedstock, whose sources are an archive at an address, with its hash, and patched as before."""
    root = Path(shutil.copytree(SMALL, tmp_path / "small-feedstock"))
    recipe = root / "recipe" / "meta.yaml"
    text = recipe.read_text()
    assert "  path: src\n" in text
    sha256 = hashlib.sha256(archive).hexdigest()
    recipe.write_text(text.replace("  path: src\n", f"  url: {URL}\n  sha256: {sha256}\n"))
    shutil.rmtree(root / "recipe" / "src")
    return root


@pytest.fixture
def mirror(tmp_path: Path, archive: bytes) -> Iterator[str]:
    """A web server that has the archive under its address."""
    file = tmp_path / "mirror" / URL.removeprefix("https://")
    file.parent.mkdir(parents=True)
    file.write_bytes(archive)
    handler = partial(http.server.SimpleHTTPRequestHandler, directory=str(tmp_path / "mirror"))
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def build(root: Path, *more: str) -> subprocess.CompletedProcess[str]:
    return warm.kiln("-C", str(root), "build", CONFIG, "--container", "none", *more)


def made(root: Path) -> set[str]:
    return {file.name.split("-1.2-")[0] for file in (root / "build_artifacts").glob("linux-64/*.conda")}


def test_sources_come_from_a_folder_and_are_patched(feedstock: Path, archive: bytes, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "v1.2.tar.gz").write_bytes(archive)
    ended = build(feedstock, "--distdir", str(tmp_path / "downloads"))
    assert ended.returncode == 0, ended.stderr
    assert made(feedstock) == {"libsmall", "small"}  # its test reads what the patch has changed


def test_sources_come_from_a_mirror(feedstock: Path, mirror: str) -> None:
    ended = build(feedstock, "--mirror", mirror)
    assert ended.returncode == 0, ended.stderr
    assert made(feedstock) == {"libsmall", "small"}


def test_sources_with_another_hash_end_the_build_before_anything_runs(feedstock: Path, tmp_path: Path) -> None:
    (tmp_path / "downloads").mkdir()
    (tmp_path / "downloads" / "v1.2.tar.gz").write_bytes(b"something else")
    ended = build(feedstock, "--distdir", str(tmp_path / "downloads"))
    assert ended.returncode == HashMismatch.exit_code, ended.stderr
    assert "sha256 checksum validation failed" in ended.stderr
    (log,) = (feedstock / "build_artifacts" / "logs").glob("*/*.log")
    assert "build.sh" not in log.read_text()
    assert made(feedstock) == set()


def test_a_mirror_with_a_password_is_refused(feedstock: Path) -> None:
    ended = build(feedstock, "--mirror", "https://user:secret@mirror.example.org")
    assert ended.returncode == 2
    assert "secret" not in ended.stderr
