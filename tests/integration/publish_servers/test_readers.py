"""Clients that read a published channel."""

from __future__ import annotations

import os
import shutil
import socket
import subprocess
import uuid
from typing import TYPE_CHECKING

import pytest

from kiln.conda.solve import install, solve
from tests.integration.publish_servers.helpers import has
from tests.publishing import publish_new, publish_old
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.sampled


NGINX = """
daemon off; pid {root}/nginx.pid; error_log stderr; worker_processes 1;
events {{ worker_connections 64; }}
http {{
    access_log off;
    client_body_temp_path {root}/t1; proxy_temp_path {root}/t2; fastcgi_temp_path {root}/t3;
    uwsgi_temp_path {root}/t4; scgi_temp_path {root}/t5;
    server {{ listen unix:{root}/unused.sock; }}
    server {{ listen 127.0.0.1:{port}; location /{name}/ {{ alias {channel}/; }} }}
}}
user root;
"""


@pytest.fixture
def web(tmp_path: Path) -> Iterator[str]:
    """nginx before the channel in a folder.

    Its address has a name of its own: rattler remembers for ever that an address has no shards, and another test's
    server may have had this port.
    """
    name = uuid.uuid4().hex
    settings = tmp_path / "nginx.conf"
    with socket.create_server(("127.0.0.1", 0)) as listening:  # which nginx takes over: no one else can have its port
        port, place = listening.getsockname()[1], listening.fileno()
        settings.write_text(NGINX.format(root=tmp_path, port=port, name=name, channel=tmp_path / "channel"))
        words = ("nginx", "-c", str(settings), "-e", "stderr")
        process = subprocess.Popen(words, pass_fds=(place,), env={**os.environ, "NGINX": f"{place};"})
    with process:
        address = f"http://127.0.0.1:{port}/{name}"
        until(lambda: has(f"{address}/noarch/repodata.json"), "nginx answers", process)
        yield address
        process.terminate()


@pytest.mark.needs("nginx")
def test_clients_read_the_sharded_index_and_the_packages_through_a_web_server(
    tmp_path: Path, request: pytest.FixtureRequest
) -> None:
    publish_old(tmp_path)
    address = request.getfixturevalue("web")
    publish_new(tmp_path)
    shutil.rmtree(tmp_path / "built")
    for form in ("repodata.json", "repodata.json.zst"):
        (tmp_path / "channel" / ".kiln" / "index" / "current" / "noarch" / form).unlink()  # shards alone are left
    result = solve([address], ["app", "kept"], virtual_packages={})
    assert sorted(record.file_name for record in result) == ["app-1-0.conda", "kept-1-0.conda"]
    install(result, tmp_path / "prefix", cache=tmp_path / "cache")
    assert (tmp_path / "prefix" / "share" / "app").read_text() == "app"
