"""The servers of a Sigstore instance on this machine: its certificate authority and its log of signatures.

They take what Sigstore's own client sends (Fulcio's API v2, Rekor's v1). `tests.fake_sigstore` has their keys.
"""

from __future__ import annotations

import base64
import json
import threading
import time
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import TYPE_CHECKING, Any, ClassVar

from cryptography import x509
from cryptography.hazmat.primitives.serialization import Encoding

from tests.fake_sigstore import GITHUB, WORKFLOW, FakeSigstore

if TYPE_CHECKING:
    from collections.abc import Iterator


def token(**claims: Any) -> str:
    """Return the token of a CI job, unsigned: the client reads it, and passes it on."""
    now = int(time.time())
    values = {"iss": GITHUB, "sub": "repo:example", "aud": "sigstore", "iat": now, "exp": now + 600, **claims}
    values = {"job_workflow_ref": WORKFLOW.removeprefix("https://github.com/"), **values}
    parts = (json.dumps(part).encode() for part in ({"alg": "none", "typ": "JWT"}, values))
    return ".".join([*(base64.urlsafe_b64encode(part).decode().rstrip("=") for part in parts), "c2ln"])


class _Handler(BaseHTTPRequestHandler):
    instance: ClassVar[FakeSigstore]
    requests: ClassVar[list[str]]

    def log_message(self, *_: object) -> None:
        """Print nothing."""

    def do_POST(self) -> None:
        body = json.loads(self.rfile.read(int(self.headers["Content-Length"])))
        self.requests.append(self.path)
        if self.path == "/api/v2/signingCert":
            claims = self.headers["Authorization"].split()[1].split(".")[1]
            answer = self.certificates(body, json.loads(base64.urlsafe_b64decode(claims + "==")))
        else:
            answer = self.entry(body)
        data = json.dumps(answer).encode()
        self.send_response(201)
        self.send_header("Content-Type", "application/json")
        self.send_header("Content-Length", str(len(data)))
        self.end_headers()
        self.wfile.write(data)

    def certificates(self, body: Any, claims: Any) -> Any:
        request = x509.load_pem_x509_csr(base64.b64decode(body["certificateSigningRequest"]))
        identity = f"https://github.com/{claims['job_workflow_ref']}"
        made = self.instance.certificate(request.public_key(), identity=identity, issuer=claims["iss"])
        chain = [one.public_bytes(Encoding.PEM).decode() for one in (made, self.instance.root)]
        return {"signedCertificateEmbeddedSct": {"chain": {"certificates": chain}}}

    def entry(self, body: Any) -> Any:
        proposed = body["spec"]["proposedContent"]
        verifier = x509.load_pem_x509_certificate(base64.b64decode(proposed["verifiers"][0]))
        envelope = json.loads(proposed["envelope"])
        made = self.instance.entry(envelope, verifier)
        proof = made["inclusionProof"]
        return {
            "0" * 64: {
                "body": made["canonicalizedBody"],
                "integratedTime": int(made["integratedTime"]),
                "logID": base64.b64decode(made["logId"]["keyId"]).hex(),
                "logIndex": 0,
                "verification": {
                    "signedEntryTimestamp": made["inclusionPromise"]["signedEntryTimestamp"],
                    "inclusionProof": {
                        "logIndex": 0,
                        "rootHash": base64.b64decode(proof["rootHash"]).hex(),
                        "treeSize": 1,
                        "hashes": [],
                        "checkpoint": proof["checkpoint"]["envelope"],
                    },
                },
            }
        }


def trust_config(instance: FakeSigstore, url: str) -> dict[str, Any]:
    """Return the client's configuration: where the servers are, and which keys they have."""
    service = {"url": url, "validFor": {"start": "2024-01-01T00:00:00Z"}, "operator": "localhost"}
    return {
        "mediaType": "application/vnd.dev.sigstore.clienttrustconfig.v0.1+json",
        "trustedRoot": instance.trusted_root(url),
        "signingConfig": {
            "mediaType": "application/vnd.dev.sigstore.signingconfig.v0.2+json",
            "caUrls": [{**service, "majorApiVersion": 1}],
            "oidcUrls": [{**service, "majorApiVersion": 1}],
            "rekorTlogUrls": [{**service, "majorApiVersion": 1}],
            "rekorTlogConfig": {"selector": "ANY"},
            "tsaUrls": [],
            "tsaConfig": {"selector": "ANY"},
        },
    }


@contextmanager
def served(instance: FakeSigstore) -> Iterator[tuple[str, list[str]]]:
    """Serve an instance, and yield its URL with the paths of the requests."""
    requests: list[str] = []
    handler = type("Handler", (_Handler,), {"instance": instance, "requests": requests})
    server = ThreadingHTTPServer(("127.0.0.1", 0), handler)
    thread = threading.Thread(target=server.serve_forever, daemon=True)
    thread.start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}", requests
    finally:
        server.shutdown()
        server.server_close()
        thread.join()
