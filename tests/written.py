"""Texts in the forms in which shells, formats and encodings write them; of the standard library alone.

As a program, for a build's script: each variable whose name begins with ``PLANTED_``, in every form.
"""

from __future__ import annotations

import base64
import html
import json
import os
import re
import shlex
import sys
import urllib.parse
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping


def _double_quoted(text: str) -> str:
    return '"' + re.sub(r'(["$`\\])', r"\\\1", text) + '"'


def _ansi(text: str) -> str:
    known = {"\n": "\\n", "'": "\\'", "\\": "\\\\", "\r": "\\r", "\t": "\\t"}
    return "$'" + "".join(known.get(item, item) for item in text) + "'"


def _octal(text: str) -> str:
    known = {"'": "\\'", "\\": "\\\\", "\n": "\\n"}
    octets = ((chr(item), item) for item in text.encode())
    return "$'" + "".join(known.get(c, c if n < 128 else f"\\{n:03o}") for c, n in octets) + "'"


FORMS: Mapping[str, Callable[[str], str]] = {
    "raw": lambda text: text,
    "single-quoted": shlex.quote,
    "single-quoted-bash": lambda text: "'" + text.replace("'", "'\\''") + "'",
    "double-quoted": _double_quoted,
    "backslashed": lambda text: re.sub(r"([^\w\n\-./:+=,%@])", r"\\\1", text),
    "ansi-c": _ansi,
    "ansi-c-octal": _octal,
    "json": json.dumps,
    "json-unicode": lambda text: json.dumps(text, ensure_ascii=False),
    "json-in-json": lambda text: json.dumps(json.dumps({"a": text})),
    "json-slashes": lambda text: json.dumps(text).replace("/", "\\/"),
    "python-repr": repr,
    "python-ascii": ascii,
    "python-bytes": lambda text: repr(text.encode()),
    "url": lambda text: urllib.parse.quote(text, safe=""),
    "url-lower": lambda text: re.sub("%..", lambda match: match[0].lower(), urllib.parse.quote(text, safe="")),
    "url-form": urllib.parse.quote_plus,
    "url-twice": lambda text: urllib.parse.quote(urllib.parse.quote(text, safe=""), safe=""),
    "url-all": lambda text: "".join(f"%{item:02X}" for item in text.encode()),
    "base64": lambda text: base64.b64encode(text.encode()).decode(),
    "base64-1": lambda text: base64.b64encode(b"u" + text.encode()).decode(),
    "base64-2": lambda text: base64.b64encode(b"u:" + text.encode() + b"\n").decode(),
    "base64-url": lambda text: base64.urlsafe_b64encode(text.encode()).decode().rstrip("="),
    "base64-wrapped": lambda text: base64.encodebytes(text.encode()).decode(),
    "hex": lambda text: text.encode().hex(),
    "hex-upper": lambda text: text.encode().hex().upper(),
    "hex-spaced": lambda text: text.encode().hex(" "),
    "hex-colons": lambda text: text.encode().hex(":"),
    "hex-escaped": lambda text: "".join(f"\\x{item:02x}" for item in text.encode()),
    "html": html.escape,
    "html-numbers": lambda text: "".join(c if c.isalnum() and c.isascii() else f"&#{ord(c)};" for c in text),
    "html-hex": lambda text: "".join(c if c.isalnum() and c.isascii() else f"&#x{ord(c):X};" for c in text),
    "xml": lambda text: html.escape(text).replace("&#x27;", "&apos;").replace("\n", "&#10;"),
    "yaml": lambda text: "'" + text.replace("'", "''").replace("\n", "\n\n  ") + "'",
    "crlf": lambda text: text.replace("\n", "\r\n"),
    "indented": lambda text: text.replace("\n", "\n      "),
    "listed": lambda text: text.replace("\n", "\n| "),
    "unquoted": lambda text: re.sub(r"[ \t\n]+", " ", text).strip(" "),  # a shell's words
    "in-url": lambda text: f"https://user:{urllib.parse.quote(text, safe='')}@example.org/x",
}


def main() -> None:
    """Print the planted variables."""
    for name, value in sorted(os.environ.items()):
        if name.startswith("PLANTED_"):
            for form, write in FORMS.items():
                sys.stdout.buffer.write(f"{name} as {form}: <<{write(value)}>>\n".encode())


if __name__ == "__main__":
    main()
