"""The credentials of a remote executor: a folder of files, and the one secret variable of the compile step."""

from __future__ import annotations

import base64
import binascii
import json
import re
from typing import TYPE_CHECKING, Any

from kiln.errors import UsageError
from kiln.operating_system import users

if TYPE_CHECKING:
    from pathlib import Path

HEADERS = "headers"
# A file's name, and that of its text in the variable.
CERTIFICATES = {"ca.pem": "ca", "client.pem": "certificate", "client.key": "key"}
SECRET = ("client.key", HEADERS)
HEADER = re.compile(r"([A-Za-z0-9_.-]+)[ \t]*:[ \t]*(\S.*)")
LIMIT = 1 << 16  # bytes of a file
LONGEST = 120_000  # characters of the variable: Linux gives a process at most 131,072 bytes of each, with its name


def encode_credentials_folder(folder: Path) -> str:
    """Return the variable's value: base64 of a JSON object with all files of a folder.

    Raises:
        UsageError: for a missing or unknown file, one that others can read, or invalid or too much content; without
            the content.
    """
    try:
        names = sorted(path.name for path in folder.iterdir())
    except OSError as error:
        raise UsageError(f"cannot read the folder of credentials: {folder}", why=str(error.strerror)) from error
    unknown = [name for name in names if name not in {HEADERS, *CERTIFICATES}]
    if unknown or not names:
        raise UsageError(
            f"{folder} has {f'the unknown file {unknown[0]}' if unknown else 'no files'}",
            hint=f"its files are {', '.join((*CERTIFICATES, HEADERS))}; each may be missing",
        )
    if ("client.pem" in names) != ("client.key" in names):
        raise UsageError(f"{folder} has one of client.pem and client.key, and needs both or none")
    value: dict[str, Any] = {CERTIFICATES[name]: _read_pem_file(folder / name) for name in names if name != HEADERS}
    if HEADERS in names:
        value[HEADERS] = _read_headers_file(folder / HEADERS)
    variable = base64.b64encode(json.dumps(value).encode()).decode()
    if len(variable) > LONGEST:
        raise UsageError(
            f"the files in {folder} are too large together",
            why=f"they have {len(variable):,} characters in Base64, and a variable has at most {LONGEST:,}",
            hint="leave the certificates that the executor does not use out of ca.pem",
        )
    return variable


def is_encoded_credentials(text: str) -> bool:
    """Return whether a text is the variable's value, and not the name of a folder."""
    try:
        value = json.loads(base64.b64decode(text, validate=True))
    except (binascii.Error, ValueError):
        return False
    return isinstance(value, dict) and value.keys() <= {HEADERS, *CERTIFICATES.values()}


def secrets_in_encoded_credentials(variable: str) -> tuple[str, ...]:
    """Return the secrets inside the variable, which are masked like the whole: headers' values and the key.

    Of a value such as ``Bearer TOKEN``, what follows its scheme is one, too, for it may be printed alone.
    """
    try:
        value = json.loads(base64.b64decode(variable, validate=True))
        key = value.get("key", "")
        contents = [content for _, content in value.get(HEADERS, ())]
        tokens = [words[1] for content in contents if len(words := content.split(maxsplit=1)) > 1]
    except (binascii.Error, ValueError, TypeError, AttributeError):
        return ()
    return (*contents, *tokens, *([key] if key else []))


def _read_private_text(path: Path) -> str:
    try:
        status = path.stat()
        if path.name in SECRET and users.others_can_read(status):
            raise UsageError(f"others can read {path}", hint=f"chmod 600 {path}")
        with path.open("rb") as file:
            data = file.read(LIMIT + 1)
        if len(data) > LIMIT:
            raise UsageError(f"{path} is larger than {LIMIT} bytes")
        return data.decode()
    except OSError as error:
        raise UsageError(f"cannot read {path}", why=str(error.strerror)) from error
    except UnicodeDecodeError:
        raise UsageError(f"{path} is not text") from None


def _read_pem_file(path: Path) -> str:
    text = _read_private_text(path)
    if not re.search(r"^-----BEGIN [A-Z ]+-----\s", text, re.MULTILINE):
        raise UsageError(f"{path} is not a PEM file")
    return text


def _read_headers_file(path: Path) -> list[tuple[str, str]]:
    headers = []
    for number, line in enumerate(_read_private_text(path).splitlines(), start=1):
        if not line.strip():
            continue
        match = HEADER.fullmatch(line.strip())
        if match is None or not match[2].isprintable():
            raise UsageError(f"{path}:{number}: not a header", hint="one header to a line, as NAME: VALUE")
        headers.append((match[1], match[2]))
    return headers
