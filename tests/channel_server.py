"""A channel server that misbehaves on demand: ``python -m tests.channel_server FOLDER`` prints its address.

It takes packages, copies and removes them as quetz, Artifactory, prefix.dev and anaconda.org do (the addresses and
headers that py-rattler-build and the servers' own clients use), keeps them in FOLDER/served/CHANNEL and indexes each
at once; a label of anaconda.org is a channel. Each change takes a line of FOLDER/faults (a removal one of
FOLDER/removal-faults), if there is one: a status to answer with, ``cut`` to hang up in the middle, ``lost`` to make
the change and hang up, ``slow`` to take its time, ``later`` to index it with the next change. Each request of an
index takes one of FOLDER/index-faults, ``cut`` being half of it, each of a package one of FOLDER/package-faults.
FOLDER/requests logs the requests. It takes tokens of trusted publishing, too (``tests.identity_provider``): each
identity takes a line of FOLDER/identity-faults, a status or what is wrong with it; FOLDER/minted logs the exchanges,
and with FOLDER/single-use a minted token is accepted for one request.
"""

from __future__ import annotations

import http.server
import json
import re
import sys
import threading
import time
from pathlib import Path
from typing import TYPE_CHECKING
from urllib.parse import parse_qs, urlsplit

from kiln.conda import package_reader
from kiln.conda.index import read_index_entry
from tests.identity_provider import REQUEST_TOKEN, Provider

if TYPE_CHECKING:
    from collections.abc import Callable

TOKEN = "s3cr3t-token"
LOCK = threading.Lock()
KEYS = ("x-api-key", "authorization")
SUBDIRS = ("linux-64", "noarch")
PLACE = r"((?:linux-64|noarch)/[^/?]+)"  # of a package in its channel


