"""Secrets that tests plant, and a search for them that uses none of kiln's code: in all forms of `tests.written`."""

from __future__ import annotations

import functools
from types import MappingProxyType
from typing import TYPE_CHECKING

from tests.written import FORMS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

# A token, one with all that shells and formats quote, one of several lines, one of few characters, one with other
# letters than English, a password of a URL.
SECRETS = {
    "PLANTED_TOKEN": "tk-9f8E7d6C5b4A3210zyXW",
    "PLANTED_QUOTED": """p4ss'w0rd "x" $HOME \\n `id` & <b> %41 !q""",
    "PLANTED_KEY": "-----BEGIN KEY-----\nMIIEpAIBAAKCAQEA7qF3\nab'c\n\"Zx9/+==\n"
    "qQ8+Vb2uW1yT0rS5nM6kLj3hGf4dS7aZ8xC\n-----END KEY-----",
    "PLANTED_PIN": "Q7#z9",
    "PLANTED_WORD": "Pässwört-Ω-7f3a",
    "PLANTED_ROWS": "r1x\nr2'y\nr3z\nr4\"w",
}
LONG = 12  # characters of a line that is unlikely to occur by chance
ONE_LETTER = {"PLANTED_LETTER": "k"}  # too short to be masked; it must not spoil the others


@functools.lru_cache(maxsize=64)
def written(secret: str) -> Mapping[str, str]:
    """Return a secret in each distinct form."""
    every = {name: form(secret) for name, form in FORMS.items()}
    distinct = {
        name: text for name, text in every.items() if text not in list(every.values())[: list(every).index(name)]
    }
    return MappingProxyType(distinct)


@functools.lru_cache(maxsize=64)
def _sought_by_form(secret: str) -> tuple[tuple[str, tuple[bytes, ...]], ...]:
    """Return the search texts of a secret in each distinct form."""
    return tuple(
        (name, tuple(_sought(text.strip("'\"$") if len(text) > LONG else text)))
        for name, text in written(secret).items()
    )


def _sought(text: str) -> Iterator[bytes]:
    """Yield the search texts of a form: all of it, and its lines except short ones, which may occur by chance."""
    yield text.encode()
    yield from (line.strip().encode() for line in text.splitlines() if len(line.strip()) >= LONG)


def found(data: bytes, secrets: Mapping[str, str] = SECRETS) -> list[str]:
    """Return the secrets that some bytes contain, each with its form."""
    names = []
    for variable, secret in secrets.items():
        for name, parts in _sought_by_form(secret):
            if any(part in data for part in parts):
                names.append(f"{variable} as {name}")
    return names
