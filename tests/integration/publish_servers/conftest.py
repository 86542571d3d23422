"""A server and a bucket."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from tests.integration.publish_servers.helpers import ROOT

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path


@pytest.fixture
def server(tmp_path: Path) -> Iterator[str]:
    """The server's address; it runs in a process of its own, since uploads hold Python's lock."""
    words = (sys.executable, "-m", "tests.channel_server", str(tmp_path))
    with subprocess.Popen(words, cwd=ROOT, text=True, stdout=subprocess.PIPE) as process:
        assert process.stdout is not None
        yield f"http://127.0.0.1:{int(process.stdout.readline())}"
        process.kill()
