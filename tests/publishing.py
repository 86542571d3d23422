"""Publications of a few small packages, as functions of a folder that tests call, also in processes of their own."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import msgpack
from cryptography.hazmat.primitives.asymmetric import ed25519
from cryptography.hazmat.primitives.serialization import BestAvailableEncryption, Encoding, PrivateFormat, PublicFormat

from kiln.base.zstd import zstd
from kiln.conda.index import read_index_entry
from kiln.conda.provenance.check import PublicKey, TrustedSigner, verified_attestation_facts
from kiln.conda.provenance.records import Provenance, ReleaseAttestations
from kiln.conda.provenance.signing import PrivateKey
from kiln.publish import transaction
from kiln.publish.provenance import AttestationSettings, package_documents
from kiln.publish.stores import target as stores_target
from kiln.publish.stores.folder import FolderStore
from kiln.publish.stores.target import StoreTarget
from tests.packages import release_package

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

    from kiln.conda.index import IndexEntry

_KEY = ed25519.Ed25519PrivateKey.from_private_bytes(b"a key of the tests, of 32 bytes.")
KEY = PrivateKey(key=_KEY, public=PublicKey.from_library_key(_KEY.public_key()))
OLD = ("old", "kept")
NEW = ("fresh", "app")


def another_key() -> PrivateKey:
    """Return a key that has signed nothing."""
    key = ed25519.Ed25519PrivateKey.generate()
    return PrivateKey(key=key, public=PublicKey.from_library_key(key.public_key()))


def public_pem(key: PrivateKey) -> bytes:
    """Return the file of a public key."""
    data: bytes = key.public.key.public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo)
    return data


def private_pem(key: PrivateKey, passphrase: str) -> bytes:
    """Return the file of a private key."""
    encryption = BestAvailableEncryption(passphrase.encode())
    data: bytes = key.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, encryption)
    return data


def target(folder: Path) -> StoreTarget:
    """Return the channel in ``folder``."""
    return StoreTarget(store=FolderStore(root=folder / "channel"))


def packages(folder: Path, names: tuple[str, ...]) -> list[Path]:
    """Package files, made where they are not."""
    paths = [folder / "built" / f"{name}-1-0.conda" for name in names]
    for name, path in zip(names, paths, strict=True):
        if not path.is_file():
            release_package(folder / "built", name, subdir="noarch" if name == "app" else "linux-64")
    return paths


def put(folder: Path, names: tuple[str, ...]) -> None:
    """Publish packages."""
    paths = packages(folder, names)
    entries = [read_index_entry(path) for path in paths]
    channel = target(folder)
    transaction.publish(channel, paths, entries, lambda _: None, attestation(entries, channel.channel_url()))


def attestation(entries: Iterable[IndexEntry], channel: str) -> ReleaseAttestations:
    """Return the statements, signed too, about packages that are published to a channel, with their bills."""
    bill = hashlib.sha256(b"{}").hexdigest()
    records = {e.sha256: record(e.file, sha256=e.sha256, subdir=e.subdir, sbom_sha256=bill) for e in entries}
    attesting = AttestationSettings(attester=KEY, channel=channel)
    return ReleaseAttestations(
        documents={sha256: package_documents(made, b"{}", b"{}") for sha256, made in records.items()},
        bundles=lambda sha256: attesting.sign_package_bundles(records[sha256]),
        is_own=lambda sha256, sidecar: attesting.has_own_attestation(records[sha256], sidecar),
    )


def record(file: str, **changed: Any) -> Provenance:
    """Return a record of a package's making."""
    name, version, build = file.removesuffix(".conda").rsplit("-", 2)
    fields: dict[str, Any] = {
        "file": file,
        "subdir": "linux-64",
        "sha256": "ab" * 32,
        "size": 1,
        "name": name,
        "version": version,
        "build": build,
        "license": "MIT",
        "depends": ("python >=3.11", "__glibc >=2.17"),
        "config": "config",
        "variant": {"python": ("3.11",)},
        "recipe": "cd" * 32,
        "commit": None,
        "remote": None,
        "sources": ({"url": ("https://example.org/a-1.tar.gz",), "sha256": "ef" * 32},),
        "engine": "rattler-build",
        "engine_version": "0.73.0",
        "kiln": "0.1.0",
        "container": "none",
        "image": None,
        "machine": "builder",
        "cores": 2,
        "started": 1.0,
        "finished": 2.0,
        "epoch": 1_700_000_000,
        "tests": "passed",
        "log_sha256": None,
        **changed,
    }
    return Provenance(**fields)


