"""A channel's files as anybody reads them: from a folder or over HTTP."""

from __future__ import annotations

import urllib.error
import urllib.request
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.errors import DownloadFailed

if TYPE_CHECKING:
    from collections.abc import Callable

TIMEOUT = 60.0


def reader(channel: str) -> Callable[[str], bytes | None]:
    """Return what reads a file of a channel, by its path there; None for one that is not there.

    Raises:
        DownloadFailed: when a server cannot be reached, or refuses.
    """
    if not channel.startswith(("http://", "https://")):
        root = Path(channel.removeprefix("file://"))
        return lambda path: (root / path).read_bytes() if (root / path).is_file() else None

    def read(path: str) -> bytes | None:
        url = f"{channel.rstrip('/')}/{path}"
        try:
            with urllib.request.urlopen(url, timeout=TIMEOUT) as answer:  # noqa: S310 - the schemes are those above
                content: bytes = answer.read()
                return content
        except urllib.error.HTTPError as error:
            if error.code == 404:
                return None
            raise DownloadFailed(f"{url} cannot be read", why=f"the server answered {error.code}") from error
        except OSError as error:
            raise DownloadFailed(f"{url} cannot be read", why=str(error)) from error

    return read
