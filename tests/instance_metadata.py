"""The metadata service of an EC2 instance, version 2, as far as a spot worker asks it: a program without dependencies.

    python3 instance_metadata.py ADDRESS PORT FILE

FILE is the notice to the instance; until it exists, there is none. By Amazon's user guide for EC2: a session token is
requested by PUT, with its length in seconds (1 to 21,600), and not through a proxy; everything else needs a token.
"""

from __future__ import annotations

import http.server
import secrets
import sys
import time
from pathlib import Path

TOKEN, SECONDS = "X-aws-ec2-metadata-token", "X-aws-ec2-metadata-token-ttl-seconds"
LONGEST = 21600


class MetadataServer(http.server.ThreadingHTTPServer):
    """A metadata service; ``tokens`` are the sessions with their ends, ``requests`` what was asked and answered."""

    def __init__(self, address: tuple[str, int], notice: Path) -> None:
        super().__init__(address, MetadataHandler)
        self.notice = notice
        self.tokens: dict[str, float] = {}
        self.requests: list[tuple[str, int]] = []


class MetadataHandler(http.server.BaseHTTPRequestHandler):
    """Answers one request."""

    server: MetadataServer

    def do_PUT(self) -> None:
        length = self.headers[SECONDS] or ""
        if self.path != "/latest/api/token":
            self._answer(404)
        elif self.headers["X-Forwarded-For"]:
            self._answer(403)
        elif not (length.isdecimal() and 1 <= int(length) <= LONGEST):
            self._answer(400)
        else:
            token = secrets.token_urlsafe()
            self.server.tokens[token] = time.monotonic() + int(length)
            self._answer(200, token)

    def do_GET(self) -> None:
        if time.monotonic() >= self.server.tokens.get(self.headers[TOKEN] or "", 0.0):
            self._answer(401)
        elif self.path == "/latest/meta-data/spot/instance-action" and self.server.notice.exists():
            self._answer(200, self.server.notice.read_text())
        else:
            self._answer(404)

    def _answer(self, code: int, text: str = "") -> None:
        self.server.requests.append((f"{self.command} {self.path}", code))
        self.send_response(code)
        self.send_header("Content-Length", str(len(text.encode())))
        self.end_headers()
        self.wfile.write(text.encode())


if __name__ == "__main__":
    MetadataServer((sys.argv[1], int(sys.argv[2])), Path(sys.argv[3])).serve_forever()
