"""A channel server that misbehaves on demand: ``python -m tests.channel_server FOLDER`` prints its address.

It takes packages as quetz, Artifactory and prefix.dev do (the addresses and headers that py-rattler-build uses), keeps
them in FOLDER/CHANNEL and indexes each at once. Each upload takes a line of FOLDER/faults, if there is one: a status to
answer with, ``cut`` to hang up in the middle, ``lost`` to take the package and hang up, ``slow`` to take its time. Each
request of an index takes one of FOLDER/index-faults, ``cut`` being half of it. FOLDER/requests tells what came.
"""

from __future__ import annotations

import asyncio
import http.server
import json
import re
import sys
import threading
import time
from pathlib import Path

from rattler.index import index_fs

TOKEN = "s3cr3t-token"
LOCK = threading.Lock()
KEYS = ("x-api-key", "authorization")


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path

    def do_PUT(self) -> None:
        self.upload(Path(self.path).name, Path(self.path).parts[1])

    def do_POST(self) -> None:
        if found := re.match(r"/api/channels/([^/]+)/upload/([^?]+)", self.path):
            self.upload(found[2], found[1])
        elif found := re.match(r"/api/v1/upload/(.+)", self.path):
            self.upload("", found[1])

    def do_GET(self) -> None:
        found = re.search(r"([^/]+)/((?:linux-64|noarch)/[^/]+)$", self.path)
        if found is None:
            self.answer(200 if self.trusted() else 401)
            return
        place = self.root / found[1] / found[2]
        fault = self.fault("index-faults") if place.name == "repodata.json" else ""
        if not place.is_file():
            self.answer(404)
        elif fault.isdecimal():
            self.answer(int(fault))
        else:
            self.answer(200, place.read_bytes(), half=fault == "cut")

    def do_HEAD(self) -> None:
        self.do_GET()

    def upload(self, name: str, channel: str) -> None:
        data = self.body()
        name, data = (name, data) if name else parted(data)
        fault = self.fault("faults")
        with LOCK, (self.root / "requests").open("a") as file:
            file.write(f"{self.command} {channel} {name} {fault or 'taken'}\n")
        if not self.trusted():
            self.answer(401)
        elif fault == "cut":
            self.close_connection = True
        elif fault.isdecimal():
            self.answer(int(fault))
        else:
            if fault == "slow":
                time.sleep(0.3)
            self.take(self.root / channel, name, data)
            if fault == "lost":
                self.close_connection = True
            else:
                self.answer(201)

    def take(self, channel: Path, name: str, data: bytes) -> None:
        with LOCK:
            for subdir in ("linux-64", "noarch"):
                (channel / subdir).mkdir(parents=True, exist_ok=True)
            (channel / "linux-64" / name).write_bytes(data)
            asyncio.run(index_fs(channel, write_shards=False, force=True))

    def trusted(self) -> bool:
        return any(str(self.headers.get(key, "")).removeprefix("Bearer ") == TOKEN for key in KEYS)

    def fault(self, file: str) -> str:
        with LOCK:
            place = self.root / file
            lines = place.read_text().split() if place.is_file() else []
            if lines:
                place.write_text("\n".join(lines[1:]))
            return lines[0] if lines else ""

    def body(self) -> bytes:
        if length := self.headers.get("Content-Length"):
            return self.rfile.read(int(length))
        data = b""
        while size := int(self.rfile.readline(), 16):
            data += self.rfile.read(size)
            self.rfile.readline()
        self.rfile.readline()
        return data

    def answer(self, status: int, data: bytes = b"{}", *, half: bool = False) -> None:
        self.send_response(status)
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        if self.command != "HEAD":
            self.wfile.write(data[: len(data) // 2] if half else data)
        self.close_connection = self.close_connection or half

    def log_message(self, format: str, *args: object) -> None:  # noqa: A002 - the base class names it so
        """Say nothing."""


def parted(data: bytes) -> tuple[str, bytes]:
    """The file in a form of several parts."""
    head, _, rest = data.partition(b"\r\n\r\n")
    name = re.search(rb'filename="([^"]+)"', head)
    assert name is not None
    boundary = data.split(b"\r\n")[0]
    return name[1].decode(), rest.split(b"\r\n" + boundary)[0]


def main(folder: str) -> None:
    Handler.root = Path(folder)
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(json.dumps(server.server_address[1]), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
