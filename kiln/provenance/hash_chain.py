"""The records of a channel as lines of JSON, each of which has the hash of the line before.

A changed or removed line changes the hashes of all lines that follow; the last hash, or the signatures, prove it.
"""

from __future__ import annotations

import dataclasses
import hashlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.conda_package import reader
from kiln.errors import ProvenanceBroken
from kiln.serialization import canonical_json

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kiln.model.provenance import Provenance


@dataclass(frozen=True, slots=True, kw_only=True)
class ChainedRecord:
    """One line: ``record`` as JSON values, the hash of the line before, its own hash, and its signature if any."""

    record: Mapping[str, Any]
    previous: str
    hash: str
    signature: str = ""


def serialize_chain(records: Iterable[Provenance], previous: str, sign: Callable[[str], str] | None = None) -> bytes:
    """Return the lines of records after a line with the hash ``previous``, which is empty for the first."""
    lines = []
    for record in records:
        values = dataclasses.asdict(record)
        digest = _record_hash(values, previous)
        signature = {"signature": sign(digest)} if sign else {}
        lines.append(canonical_json({"record": values, "previous": previous, "hash": digest, **signature}))
        previous = digest
    return b"".join(line + b"\n" for line in lines)


def parse_chain(data: bytes) -> tuple[ChainedRecord, ...]:
    """Return the lines of a chain, each of which follows the one before.

    Raises:
        ProvenanceBroken: naming the first line that does not.
    """
    links: list[ChainedRecord] = []
    for number, line in enumerate(data.splitlines(), 1):
        link = _parse_line(number, line)
        previous = links[-1].hash if links else ""
        if link.previous != previous or link.hash != _record_hash(link.record, previous):
            raise ProvenanceBroken(
                f"line {number} of the channel's records does not follow the one before",
                why="a record was changed, removed or inserted later",
            )
        links.append(link)
    return tuple(links)


def last_record_hash(data: bytes) -> str:
    """Return the hash of the last line, empty without lines; raises ProvenanceBroken."""
    lines = data.splitlines()
    return _parse_line(len(lines), lines[-1]).hash if lines else ""


def chain_without_trailing_records(data: bytes, hashes: Iterable[str]) -> bytes:
    """Return a chain without those of its last lines that are of packages with these hashes."""
    removed = set(hashes)
    lines = data.splitlines(keepends=True)
    while lines and _parse_line(len(lines), lines[-1]).record.get("sha256") in removed:
        lines.pop()
    return b"".join(lines)


def _parse_line(number: int, line: bytes) -> ChainedRecord:
    try:
        link = ChainedRecord(**reader.parse_strict_json(line))
    except (ValueError, TypeError) as error:
        raise _invalid_line_error(number, str(error)) from error
    if not isinstance(link.record, dict):
        raise _invalid_line_error(number, "its record is not an object")
    if not all(isinstance(text, str) for text in (link.previous, link.hash, link.signature)):
        raise _invalid_line_error(number, "a hash or a signature in it is not text")
    return link


def _invalid_line_error(number: int, why: str) -> ProvenanceBroken:
    return ProvenanceBroken(
        f"line {number} of the channel's records is invalid",
        why=why,
        hint="the file was damaged or changed: request the records from the channel's owner",
    )


def _record_hash(record: Mapping[str, Any], previous: str) -> str:
    return hashlib.sha256(canonical_json({"record": record, "previous": previous})).hexdigest()
