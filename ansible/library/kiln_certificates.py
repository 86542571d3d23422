#!/usr/bin/python
"""Make the certificates of a run's pool on the controller: an authority of the run, its server's and its clients'."""

from __future__ import annotations

import datetime as dt
import fcntl
import ipaddress
import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from cryptography.hazmat.primitives.asymmetric.ec import EllipticCurvePrivateKey
    from cryptography.x509 import Certificate, Name

DOCUMENTATION = """
---
module: kiln_certificates
short_description: Make the certificates of the pool of a run of kiln's fleet
description:
  - C(pool-authority), C(pool-server) and C(pool-client) in the folder have a certificate and a key each, and the last
    two the authority's certificate. The authority's key never leaves the controller.
  - What exists is kept; the server's certificate is made anew for another address.
options:
  folder:
    description: The folder of the run's keys, an absolute path.
    type: path
    required: true
  address:
    description: The IP address of the server.
    type: str
    required: true
  name:
    description: The name of the run.
    type: str
    required: true
author:
  - kiln (@kiln)
"""

EXAMPLES = """
- name: Make the certificates of the pool
  kiln_certificates:
    folder: /home/me/feedstock/build_artifacts/fleet/one/keys
    address: 192.0.2.7
    name: one
"""

RETURN = """
made:
  description: The folders with new certificates.
  returned: always
  type: list
  elements: str
"""

DAYS = 60  # a run and its controller live for a month at most
AUTHORITY, SERVER, CLIENT = "pool-authority", "pool-server", "pool-client"


def make(folder: Path, *, address: str, name: str) -> list[str]:
    """Make the missing certificates, and return the names of their folders; several processes may do so at a time."""
    for part in (AUTHORITY, SERVER, CLIENT):
        (folder / part).mkdir(mode=0o700, parents=True, exist_ok=True)
    with (folder / AUTHORITY / "lock").open("w") as lock:
        fcntl.flock(lock, fcntl.LOCK_EX)
        made = [] if (folder / AUTHORITY / "ca.pem").exists() else [AUTHORITY]
        is_new = bool(made)
        if is_new:
            _make_authority(folder / AUTHORITY, name)
        for part, base in ((SERVER, "server"), (CLIENT, "client")):
            path = folder / part / f"{base}.pem"
            if is_new or not path.exists() or (part == SERVER and address not in _addresses(path)):
                _make_leaf(folder, part, base, name=f"{name} {base}", address=address if part == SERVER else None)
                made.append(part)
        return made


def _make_authority(folder: Path, name: str) -> None:
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec

    key = ec.generate_private_key(ec.SECP256R1())
    subject = _name(f"{name} pool")
    usage = x509.KeyUsage(
        digital_signature=False,
        content_commitment=False,
        key_encipherment=False,
        data_encipherment=False,
        key_agreement=False,
        key_cert_sign=True,
        crl_sign=True,
        encipher_only=False,
        decipher_only=False,
    )
    certificate = (
        _builder(subject, subject, key, key)
        .add_extension(x509.BasicConstraints(ca=True, path_length=0), critical=True)
        .add_extension(usage, critical=True)
    )
    _write(folder / "ca.key", _pem(key))
    _write(folder / "ca.pem", _signed(certificate, key))


def _make_leaf(folder: Path, part: str, base: str, *, name: str, address: str | None) -> None:
    """Make a certificate for servers and clients; only the server's has an address."""
    from cryptography import x509
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.hazmat.primitives.serialization import load_pem_private_key

    authority = x509.load_pem_x509_certificate((folder / AUTHORITY / "ca.pem").read_bytes())
    signer = load_pem_private_key((folder / AUTHORITY / "ca.key").read_bytes(), password=None)
    key = ec.generate_private_key(ec.SECP256R1())
    purposes = [x509.ExtendedKeyUsageOID.CLIENT_AUTH, *([x509.ExtendedKeyUsageOID.SERVER_AUTH] if address else [])]
    certificate = (
        _builder(_name(name), authority.subject, key, signer)
        .add_extension(x509.BasicConstraints(ca=False, path_length=None), critical=True)
        .add_extension(x509.ExtendedKeyUsage(purposes), critical=False)
    )
    if address:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address(address))])
        certificate = certificate.add_extension(names, critical=False)
    _write(folder / part / "ca.pem", (folder / AUTHORITY / "ca.pem").read_bytes())
    _write(folder / part / f"{base}.key", _pem(key))
    _write(folder / part / f"{base}.pem", _signed(certificate, signer))  # the last: it says that all are there


def _name(text: str) -> Name:
    from cryptography import x509

    return x509.Name([x509.NameAttribute(x509.NameOID.COMMON_NAME, f"kiln {text}"[:64])])


def _builder(subject: Name, issuer: Name, key: EllipticCurvePrivateKey, signer: Any) -> Any:
    """Return the builder of a certificate; clocks of machines may be an hour behind.

    Clients that keep to RFC 5280, as Python's do from 3.13 on, want both keys' identifiers.
    """
    from cryptography import x509

    now = dt.datetime.now(dt.timezone.utc)
    return (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - dt.timedelta(hours=1))
        .not_valid_after(now + dt.timedelta(days=DAYS))
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
        .add_extension(x509.AuthorityKeyIdentifier.from_issuer_public_key(signer.public_key()), critical=False)
    )


def _signed(certificate: Any, key: Any) -> bytes:
    from cryptography.hazmat.primitives import hashes
    from cryptography.hazmat.primitives.serialization import Encoding

    signed: Certificate = certificate.sign(key, hashes.SHA256())
    return signed.public_bytes(Encoding.PEM)


def _pem(key: EllipticCurvePrivateKey) -> bytes:
    """Return a key as PKCS #8, which is what Bazel reads."""
    from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat

    return key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption())


def _addresses(path: Path) -> list[str]:
    from cryptography import x509

    certificate = x509.load_pem_x509_certificate(path.read_bytes())
    names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
    return [str(address) for address in names.get_values_for_type(x509.IPAddress)]


def _write(path: Path, data: bytes) -> None:
    part = path.with_name(f".{path.name}.new")
    with os.fdopen(os.open(part, os.O_WRONLY | os.O_CREAT | os.O_TRUNC, 0o600), "wb") as file:
        file.write(data)
    part.replace(path)


def main() -> None:
    """Run the module."""
    from ansible.module_utils.basic import AnsibleModule

    module = AnsibleModule(
        argument_spec={
            "folder": {"type": "path", "required": True},
            "address": {"type": "str", "required": True},
            "name": {"type": "str", "required": True},
        }
    )
    values = module.params
    try:
        made = make(Path(values["folder"]), address=values["address"], name=values["name"])
    except (OSError, ValueError) as failure:
        module.fail_json(msg=f"cannot make the certificates in {values['folder']}: {failure}")
    module.exit_json(changed=bool(made), made=made)


if __name__ == "__main__":
    main()
