"""A channel that breaks off while packages are fetched from it."""

from __future__ import annotations

import functools
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import DownloadFailed
from kiln.conda.channel import LocalChannel
from kiln.conda.solve import install, solve
from tests.packages import conda_package

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

INDEX = {"name": "little", "version": "1", "build": "0", "build_number": 0, "depends": [], "subdir": "noarch"}


class Breaking(SimpleHTTPRequestHandler):
    """Serves an index whole, and of packages a few bytes of many."""

    def do_GET(self) -> None:
        if not self.path.endswith(".conda"):
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        self.wfile.write(b"PK")

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


@pytest.fixture
def breaking(tmp_path: Path) -> Iterator[str]:
    channel = LocalChannel(root=tmp_path / "channel")
    package = conda_package(tmp_path / "little-1-0.conda", {"index.json": INDEX, "paths.json": {"paths": []}})
    channel.add([(package, "noarch")])
    handler = functools.partial(Breaking, directory=str(channel.root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_download_that_breaks_off_is_a_failure_of_the_network(breaking: str, tmp_path: Path) -> None:
    records = solve([breaking], ["little"], virtual_packages={})
    with pytest.raises(DownloadFailed, match=r"failed to fetch little-1-0\.conda") as caught:
        install(records, tmp_path / "prefix", cache=tmp_path / "cache")
    assert "end of file before message length reached" in caught.value.why
