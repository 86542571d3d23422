"""A channel server that means harm: it stalls, never ends, or sends what grows without bound when it is unpacked."""

from __future__ import annotations

import contextlib
import http.server
import itertools
import struct
import threading
from typing import TYPE_CHECKING

import msgpack

from kiln.base.zstd import zstd

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

CHUNK = b" " * (1 << 20)
ENDLESS = 1 << 40  # bytes that an endless answer says it has


class Handler(http.server.BaseHTTPRequestHandler):
    """Answers each path by the behavior that the server has for its name, 404 for all others."""

    server: HostileServer

    def do_GET(self) -> None:
        """Answer."""
        name = self.path.rpartition("/")[2]
        self.server.requests.append(self.path)
        answer = self.server.answers.get(self.path) or self.server.answers.get(name)
        if answer is None:
            self.send_error(404)
            return
        with contextlib.suppress(OSError):
            answer(self)

    def do_HEAD(self) -> None:
        """Say whether there is an answer, by which clients choose a form of the index."""
        known = {self.path, self.path.rpartition("/")[2]} & self.server.answers.keys()
        self.send_response(200 if known else 404)
        self.end_headers()

    def begin(self, size: int) -> None:
        """Send the head of an answer."""
        self.send_response(200)
        self.send_header("Content-Length", str(size))
        self.end_headers()

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""


class HostileServer(http.server.ThreadingHTTPServer):
    """Serves ``answers``, by the name of a file or its whole path; ``closing`` ends those that wait."""

    daemon_threads = True

    def __init__(self, answers: Mapping[str, Callable[[Handler], None]]) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.answers = dict(answers)
        self.requests: list[str] = []
        self.closing = threading.Event()

    def handle_error(self, request: object, client_address: object) -> None:
        """Say nothing of clients that have hung up."""

    @property
    def url(self) -> str:
        """The address of the channel."""
        return f"http://127.0.0.1:{self.server_address[1]}/channel"


@contextlib.contextmanager
def serving(answers: Mapping[str, Callable[[Handler], None]]) -> Iterator[HostileServer]:
    """Serve during the block."""
    with HostileServer(answers) as server:
        thread = threading.Thread(target=server.serve_forever, daemon=True)
        thread.start()
        try:
            yield server
        finally:
            server.closing.set()
            server.shutdown()
            thread.join()


def silent(handler: Handler) -> None:
    """Take the request, and answer nothing."""
    handler.server.closing.wait()


def stuck(handler: Handler) -> None:
    """Send the beginning of an answer, and no more."""
    handler.begin(ENDLESS)
    handler.wfile.write(b'{"packages": {')
    handler.wfile.flush()
    handler.server.closing.wait()


def endless(handler: Handler) -> None:
    """Send an index that begins with white space, for ever."""
    _for_ever(handler, b'{"packages": {')


def endless_package(handler: Handler) -> None:
    """Send a package whose first member never ends."""
    name = b"metadata.json"
    sizes = struct.pack("<HHQQ", 1, 16, ENDLESS, ENDLESS)  # zip's extra field for large files
    fixed = struct.pack("<4sHHHHHIIIHH", b"PK\3\4", 45, 0, 0, 0, 33, 0, 0xFFFFFFFF, 0xFFFFFFFF, len(name), len(sizes))
    _for_ever(handler, fixed + name + sizes)


def _for_ever(handler: Handler, head: bytes) -> None:
    handler.begin(ENDLESS)
    handler.wfile.write(head)
    for _ in itertools.takewhile(lambda _: not handler.server.closing.is_set(), itertools.count()):
        handler.wfile.write(CHUNK)


def sending(data: bytes) -> Callable[[Handler], None]:
    """Return what sends these bytes."""

    def send(handler: Handler) -> None:
        handler.begin(len(data))
        handler.wfile.write(data)

    return send


def bomb(megabytes: int, head: bytes = b'{"packages": {') -> bytes:
    """Return so many bytes of white space, compressed."""
    packer = zstd.ZstdCompressor(level=1)
    parts = [packer.compress(head), *(packer.compress(CHUNK) for _ in range(megabytes)), packer.flush()]
    return b"".join(parts)


def shards(name: str, shard: bytes, digest: bytes) -> dict[str, Callable[[Handler], None]]:
    """Return a sharded index that has one package, and its shard."""
    info = {"subdir": "linux-64", "base_url": "", "shards_base_url": "./shards/"}
    listing = msgpack.packb({"version": 1, "info": info, "shards": {name: digest}})
    return {
        "/channel/linux-64/repodata_shards.msgpack.zst": sending(zstd.compress(listing)),
        f"{digest.hex()}.msgpack.zst": sending(shard),
    }
