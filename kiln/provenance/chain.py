"""The records of a channel as lines of JSON, each of which has the hash of the line before.

Whoever changes or drops a line changes the hashes of all that follow; who knows the last hash, or has the lines signed,
sees that.
"""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.errors import ProvenanceBroken

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kiln.model.provenance import Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class Link:
    """One line: ``record`` as JSON values, the hash of the line before, this one's own, and its signature if any."""

    record: Mapping[str, Any]
    previous: str
    hash: str
    signature: str = ""


def sealed(records: Iterable[Provenance], previous: str, sign: Callable[[str], str] | None = None) -> bytes:
    """Return the lines of records that follow a line of the hash ``previous``, which is empty for the first."""
    lines = []
    for record in records:
        told = dataclasses.asdict(record)
        digest = _hash(told, previous)
        signed = {"signature": sign(digest)} if sign else {}
        lines.append(_canonical({"record": told, "previous": previous, "hash": digest, **signed}))
        previous = digest
    return b"".join(line + b"\n" for line in lines)


def parsed(data: bytes) -> tuple[Link, ...]:
    """Return the lines of a chain, each seen to follow the one before.

    Raises:
        ProvenanceBroken: naming the first line that does not.
    """
    links: list[Link] = []
    for number, line in enumerate(data.splitlines(), 1):
        link = _link(number, line)
        previous = links[-1].hash if links else ""
        if link.previous != previous or link.hash != _hash(link.record, previous):
            raise ProvenanceBroken(
                f"line {number} of the channel's records does not follow the one before",
                why="a record was changed, dropped or put in after it was written",
            )
        links.append(link)
    return tuple(links)


def last_hash(data: bytes) -> str:
    """Return the hash of the last line, empty when there is none; raises ProvenanceBroken."""
    lines = data.splitlines()
    return _link(len(lines), lines[-1]).hash if lines else ""


def without(data: bytes, hashes: Iterable[str]) -> bytes:
    """Return a chain without its last lines as far as they are of packages with these hashes."""
    gone = set(hashes)
    lines = data.splitlines(keepends=True)
    while lines and _link(len(lines), lines[-1]).record.get("sha256") in gone:
        lines.pop()
    return b"".join(lines)


def _link(number: int, line: bytes) -> Link:
    try:
        link = Link(**json.loads(line))
    except (ValueError, TypeError) as error:
        raise ProvenanceBroken(f"line {number} of the channel's records is none", why=str(error)) from error
    if not isinstance(link.record, dict):
        raise ProvenanceBroken(f"line {number} of the channel's records is none", why="its record is no object")
    return link


def _hash(record: Mapping[str, Any], previous: str) -> str:
    return hashlib.sha256(_canonical({"record": record, "previous": previous})).hexdigest()


def _canonical(value: object) -> bytes:
    return json.dumps(value, sort_keys=True, separators=(",", ":")).encode()
