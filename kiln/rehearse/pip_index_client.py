"""The Python package indexes that pip is configured for, asked for the files of a project with their hashes.

An answer is JSON (PEP 691) or HTML (PEP 503) with the hash in the fragment of each link; an index may be a folder.
"""

from __future__ import annotations

import ast
import json
import re
import sys
from dataclasses import dataclass
from html.parser import HTMLParser
from pathlib import Path
from typing import TYPE_CHECKING, Any
from urllib.parse import unquote, urljoin, urlsplit

from packaging.utils import canonicalize_name

from kiln import channel_url_credentials, http_client, process_runner
from kiln.lazy_pattern import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ACCEPT = "application/vnd.pypi.simple.v1+json, text/html;q=0.1"
_SECONDS = 60.0
_LARGEST = 100_000_000  # bytes of an answer
# The layouts of an index: by project, and by the hash of the file.
_BY_PROJECT = lazy_pattern(r"/packages/[^/]+/[^/]/(?P<name>[^/]+)/[^/]+$")
_BY_HASH = lazy_pattern(r"/packages/[0-9a-f]{2}/[0-9a-f]{2}/[0-9a-f]{60}/(?P<file>[^/]+)$")
_SETTING = lazy_pattern(r"^(?P<place>[^.]+)\.(?P<key>[\w-]+)=(?P<value>.+)$", re.MULTILINE)
_SHA256 = lazy_pattern(r"sha256=([0-9a-f]{64})")


@dataclass(frozen=True, slots=True, kw_only=True)
class IndexFile:
    """A file of a project on an index; ``size`` is 0 where the index does not have it."""

    name: str
    url: str
    sha256: str
    size: int = 0


def configured_indexes(env: Mapping[str, str]) -> tuple[str, ...]:
    """Return the indexes that pip is configured for, the main one first, without their credentials, which are kept.

    ``env`` is pip's environment.
    """
    from pip._internal.models.index import PyPI  # pip lists no default

    words = ("config", "list", "--disable-pip-version-check")
    result = process_runner.capture((sys.executable, "-m", "pip", *words), env=env, timeout=_SECONDS)
    main, extra = PyPI.simple_url, ""
    for match in _SETTING.finditer(result.stdout):  # pip lists the settings with the highest precedence last
        if match["place"] in {"global", "install", ":env:"} and match["key"] in {"index-url", "extra-index-url"}:
            value = _unquoted_setting(match["value"])
            main, extra = (value, extra) if match["key"] == "index-url" else (main, value)
    return channel_url_credentials.register_credentials(url.rstrip("/") for url in (main, *extra.split()))


def _unquoted_setting(text: str) -> str:
    try:
        return str(ast.literal_eval(text))
    except (SyntaxError, ValueError):
        return text


def project_of_url(url: str) -> str:
    """Return the project of a file on a Python package index; empty for other addresses."""
    path = unquote(urlsplit(url).path)
    if match := _BY_PROJECT.search(path):
        return match["name"]
    match = _BY_HASH.search(path)
    return re.split(r"-v?\d", match["file"], maxsplit=1)[0] if match else ""


def project_files(project: str, index: str) -> Iterator[IndexFile]:
    """Yield the files of a project that have a SHA-256.

    Raises:
        HttpError: when the index does not answer, or has no such project.
    """
    url = f"{index}/{canonicalize_name(project)}/"
    data, is_json = _fetch_project_page(url)
    yield from _files_from_json(data, url) if is_json else _files_from_html(data, url)


def _fetch_project_page(url: str) -> tuple[bytes, bool]:
    """Return the answer of an index, and whether it is JSON."""
    parts = urlsplit(url)
    if parts.scheme == "file":
        try:
            return (Path(unquote(parts.path)) / "index.html").read_bytes(), False
        except OSError as error:
            raise http_client.HttpError(str(error)) from error
    headers = {"Accept": ACCEPT, "User-Agent": "kiln", **channel_url_credentials.request_headers(url)}
    with http_client.send_request(url, headers=headers) as response:
        data = response.read(_LARGEST + 1)
        if len(data) > _LARGEST:
            raise http_client.HttpError(f"the answer has more than {_LARGEST:,} bytes")
        return data, "json" in response.headers.get("Content-Type", "")


def _files_from_json(data: bytes, base: str) -> Iterator[IndexFile]:
    try:
        content: Any = json.loads(data)
        for entry in content["files"]:
            if sha256 := entry["hashes"].get("sha256"):
                size = entry.get("size")
                yield IndexFile(
                    name=str(entry["filename"]),
                    url=urljoin(base, str(entry["url"])),
                    sha256=str(sha256),
                    size=size if isinstance(size, int) else 0,
                )
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise http_client.HttpError(f"the answer is not an index's: {error}") from error


def _files_from_html(data: bytes, base: str) -> Iterator[IndexFile]:
    links = _LinkCollector()
    links.feed(data.decode("utf-8", "replace"))
    for address in links.addresses:
        parts = urlsplit(urljoin(base, address))
        if match := _SHA256.fullmatch(parts.fragment):
            url = parts._replace(fragment="").geturl()
            yield IndexFile(name=unquote(Path(parts.path).name), url=url, sha256=match[1])


class _LinkCollector(HTMLParser):
    """The addresses of all links of a page."""

    def __init__(self) -> None:
        super().__init__()
        self.addresses: list[str] = []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        """Keep the address of a link."""
        self.addresses += [value for name, value in attrs if tag == "a" and name == "href" and value]
