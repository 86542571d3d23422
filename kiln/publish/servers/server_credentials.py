"""A server's credentials, from rattler's file of credentials, and as headers of requests."""

from __future__ import annotations

import base64
import fnmatch
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING
from urllib.parse import urlsplit

from kiln.errors import TokenRefused

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerCredentials:
    """A token, or a user with a password in the form of HTTP's basic authentication."""

    token: str | None = field(default=None, repr=False)
    basic: str | None = field(default=None, repr=False)

    @classmethod
    def from_file(cls, file: Path, url: str) -> ServerCredentials:
        """Return what rattler's file of credentials has for a server: by its name, or by a pattern with a star.

        The format is rattler's (``RATTLER_AUTH_FILE`` in the documentation of pixi and rattler-build).

        Raises:
            TokenRefused: when the file has nothing for the server, or cannot be read.
        """
        host = urlsplit(url).hostname or ""
        try:
            content = json.loads(file.read_text(encoding="utf-8"))
            names = sorted((name for name in content if fnmatch.fnmatchcase(host, name)), key=lambda name: "*" in name)
            kind, value = next(iter(content[names[0]].items()))
        except (OSError, ValueError, AttributeError, IndexError, StopIteration) as error:
            raise TokenRefused(f"no token for {host}", why=f"{file} has none that can be read") from error
        if kind == "BasicHTTP":
            pair = f"{value['username']}:{value['password']}".encode()
            return cls(basic=base64.b64encode(pair).decode())
        return cls(token=str(value))

    def auth_headers(self, name: str, form: str) -> dict[str, str]:
        """Return the header of a request: HTTP's own, or the one of this name in which a server takes a token."""
        if self.basic:
            return {"Authorization": f"Basic {self.basic}"}
        return {name: form.format(self.token)} if self.token else {}

    def text_without_token(self, text: str) -> str:
        """Return a text without the token."""
        return text.replace(self.token or "\0", "***")
