"""Trusted publishing: the identity of a CI job, exchanged for a server's short-lived token. No secret is stored.

Sources: GitHub's page "OpenID Connect reference" (ACTIONS_ID_TOKEN_REQUEST_URL and its token), GitLab's "ID tokens",
and rattler's trusted_publishing.rs for the exchange of prefix.dev (audience, /api/oidc/mint_token, PREFIX_ID_TOKEN).
"""

from __future__ import annotations

import functools
import json
import re
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import quote, urlsplit

from kiln import http_client, masking
from kiln.errors import TokenRefused
from kiln.http_client import HttpError

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

REQUEST_URL, REQUEST_TOKEN = "ACTIONS_ID_TOKEN_REQUEST_URL", "ACTIONS_ID_TOKEN_REQUEST_TOKEN"
GITLAB_TOKEN = "PREFIX_ID_TOKEN"  # noqa: S105 - the variable's name
MINT = "/api/oidc/mint_token"
RENEWAL = 120.0  # seconds after which a token is exchanged anew; servers do not say how long theirs live
LARGEST = 1 << 16  # bytes of an answer
LOOPBACK = frozenset({"localhost", "127.0.0.1", "::1"})
_TOKEN = re.compile(r"[\x21-\x7e]+")  # that a header can carry
HINT = (
    "on GitHub: permissions: {id-token: write} for this job; on GitLab: id_tokens: {PREFIX_ID_TOKEN: {aud: prefix.dev}}"
)


def oidc_audience(url: str) -> str:
    """Return the audience that a server requires: its host, so that no other server can use the identity.

    All hosts of prefix.dev require the same.
    """
    host = urlsplit(url).hostname or ""
    return "prefix.dev" if host.endswith(".prefix.dev") else host


def request_github_id_token(request_url: str, request_token: str, audience: str) -> str:
    """Return the ID token of this job of GitHub Actions for an audience, which its runner requests.

    Raises:
        HttpError: when GitHub does not give it.
    """
    parts = urlsplit(request_url)
    if parts.scheme != "https" and parts.hostname not in LOOPBACK:
        why = "the job's identity would be sent unencrypted"
        raise TokenRefused(f"{REQUEST_URL} is not a URL of https", why=why)
    url = f"{request_url}{'&' if parts.query else '?'}audience={quote(audience, safe='')}"
    answer = _request_with_size_limit("GET", url, {"Authorization": f"Bearer {request_token}"})
    try:
        value = json.loads(answer)["value"]
    except (ValueError, KeyError, TypeError) as error:
        raise HttpError(f"{REQUEST_URL} answered without a token") from error
    return _mask_token(str(value), REQUEST_URL)


@dataclass(slots=True, kw_only=True)
class TrustedPublisher:
    """Credentials for a server of prefix.dev's kind, exchanged for the job's identity when they are needed.

    ``id_token`` returns the identity for an audience. A token lives for minutes only, and a publication may take
    longer: an old one is replaced by another exchange.
    """

    url: str
    id_token: Callable[[str], str] = field(repr=False)
    clock: Callable[[], float] = time.monotonic
    _token: str = field(default="", init=False, repr=False)
    _since: float = field(default=0.0, init=False, repr=False)

    @classmethod
    def from_ci_job(cls, url: str, environment: Mapping[str, str]) -> TrustedPublisher | None:
        """Return the credentials of this CI job for a server; None if the job has no identity."""
        request_url, request_token = environment.get(REQUEST_URL), environment.get(REQUEST_TOKEN)
        if request_url and request_token:
            return cls(url=url, id_token=functools.partial(request_github_id_token, request_url, request_token))
        given = environment.get(GITLAB_TOKEN)  # made for the audience that the pipeline names
        return cls(url=url, id_token=lambda _: given) if given else None

    @property
    def token(self) -> str:
        """A token that is accepted now.

        Raises:
            TokenRefused: when the server does not trust this job.
            HttpError: when the exchange fails and may be tried again.
        """
        if not self._token or self.clock() - self._since >= RENEWAL:
            now = self.clock()
            self._token, self._since = self._exchange_identity_for_token(), now
        return self._token

    def auth_headers(self, name: str, form: str) -> dict[str, str]:
        """Return the header of a request."""
        return {name: form.format(self.token)}

    def text_without_token(self, text: str) -> str:
        """Return a text without the token."""
        return text.replace(self._token or "\0", "***")

    def _exchange_identity_for_token(self) -> str:
        try:
            statement = self.id_token(oidc_audience(self.url))
        except HttpError as error:
            if error.is_auth_failure:
                why = f"GitHub answered {error.status}"
                raise TokenRefused("this CI job has no identity to publish with", why=why, hint=HINT) from error
            raise
        body = json.dumps({"token": statement}).encode()
        try:
            answer = _request_with_size_limit("POST", f"{self.url}{MINT}", {"Content-Type": "application/json"}, body)
        except HttpError as error:
            if error.status is not None and 400 <= error.status < 500 and error.status != 429:
                raise TokenRefused(
                    f"{self.url} does not trust this CI job ({error.status})",
                    why="no trusted publisher of the server has this repository and this workflow",
                    hint="name them on the page of the channel, and on that of its channel for staging",
                ) from error
            raise
        return _mask_token(answer.decode("utf-8", "replace").strip(), MINT)


def _request_with_size_limit(method: str, url: str, headers: Mapping[str, str], body: bytes | None = None) -> bytes:
    """Return the answer to one request, which no redirect carries elsewhere; an error names the URL's place alone."""
    bare = url.partition("?")[0]
    try:
        with http_client.send_request(
            url, method=method, headers=headers, data=body, follow_redirects=False
        ) as response:
            data: bytes = response.read(LARGEST + 1)
    except HttpError as error:
        raise HttpError(f"{method} {bare}: {error}", error.status) from error
    if len(data) > LARGEST:
        raise HttpError(f"{method} {bare}: the answer has more than {LARGEST} bytes")
    return data


def _mask_token(token: str, source: str) -> str:
    """Return a token, masked from now on in all output."""
    if not _TOKEN.fullmatch(token):
        raise HttpError(f"{source} answered without a token")
    masking.register_secrets([token])
    return token
