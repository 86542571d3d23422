"""The two sides of trusted publishing: a provider that signs the identity of a job, and a server that verifies it.

Both are part of ``tests.channel_server``. The provider answers at ``/identity`` as GitHub's does; the server verifies
signature, issuer, audience, times, repository and workflow, and mints a token of its own.
"""

from __future__ import annotations

import base64
import json
import secrets
import time
from functools import cached_property
from typing import Any

from cryptography.exceptions import InvalidSignature
from cryptography.hazmat.primitives.asymmetric import padding, rsa
from cryptography.hazmat.primitives.hashes import SHA256

REQUEST_TOKEN = "r3quest-token"
ISSUER = "https://token.actions.githubusercontent.com"
AUDIENCE = "127.0.0.1"
REPOSITORY = "owner/small-feedstock"
WORKFLOW = f"{REPOSITORY}/.github/workflows/build.yml@refs/heads/main"
# What may be wrong with an identity; each is a claim, or the key.
FAULTS: dict[str, dict[str, Any]] = {
    "issuer": {"iss": "https://elsewhere"},
    "audience": {"aud": "another"},
    "expired": {"exp": 1},
    "repository": {"repository": "mallory/small-feedstock"},
    "workflow": {"job_workflow_ref": f"{REPOSITORY}/.github/workflows/other.yml@refs/heads/main"},
    "key": {},
}


class Provider:
    """The keys of a provider, and the tokens that a server has minted."""

    def __init__(self) -> None:
        self.minted: set[str] = set()

    @cached_property
    def key(self) -> rsa.RSAPrivateKey:
        """The key that the server knows; made when it is needed, since most servers of the tests need none."""
        return rsa.generate_private_key(65537, 2048)

    def identity(self, audience: str, fault: str) -> str:
        """Return the signed identity of a job for an audience."""
        now = int(time.time())
        claims = {"iss": ISSUER, "aud": audience, "iat": now, "exp": now + 300, "repository": REPOSITORY}
        claims |= {"job_workflow_ref": WORKFLOW, **FAULTS.get(fault, {})}
        content = ".".join(encoded(json.dumps(part).encode()) for part in ({"alg": "RS256", "typ": "JWT"}, claims))
        key = rsa.generate_private_key(65537, 2048) if fault == "key" else self.key
        return f"{content}.{encoded(key.sign(content.encode(), padding.PKCS1v15(), SHA256()))}"

    def mint(self, identity: str) -> str | None:
        """Return a new token for a job that the server trusts; None for another one."""
        content, _, signature = identity.rpartition(".")
        try:
            self.key.public_key().verify(decoded(signature), content.encode(), padding.PKCS1v15(), SHA256())
            header, claims = (json.loads(decoded(part)) for part in content.split("."))
        except (InvalidSignature, ValueError):
            return None
        expected = {"iss": ISSUER, "aud": AUDIENCE, "repository": REPOSITORY, "job_workflow_ref": WORKFLOW}
        if header["alg"] != "RS256" or claims["exp"] < time.time() or expected.items() - claims.items():
            return None
        token = f"pfx-jwt.{secrets.token_urlsafe(24)}"
        self.minted.add(token)
        return token


def encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def decoded(text: str) -> bytes:
    return base64.urlsafe_b64decode(text + "=" * (-len(text) % 4))
