"""A cache of Bazel's for several machines: nginx, as Bazel's documentation on remote caching describes it.

By itself on this machine, or as the root file system of a container, for the fleet's machine that holds a cache.
"""

from __future__ import annotations

import contextlib
import getpass
import http.client
import ipaddress
import os
import secrets
import shutil
import socket
import subprocess
import tarfile
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Iterator

SETTINGS = """\
daemon off;
{user}
pid {folder}/pid;
error_log {log};
events {{}}
http {{
    access_log off;
    client_max_body_size 0;
    client_body_temp_path {folder}/body;
    proxy_temp_path {folder}/proxy;
    fastcgi_temp_path {folder}/fastcgi;
    uwsgi_temp_path {folder}/uwsgi;
    scgi_temp_path {folder}/scgi;
    server {{
        listen {listen};
        location / {{
            root {data};
            dav_methods PUT;
            create_full_put_path on;
            auth_basic cache;
            auth_basic_user_file {users};
        }}
    }}
}}
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Remote:
    """A cache that is being served; the ``url`` has the password in it."""

    url: str
    password: str = field(repr=False)


@contextlib.contextmanager
def served(folder: Path) -> Iterator[Remote]:
    """Serve a cache to this machine's containers until the end of the block."""
    password = secrets.token_hex(12)
    (folder / "data").mkdir()
    (folder / "users").write_text(f"kiln:{{PLAIN}}{password}\n")
    with socket.create_server((bridge(), 0)) as listening:  # which nginx takes over: no one else can have its port
        address, port = listening.getsockname()
        settings = SETTINGS.format(
            folder=folder,
            user=f"user {getpass.getuser()};",
            log=folder / "error.log",
            listen=f"{address}:{port}",
            data=folder / "data",
            users=folder / "users",
        )
        (folder / "nginx.conf").write_text(settings)
        place = listening.fileno()
        argv = ("nginx", "-c", str(folder / "nginx.conf"))
        server = subprocess.Popen(argv, pass_fds=(place,), env={**os.environ, "NGINX": f"{place};"})
    with server:
        try:
            until(lambda: is_answered(address, port), "nginx answers", server)
            yield Remote(url=f"http://kiln:{password}@{address}:{port}/cache", password=password)
        finally:
            server.terminate()


def root_file_system(archive: Path) -> dict[str, object]:
    """Make an archive of nginx and what it needs to run; returns the variables that make it the fleet's cache."""
    nginx = shutil.which("nginx")
    assert nginx is not None
    linked = subprocess.run(("ldd", nginx), check=True, capture_output=True, text=True).stdout.split()
    settings = archive.with_name("nginx.conf")
    users = "/etc/kiln-cache/users"
    settings.write_text(SETTINGS.format(folder="/tmp", user="", log="stderr", listen="8080", data="/data", users=users))
    with tarfile.open(archive, "w") as packed:
        packed.add(settings, "nginx.conf")
        for file in [nginx, *(word for word in linked if word.startswith("/"))]:
            packed.add(Path(file).resolve(), file.lstrip("/"))
    return {
        "kiln_cache_image": "localhost/nginx:test",
        "kiln_cache_archive": str(archive),
        "kiln_cache_arguments": [nginx, "-c", "/nginx.conf"],
    }


def bridge() -> str:
    """Return the address under which Docker's containers see this machine."""
    words = ("docker", "network", "inspect", "bridge", "--format", "{{(index .IPAM.Config 0).Subnet}}")
    subnet = subprocess.run(words, check=True, capture_output=True, text=True).stdout.strip()
    return str(next(ipaddress.ip_network(subnet).hosts()))  # where nothing else is said, the first is the machine's


def free_port() -> int:
    """Return a port that nobody listens on."""
    with socket.socket() as result:
        result.bind(("", 0))
        return int(result.getsockname()[1])


def is_answered(address: str, port: int) -> bool:
    """Return whether a web server answers, whatever it says."""
    connection = http.client.HTTPConnection(address, port, timeout=5.0)
    with contextlib.closing(connection), contextlib.suppress(OSError):
        connection.request("HEAD", "/")
        return connection.getresponse().status > 0
    return False


def wait_for(server: subprocess.Popen[bytes], address: str, port: int) -> None:
    """Wait until a server answers, or has ended."""
    while server.poll() is None:
        with contextlib.suppress(OSError), socket.create_connection((address, port), timeout=1.0):
            return
    raise AssertionError(f"the server ended with exit code {server.returncode}")
