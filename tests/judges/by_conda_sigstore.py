"""Verify a package with conda-sigstore, which PyPI has, where conda is missing: what it needs of that is here.

Arguments: the package, its sidecar, a trust configuration of Sigstore, the channel, an identity and its issuer. Prints
the status and the types of the verified statements.
"""

from __future__ import annotations

import hashlib
import importlib.util
import json
import sys
import types
from pathlib import Path
from typing import Any


def lend(name: str, **names: object) -> None:
    """Have a module of conda with these names."""
    module = types.ModuleType(name)
    for key, value in {"__path__": [], **names}.items():
        setattr(module, key, value)
    sys.modules[name] = module


def main(package: str, sidecar: str, config: str, channel: str, identity: str, issuer: str) -> None:
    if importlib.util.find_spec("conda") is None:
        for name in ("conda", "conda.common", "conda.gateways", "conda.gateways.disk"):
            lend(name)
        lend("conda.common.url", split_anaconda_token=lambda path: (path, None))
        lend("conda.exceptions", CondaError=Exception)
        lend("conda.gateways.disk.read", compute_sum=lambda path, _: hashlib.sha256(path.read_bytes()).hexdigest())
    from conda_sigstore import evidence, verification

    data = Path(sidecar).read_bytes()
    told: Any = verification.verify_artifact(
        Path(package),
        evidence.Sidecar(hashlib.sha256(data).hexdigest(), tuple(map(json.dumps, json.loads(data)))),
        verifier=verification.SigstoreVerifier(offline=True, trust_config=Path(config)),
        channel=channel,
        expected_signer=evidence.SignerIdentity(identity, issuer),
    )
    print(told.status.value, *(item.predicate_type for item in told.evidence if item.verified))
    print(told.failures, file=sys.stderr)


if __name__ == "__main__":
    main(*sys.argv[1:])
