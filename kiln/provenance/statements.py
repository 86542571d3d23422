"""Statements about one package, as in-toto defines them: that it was published (CEP 27), and how it was made (SLSA).

Sources: https://github.com/in-toto/attestation/blob/main/spec/v1/statement.md, CEP 27,
https://slsa.dev/spec/v1.0/provenance.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.conda_package.reader import parse_strict_json
from kiln.serialization import canonical_json

if TYPE_CHECKING:
    from collections.abc import Mapping

STATEMENT = "https://in-toto.io/Statement/v1"
PUBLISH = "https://schemas.conda.org/attestations-publish-1.schema.json"
SLSA = "https://slsa.dev/provenance/v1"
LONGEST_CHANNEL = 2083  # characters, in CEP 27
SHA256 = re.compile(r"[0-9a-f]{64}")
_URL = re.compile(r"[a-z][a-z0-9+.-]*://[^\s]+")


@dataclass(frozen=True, slots=True, kw_only=True)
class Statement:
    """A valid statement: its type of predicate, the hashes of its subjects by their names, and the predicate."""

    kind: str
    subjects: Mapping[str, str]
    predicate: Mapping[str, Any]

    @property
    def channel(self) -> str:
        """The channel that a package is published to, empty in other statements."""
        return str(self.predicate.get("targetChannel", "")) if self.kind == PUBLISH else ""

    def subject_mismatch(self, file: str, sha256: str) -> str:
        """Return why the statement is not about a file; empty when it is."""
        if file not in self.subjects:
            return f"it is about {', '.join(list(self.subjects)[:3])}, not {file}"
        if self.subjects[file] != sha256:
            return f"it is about another {file}, of the hash {self.subjects[file]}"
        return ""


def publication_statement(file: str, sha256: str, channel: str) -> bytes:
    """Return the statement that a package is published to a channel."""
    return _serialized_statement(PUBLISH, file, sha256, {"targetChannel": channel.rstrip("/")})


def slsa_statement(file: str, sha256: str, predicate: Mapping[str, Any]) -> bytes:
    """Return the statement of how a package was made."""
    return _serialized_statement(SLSA, file, sha256, predicate)


def parse_statement(payload: bytes) -> Statement:
    """Return the statement in the payload of an envelope.

    Raises:
        ValueError: when it is not a valid one.
    """
    value = parse_strict_json(payload)
    if not isinstance(value, dict) or value.get("_type") != STATEMENT:
        raise ValueError("it is not an in-toto statement of version 1")
    kind, predicate = value.get("predicateType"), value.get("predicate")
    if not isinstance(kind, str):
        raise ValueError("its type of predicate is not text")  # noqa: TRY004 - one type for all faults
    subjects = _parse_subjects(value.get("subject"))
    if kind == PUBLISH:
        _require_valid_publication(subjects, predicate)
    elif not isinstance(predicate, dict):
        raise ValueError("its predicate is not an object")
    return Statement(kind=kind, subjects=subjects, predicate=predicate or {})


def _parse_subjects(value: Any) -> dict[str, str]:
    """Return the hashes of subjects by name."""
    if not isinstance(value, list) or not value:
        raise ValueError("it has no list of subjects")
    subjects: dict[str, str] = {}
    for subject in value:
        name = subject.get("name") if isinstance(subject, dict) else None
        digest = subject.get("digest") if isinstance(subject, dict) else None
        sha256 = digest.get("sha256") if isinstance(digest, dict) else None
        if not isinstance(name, str) or not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
            raise ValueError("a subject has no name, or no SHA-256 of 64 lowercase digits")
        if subjects.setdefault(name, sha256) != sha256:
            raise ValueError("a subject is there twice, with two hashes")
    return subjects


def _require_valid_publication(subjects: Mapping[str, str], predicate: Any) -> None:
    """Check what CEP 27 says of its predicate and its subject."""
    if len(subjects) != 1:
        raise ValueError("a publish attestation has one subject")
    if predicate is None:
        return
    channel = predicate.get("targetChannel") if isinstance(predicate, dict) else None
    if not isinstance(channel, str) or not _URL.fullmatch(channel) or len(channel) > LONGEST_CHANNEL:
        raise ValueError("its targetChannel is not a URL")
    if channel.endswith("/"):
        raise ValueError("its targetChannel ends in a slash")


def _serialized_statement(kind: str, file: str, sha256: str, predicate: Mapping[str, Any]) -> bytes:
    subject = {"name": file, "digest": {"sha256": sha256}}
    value = {"_type": STATEMENT, "subject": [subject], "predicateType": kind, "predicate": predicate}
    return canonical_json(value)
