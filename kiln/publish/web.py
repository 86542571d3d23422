"""Questions and orders to a server that keeps its own index: one attempt at a time, faults told by their status."""

from __future__ import annotations

import base64
import fnmatch
import hashlib
import http.client
import json
import secrets
import urllib.error
import urllib.request
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kiln.errors import TokenRefused

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

TIMEOUT = 60.0  # seconds without a byte
DIGESTING = 1800.0  # seconds for a server to answer an order: it may have gigabytes to read
CHUNK = 1 << 20


class Fault(Exception):
    """One attempt failed; ``status`` is the server's, where it came to answer."""

    def __init__(self, told: str, status: int | None = None) -> None:
        super().__init__(told)
        self.status = status

    @property
    def refuses(self) -> bool:
        """Whether the server does not take the token."""
        return self.status in {401, 403}


class _Stay(urllib.request.HTTPRedirectHandler):
    """Go nowhere else: urllib would take the token along to any other server."""

    def redirect_request(self, *_: Any) -> None:
        """Leave it at the answer, which then is a fault."""


_OPENER = urllib.request.build_opener(_Stay)


@dataclass(frozen=True, slots=True, kw_only=True)
class Web:
    """A server's HTTP interface, asked with these headers, which hold the token."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def ask(self, method: str, url: str, *, told: Any = None) -> None:
        """Have the server do something; ``told`` goes with it as JSON. Raises Fault."""
        data = None if told is None else json.dumps(told).encode()
        kind = {} if told is None else {"Content-Type": "application/json"}
        self._send(method, url, data, kind)

    def post_files(self, url: str, field_name: str, files: Sequence[Path]) -> None:
        """Send files as one form, read while they are sent (RFC 7578). Raises Fault."""
        boundary = secrets.token_hex(16)
        heads = [_head(boundary, field_name, file) for file in files]
        end = f"--{boundary}--\r\n".encode()
        size = len(end) + sum(len(head) + file.stat().st_size + 2 for head, file in zip(heads, files, strict=True))
        more = {"Content-Type": f"multipart/form-data; boundary={boundary}", "Content-Length": str(size)}
        self._send("POST", url, _form(heads, files, end), more)

    def _send(self, method: str, url: str, data: bytes | Iterator[bytes] | None, more: Mapping[str, str]) -> None:
        request = urllib.request.Request(  # noqa: S310 - targets let http and https through alone
            url, data=data, headers={**self.headers, **more}, method=method
        )
        try:
            with _OPENER.open(request, timeout=DIGESTING) as answer:
                answer.read()
        except urllib.error.HTTPError as error:
            error.close()
            raise Fault(f"{method} {url}: the server answered {error.code}", error.code) from error
        except (OSError, http.client.HTTPException) as error:
            raise Fault(f"{method} {url}: {str(error) or type(error).__name__}") from error


def index(url: str) -> dict[str, Any]:
    """Return the records of one index, none when there is no such file. Raises Fault, also for half a file."""
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310 - targets saw to the scheme
            told = json.loads(answer.read())
            return {**told.get("packages", {}), **told.get("packages.conda", {})}
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            return {}
        raise Fault(f"the server answered {error.code}", error.code) from error
    except (OSError, ValueError, http.client.HTTPException) as error:
        raise Fault(str(error) or type(error).__name__) from error


def hash_of(url: str) -> str | None:
    """Return the SHA-256 of what lies at a URL, read to its last byte; None when nothing does. Raises Fault."""
    digest = hashlib.sha256()
    try:
        with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310 - targets saw to the scheme
            while chunk := answer.read(CHUNK):
                digest.update(chunk)
            if answer.length:  # what is missing of the length that was told
                raise Fault(f"{url} came cut off")
    except urllib.error.HTTPError as error:
        error.close()
        if error.code == 404:
            return None
        raise Fault(f"the server answered {error.code}", error.code) from error
    except (OSError, http.client.HTTPException) as error:
        raise Fault(str(error) or type(error).__name__) from error
    return digest.hexdigest()


@dataclass(frozen=True, slots=True, kw_only=True)
class Credentials:
    """What lets us in: a token, or a name with a password in the form of HTTP's basic authentication."""

    token: str | None = field(default=None, repr=False)
    basic: str | None = field(default=None, repr=False)

    @classmethod
    def kept(cls, file: Path, url: str) -> Credentials:
        """Return what rattler's file of credentials has for a server: by its name, or by one with a star.

        The form is rattler's (``RATTLER_AUTH_FILE`` in the documentation of pixi and rattler-build).

        Raises:
            TokenRefused: when the file has nothing for it, or cannot be read.
        """
        host = urlsplit(url).hostname or ""
        try:
            told = json.loads(file.read_text())
            names = sorted((name for name in told if fnmatch.fnmatchcase(host, name)), key=lambda name: "*" in name)
            kind, value = next(iter(told[names[0]].items()))
        except (OSError, ValueError, AttributeError, IndexError, StopIteration) as error:
            raise TokenRefused(f"no token for {host}", why=f"{file} has none that can be read") from error
        if kind == "BasicHTTP":
            pair = f"{value['username']}:{value['password']}".encode()
            return cls(basic=base64.b64encode(pair).decode())
        return cls(token=str(value))


def _head(boundary: str, field_name: str, file: Path) -> bytes:
    said = f'Content-Disposition: form-data; name="{field_name}"; filename="{file.name}"'
    return f"--{boundary}\r\n{said}\r\nContent-Type: application/octet-stream\r\n\r\n".encode()


def _form(heads: Sequence[bytes], files: Sequence[Path], end: bytes) -> Iterator[bytes]:
    for head, file in zip(heads, files, strict=True):
        yield head
        with file.open("rb") as content:
            while chunk := content.read(CHUNK):
                yield chunk
        yield b"\r\n"
    yield end
