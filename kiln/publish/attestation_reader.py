"""The attestations of a package in a channel, found as clients find them: by the hash in the index (CEP 50)."""

from __future__ import annotations

from kiln.errors import ProvenanceBroken
from kiln.provenance.bundles import LARGEST_SIDECAR
from kiln.provenance.statements import SHA256
from kiln.publish import channel_file_reader
from kiln.publish.attestation_sidecars import ENDING, digest

LARGEST = LARGEST_SIDECAR


def read_sidecar(url: str, sha256: object) -> bytes:
    """Return the sidecar of the package at a URL, which the index names by its hash.

    Raises:
        ProvenanceBroken: when the hash is invalid, the file is missing, or it is another one.
        LimitExceeded: when it is too large.
        DownloadFailed, TokenRefused: when the server does not send it.
    """
    folder, _, file = url.rpartition("/")
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise ProvenanceBroken(f"the index has an invalid attestations_sha256 of {file}", hint=_HINT)
    data = channel_file_reader.reader(folder, LARGEST)(f"{file}{ENDING}.{sha256}")
    if data is None:
        raise ProvenanceBroken(
            f"the attestations of {file} are missing", why=f"the index names {file}{ENDING}.{sha256}", hint=_HINT
        )
    if digest(data) != sha256:
        raise ProvenanceBroken(
            f"the attestations of {file} are not those of the index", why=f"their hash is {digest(data)}", hint=_HINT
        )
    return data


_HINT = "request the attestations from the channel's owner"
