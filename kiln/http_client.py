"""The HTTP client: one attempt per request, redirects that carry no credentials away, failures with their status."""

from __future__ import annotations

import contextlib
import http.client
import urllib.error
import urllib.request
from typing import IO, TYPE_CHECKING
from urllib.parse import urlsplit

from kiln import channel_url_credentials

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from http.client import HTTPMessage, HTTPResponse

TIMEOUT = 60.0  # seconds without a byte
NOT_FOUND = 404
REFUSALS = frozenset({401, 403})


class HttpError(Exception):
    """A failed attempt; ``status`` is the server's, None where it gave no answer."""

    def __init__(self, message: str, status: int | None = None) -> None:
        super().__init__(message)
        self.status = status

    @property
    def is_auth_failure(self) -> bool:
        """True when the server does not accept the credentials."""
        return self.status in REFUSALS


class _NoRedirects(urllib.request.HTTPRedirectHandler):
    """Leave a redirect as the answer: urllib would repeat a write as a read, and send the token along."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """Return None, so that the redirect is an error."""


class _SafeRedirects(_NoRedirects):
    """Send credentials to no other server: urllib would send them to whatever server a redirect names."""

    def redirect_request(
        self, req: urllib.request.Request, fp: IO[bytes], code: int, msg: str, headers: HTTPMessage, newurl: str
    ) -> urllib.request.Request | None:
        """Return the request of the redirect's target."""
        leaves = urlsplit(newurl)[:2] != urlsplit(req.full_url)[:2]
        in_url = channel_url_credentials.url_without_credentials(req.full_url) != req.full_url
        if leaves and (in_url or req.has_header("Authorization")):
            raise OSError("it leads to another server, to which the credentials are not sent")
        return urllib.request.HTTPRedirectHandler.redirect_request(self, req, fp, code, msg, headers, newurl)


_FOLLOWING = urllib.request.build_opener(_SafeRedirects)
_STAYING = urllib.request.build_opener(_NoRedirects)


@contextlib.contextmanager
def send_request(
    url: str,
    *,
    method: str = "GET",
    headers: Mapping[str, str] | None = None,
    data: bytes | Iterator[bytes] | None = None,
    timeout: float = TIMEOUT,
    follow_redirects: bool = True,
) -> Iterator[HTTPResponse]:
    """Send one request and yield the response.

    Raises:
        HttpError: when the server cannot be reached, answers with an error, or breaks off while it is read.
    """
    opener = _FOLLOWING if follow_redirects else _STAYING
    try:
        request = urllib.request.Request(url, data=data, headers=dict(headers or {}), method=method)  # noqa: S310 - callers check the scheme
        with opener.open(request, timeout=timeout) as response:
            yield response
    except urllib.error.HTTPError as error:
        error.close()
        raise HttpError(f"the server answered {error.code}", error.code) from error
    except (OSError, http.client.HTTPException, ValueError) as error:
        raise HttpError(str(error) or type(error).__name__) from error


def content_length(response: HTTPResponse) -> int | None:
    """Return the size that the response's header announces."""
    size = response.headers.get("Content-Length", "")
    return int(size) if size.isdecimal() and len(size) < 20 else None
