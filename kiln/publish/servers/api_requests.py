"""The requests to a server's own interface."""

from __future__ import annotations

import json
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln import http_client
from kiln.files import read_chunks
from kiln.http_client import HttpError

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping, Sequence
    from pathlib import Path

PROCESSING = 1800.0  # seconds for a server to answer a write: it may have gigabytes to read


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerApi:
    """A server's HTTP interface; ``headers`` hold the token. Each method is one attempt and raises HttpError."""

    headers: Mapping[str, str] = field(default_factory=dict, repr=False)

    def send_json_request(self, method: str, url: str, *, body: Any = None) -> None:
        """Send a request, with a body as JSON if there is one."""
        if body is None:
            self._send_request(method, url, None, {})
        else:
            self._send_request(method, url, json.dumps(body).encode(), {"Content-Type": "application/json"})

    def post_files(
        self,
        url: str,
        field_name: str,
        files: Sequence[Path],
        *,
        part_headers: Mapping[str, str] | None = None,
        texts: Mapping[str, str] | None = None,
    ) -> None:
        """Send files as one form, read while they are sent (RFC 7578), and after them ``texts`` by their fields."""
        boundary = secrets.token_hex(16)
        heads = [_file_part_header(boundary, field_name, file, part_headers or {}) for file in files]
        end = (
            b"".join(_text_form_part(boundary, *text) for text in (texts or {}).items())
            + f"--{boundary}--\r\n".encode()
        )
        size = len(end) + sum(len(head) + file.stat().st_size + 2 for head, file in zip(heads, files, strict=True))
        headers = {"Content-Type": f"multipart/form-data; boundary={boundary}", "Content-Length": str(size)}
        self._send_request("POST", url, _multipart_form_chunks(heads, files, end), headers)

    def _send_request(
        self, method: str, url: str, data: bytes | Iterator[bytes] | None, headers: Mapping[str, str]
    ) -> None:
        headers = {**self.headers, **headers}
        try:
            with http_client.send_request(
                url, method=method, headers=headers, data=data, timeout=PROCESSING, follow_redirects=False
            ) as response:
                response.read()
        except HttpError as error:
            raise HttpError(f"{method} {url}: {error}", error.status) from error


def _file_part_header(boundary: str, field_name: str, file: Path, more: Mapping[str, str]) -> bytes:
    disposition = f'Content-Disposition: form-data; name="{field_name}"; filename="{file.name}"'
    headers = "".join(f"{name}: {value}\r\n" for name, value in more.items())
    return f"--{boundary}\r\n{disposition}\r\nContent-Type: application/octet-stream\r\n{headers}\r\n".encode()


def _text_form_part(boundary: str, name: str, value: str) -> bytes:
    return f'--{boundary}\r\nContent-Disposition: form-data; name="{name}"\r\n\r\n{value}\r\n'.encode()


def _multipart_form_chunks(heads: Sequence[bytes], files: Sequence[Path], end: bytes) -> Iterator[bytes]:
    for head, file in zip(heads, files, strict=True):
        yield head
        with file.open("rb") as content:
            yield from read_chunks(content)
        yield b"\r\n"
    yield end