class Handler(http.server.BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    root: Path
    provider: Provider
    lags = False

    def do_GET(self) -> None:
        if self.path.startswith("/identity"):
            self.identify()
            return
        found = re.search(rf"([^/]+)/{PLACE}$", self.path)
        if found is None and self.path.endswith("/repodata.json"):  # of a subdir that nobody has uploaded to
            self.answer(404)
            return
        if found is None:
            self.answer(200 if self.trusted() else 401)
            return
        place = self.root / found[1] / found[2]
        fault = self.fault("index-faults" if place.name == "repodata.json" else "package-faults")
        with LOCK:
            data = place.read_bytes() if place.is_file() else None
        if data is None:
            self.answer(404)
        elif fault.isdecimal():
            self.answer(int(fault))
        else:
            self.answer(200, data, half=fault == "cut")

    def do_HEAD(self) -> None:
        self.do_GET()

    def do_PUT(self) -> None:
        self.take(Path(self.path).parts[1], [(Path(self.path).name, self.body())])

    def do_PATCH(self) -> None:
        self.body()
        self.answer(200 if self.trusted() else 401)

    def do_POST(self) -> None:
        data = self.body()
        if self.path == "/api/oidc/mint_token":
            self.mint(data)
        elif found := re.match(r"/api/channels/([^/]+)/upload/([^?]+)", self.path):
            self.take(found[1], [(found[2], data)])
        elif found := re.match(r"/api/(?:v1/upload|channels)/([^/]+)(?:/files/)?$", self.path):
            self.take(found[1], parted(data))
        elif found := re.match(rf"/api/copy/([^/]+)/{PLACE}", self.path):
            target = parse_qs(urlsplit(self.path).query)["to"][0].split("/")[1]
            self.copy(found[1], [found[2]], target)
        elif found := re.match(r"/channels/([^/]+)/([^/]+)/copy/([^/]+)", self.path):
            self.copy(found[2], packages(self.root / found[2]), found[1] if found[3] == "main" else found[3])
        elif found := re.match(r"/channels/([^/]+)/([^/]+)$", self.path):
            file = self.unlabeled / json.loads(data)["basename"]
            self.change(found[2], file.name, lambda: self.put(found[2], [(file.name, file.read_bytes())]))
        else:
            self.anaconda(data)

    def do_DELETE(self) -> None:
        data = self.body()
        if found := re.match(r"/channels/([^/]+)/([^/]+)$", self.path):
            self.unlabel(found[1] if found[2] == "main" else found[2], json.loads(data)["basename"])
        elif found := re.match(
            rf"(?:/api/v1/delete|/api/channels)?/([^/]+)(?:/packages/[^/]+/versions)?/{PLACE}", self.path
        ):
            self.remove([found[1]], found[2])

    def anaconda(self, data: bytes) -> None:
        """Stage a file that the owner does not have, take it, and give it the labels that it was staged with."""
        if found := re.match(rf"/stage/([^/]+)/[^/]+/[^/]+/{PLACE}", self.path):
            if not self.trusted():
                self.answer(401)
            elif any((place / found[2]).is_file() for place in (*self.root.iterdir(), self.unlabeled)):
                self.answer(409)
            else:
                label = json.loads(data)["channels"][0]
                channel = found[1] if label == "main" else label
                told = {"post_url": f"http://{self.headers['Host']}/bucket/{channel}", "form_data": {}, "dist_id": "1"}
                self.answer(200, json.dumps(told).encode())
        elif found := re.match(r"/bucket/([^/]+)", self.path):
            self.take(found[1], [parted(data)[-1]], open_to_all=True)
        else:
            self.answer(200 if self.trusted() else 401)

    # Trusted publishing

    def identify(self) -> None:
        fault, query = self.fault("identity-faults"), parse_qs(urlsplit(self.path).query)
        if self.headers["Authorization"] != f"Bearer {REQUEST_TOKEN}" or query["api-version"] != ["2.0"]:
            self.answer(401)
        elif fault.isdecimal():
            self.answer(int(fault))
        else:
            value = self.provider.identity(query["audience"][0], fault)
            self.answer(200, json.dumps({"value": value}).encode())

    def mint(self, data: bytes) -> None:
        with LOCK:
            token = self.provider.mint(json.loads(data)["token"])
            with (self.root.parent / "minted").open("a") as file:
                file.write(f"{token}\n")
        self.answer(200 if token else 401, (token or "").encode())

    # Changes

    def take(self, channel: str, found: list[tuple[str, bytes]], *, open_to_all: bool = False) -> None:
        """Take packages, and keep an attestation that came with one under its name."""
        if attestation := dict(found).get("attestation"):
            found = [(name, data) for name, data in found if name != "attestation"]
            (self.root.parent / f"{found[0][0]}.attestation").write_bytes(attestation)
        names = " ".join(name for name, _ in found)
        self.change(channel, names, lambda: self.put(channel, found), open_to_all=open_to_all)

    def copy(self, source: str, paths: list[str], target: str) -> None:
        found = [(Path(path).name, (self.root / source / path).read_bytes()) for path in paths]
        self.change(target, f"from {source}", lambda: self.put(target, found))

    def remove(self, channels: list[str], path: str) -> None:
        if not any((self.root / channel / path).is_file() for channel in channels):
            self.answer(404 if self.trusted() else 401)
            return

        def act() -> None:
            for channel in channels:
                (self.root / channel / path).unlink(missing_ok=True)
                index(self.root / channel)

        self.change(" ".join(channels), Path(path).name, act)

    @property
    def unlabeled(self) -> Path:
        """The files that an owner of anaconda.org has kept without their last label."""
        return self.root.parent / "unlabeled"

    def unlabel(self, channel: str, path: str) -> None:
        file = self.root / channel / path
        if file.is_file():
            (self.unlabeled / path).parent.mkdir(parents=True, exist_ok=True)
            (self.unlabeled / path).write_bytes(file.read_bytes())
        self.remove([channel], path)

    def put(self, channel: str, found: list[tuple[str, bytes]]) -> None:
        for name, data in found:
            part = self.root.parent / f"{name}.part"
            part.write_bytes(data)
            subdir = package_reader.read_info_json(part, "index.json")["subdir"]
            (self.root / channel / subdir).mkdir(parents=True, exist_ok=True)
            (self.root / channel / subdir / name).write_bytes(data)
            part.unlink()
        if not self.lags:
            index(self.root / channel)

    def change(self, channel: str, names: str, act: Callable[[], None], *, open_to_all: bool = False) -> None:
        fault = self.fault("removal-faults" if self.command == "DELETE" else "faults")
        with LOCK, (self.root.parent / "requests").open("a") as file:
            file.write(f"{self.command} {channel} {names} {fault or 'taken'}\n")
        if not open_to_all and not self.trusted():
            self.answer(401)
        elif fault == "cut":
            self.close_connection = True
        elif fault.isdecimal():
            self.answer(int(fault))
        else:
            if fault == "slow":
                time.sleep(0.3)
            with LOCK:
                self.lags = fault == "later"
                act()
            if fault == "lost":
                self.close_connection = True
            else:
                self.answer(201)

    def trusted(self) -> bool:
        told = [str(self.headers.get(key, "")) for key in KEYS]
        tokens = {item.removeprefix("Bearer ").removeprefix("token ") for item in told}
        with LOCK:
            minted = tokens & self.provider.minted
            if minted and (self.root.parent / "single-use").exists():
                self.provider.minted -= minted
        return TOKEN in tokens or bool(minted)

    def fault(self, file: str) -> str:
        with LOCK:
            place = self.root.parent / file
            lines = place.read_text().split() if place.is_file() else []
            if lines:
                place.write_text("\n".join(lines[1:]))
            return lines[0] if lines else ""

    def body(self) -> bytes:
        if "chunked" not in self.headers.get("Transfer-Encoding", ""):
            return self.rfile.read(int(self.headers.get("Content-Length", 0)))
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


def parted(data: bytes) -> list[tuple[str, bytes]]:
    """Return the files in a form of several parts."""
    boundary = data.split(b"\r\n")[0]
    found = []
    for part in data.split(boundary)[1:-1]:
        head, _, content = part.partition(b"\r\n\r\n")
        if b'name="attestation"' in head:
            found.append(("attestation", content.removesuffix(b"\r\n")))
        elif name := re.search(rb'filename="([^"]+)"', head):
            found.append((name[1].decode(), content.removesuffix(b"\r\n")))
        elif b'name="file"' in head:
            found.append((named(content.removesuffix(b"\r\n")), content.removesuffix(b"\r\n")))
    return found


def named(package: bytes) -> str:
    """Return the name of a package that came without one."""
    found = re.search(rb"info-([^/]+)\.tar\.zst", package)
    assert found is not None
    return f"{found[1].decode()}.conda"


def packages(channel: Path) -> list[str]:
    """Return the paths of the packages in a channel."""
    return sorted(f"{subdir}/{file.name}" for subdir in SUBDIRS for file in (channel / subdir).glob("*.conda"))


def index(channel: Path) -> None:
    """Index a channel as it is."""
    for subdir in SUBDIRS:
        (channel / subdir).mkdir(parents=True, exist_ok=True)
        entries = [read_index_entry(file) for file in sorted((channel / subdir).glob("*.conda"))]
        told = {"info": {"subdir": subdir}, "packages.conda": {entry.file: entry.record for entry in entries}}
        (channel / subdir / "repodata.json").write_text(json.dumps(told, default=dict))


def main(folder: str) -> None:
    Handler.root = Path(folder) / "served"
    Handler.root.mkdir(exist_ok=True)
    Handler.provider = Provider()
    server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    print(json.dumps(server.server_address[1]), flush=True)
    server.serve_forever()


if __name__ == "__main__":
    main(sys.argv[1])