def publish_old(folder: Path) -> None:
    """Bring the channel to its state before."""
    put(folder, OLD)


def publish_new(folder: Path) -> None:
    """Publish the new packages."""
    put(folder, NEW)


def abort(folder: Path) -> None:
    """Take the publication back."""
    transaction.abort(target(folder))


def yank(folder: Path) -> None:
    """Withdraw an old package."""
    stores_target.yank_packages(target(folder), ["old-1-0.conda"], delete=True)


def seen(channel: Path) -> set[str]:
    """Return the packages that a reader sees, after checking that all forms of the index agree with the files.

    The subdirs change together, so this is the state before or after, of all.
    """
    result = {form: offered(channel, form) for form in ("plain", "packed", "current", "exports", "shards")}
    assert len({frozenset(names) for names in result.values()}) == 1, result
    return result["plain"]


def described(channel: Path) -> set[str]:
    """Return the packages that a channel has statements about."""
    return {path.name.removesuffix(".intoto.json") for path in channel.glob("provenance/*/*.intoto.json")}


def offered(channel: Path, form: str) -> set[str]:
    """Return the names that one form of the index offers, their files being there."""
    names = set()
    for subdir in ("linux-64", "noarch"):
        for file, digest in listed(channel / subdir, form).items():
            place = channel / subdir / file
            assert place.is_file(), f"{form} names {file}, which is not there"
            if digest:
                assert read_index_entry(place).sha256 == digest
            names.add(file)
    if form == "plain":
        require_attestations(channel)
    return names


def require_attestations(channel: Path) -> None:
    """Fail unless the attestations that the index names are there, and about their packages."""
    for subdir in ("linux-64", "noarch"):
        index = json.loads((channel / subdir / "repodata.json").read_bytes())["packages.conda"]
        for file, record in index.items():
            if sha256 := record.get("attestations_sha256"):
                data = (channel / subdir / f"{file}.sigs.{sha256}").read_bytes()
                assert hashlib.sha256(data).hexdigest() == sha256
                signer = TrustedSigner(key=KEY.public)
                facts = {"file": file, "sha256": record["sha256"], "channel": None}
                assert verified_attestation_facts(data, signers=[signer], **facts).provenance


def listed(subdir: Path, form: str) -> dict[str, str]:
    """Return the files that one form of a subdir's index names, with their hashes where it has them."""
    if form == "shards":
        listing = msgpack.unpackb(zstd.decompress((subdir / "repodata_shards.msgpack.zst").read_bytes()))
        shards = [
            (subdir / "shards" / f"{digest.hex()}.msgpack.zst").read_bytes() for digest in listing["shards"].values()
        ]
        told = [msgpack.unpackb(zstd.decompress(data))["packages.conda"] for data in shards]
        return {file: record["sha256"].hex() for item in told for file, record in item.items()}
    name = {"plain": "repodata.json", "packed": "repodata.json.zst", "current": "current_repodata.json"}.get(
        form, "run_exports.json"
    )
    data = (subdir / name).read_bytes()
    records = json.loads(zstd.decompress(data) if name.endswith(".zst") else data)["packages.conda"]
    return {file: record.get("sha256", "") for file, record in records.items()}
