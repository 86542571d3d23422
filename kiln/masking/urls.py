"""The credentials in URLs and headers: users and passwords, conda's ``/t/TOKEN/``, tokens and signatures of queries."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING
from urllib.parse import unquote

from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator

MASKED = "***"
_NAMES = (
    r"(?:[a-z_-]*(?:token|signature|password|passwd|secret)|sig|pwd|auth|key|api[-_]?key|awsaccesskeyid"
    r"|x-(?:amz|goog)-credential)"
)
_NAME_PARTS = ("token", "sig", "passw", "secret", "pwd", "auth", "key", "credential")  # each of _NAMES has one
_USER = lazy_pattern(r"(?<=://)[^/\s?#'\"<>]+(?=@)")
_PATH = lazy_pattern(r"(?<=/t/)(?:[A-Za-z]{2}-[0-9A-Fa-f-]{20,}|[^/\s?#'\"<>]+)")
_QUERY = lazy_pattern(rf"(?<=[?&;]){_NAMES}=(?P<value>[^&\s'\"#<>;]+)", re.IGNORECASE)
_HEADER = lazy_pattern(
    r"\b(?:authorization|x-api-key|x-jfrog-art-api)['\"]?\s{0,4}[:=]\s{0,4}['\"]?"
    r"(?:(?:basic|bearer|token)\s{1,4})?(?P<value>[^\s'\",]+)",
    re.IGNORECASE,
)
_HEADER_WORDS = ("uthorization", "AUTHORIZATION", "-api-key", "-Api-Key", "-API-KEY", "-art-api", "-Art-Api")
_IN_URL = lazy_pattern(r"://[^\s'\"<>]*?/t/")


def credential_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of credentials in a text."""
    if "://" in text:
        yield from (match.span() for match in _USER.finditer(text))
    if "/t/" in text:
        yield from _conda_token_spans(text)
    if "=" in text and ("?" in text or "&" in text or ";" in text) and _may_contain_secret_parameter(text):
        yield from (match.span("value") for match in _QUERY.finditer(text))
    if any(word in text for word in _HEADER_WORDS):
        yield from (match.span("value") for match in _HEADER.finditer(text))


def _may_contain_secret_parameter(text: str) -> bool:
    """Return whether a text has a part of the names in `_NAMES`; other alphabets have letters that count as theirs."""
    if not text.isascii():
        return True
    lower = text.lower()
    return any(part in lower for part in _NAME_PARTS)


def _conda_token_spans(text: str) -> Iterator[tuple[int, int]]:
    """Yield the spans of conda's tokens: any in a URL, elsewhere those in the form of anaconda.org."""
    within = {match.end() for match in _IN_URL.finditer(text)}
    for match in _PATH.finditer(text):
        if match.start() in within or re.fullmatch(r"[A-Za-z]{2}-[0-9A-Fa-f-]{20,}", match[0]):
            yield match.span()


def has_credentials(text: str) -> bool:
    """Return whether there are credentials in a text."""
    return next(credential_spans(text), None) is not None


def with_masked_credentials(text: str) -> str:
    """Return a text with the credentials of every URL masked."""
    return mask_spans(text, credential_spans(text))


def secrets_in_urls(text: str) -> tuple[str, ...]:
    """Return the passwords and tokens in a text's URLs, as written and unquoted."""
    secrets = []
    for start, end in credential_spans(text):
        value = text[start:end]
        is_user = text[end : end + 1] == "@" and text[:start].endswith("://")
        secret = value.partition(":")[2] if is_user else value
        secrets += [secret, unquote(secret)]
    return tuple(dict.fromkeys(filter(None, secrets)))


def mask_spans(text: str, places: Iterator[tuple[int, int]] | list[tuple[int, int]]) -> str:
    """Return a text with spans masked; those that touch or overlap become one."""
    parts: list[str] = []
    at = 0
    for start, end in sorted(places):
        if parts and start <= at:
            at = max(at, end)
        elif start < end:
            parts += [text[at:start], MASKED]
            at = end
    return "".join((*parts, text[at:])) if parts else text
