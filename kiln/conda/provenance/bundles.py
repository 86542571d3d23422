"""Statements about packages (in-toto, SLSA) in Sigstore bundles, and the sidecars that hold them (CEP 50)."""

from __future__ import annotations

import base64
import binascii
import hashlib
import json
import re
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import quote, unquote

from kiln.base.errors import ProvenanceBroken
from kiln.base.git import COMMIT
from kiln.base.serialization import canonical_json, iso_timestamp, mapping_or_empty
from kiln.conda.channel import channel_reader
from kiln.conda.package_reader import parse_strict_json

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


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
    """Return the statement in the payload of an envelope."""
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


LARGEST_SIDECAR = 4 << 20  # bytes, as py-rattler's own limit
MOST_BUNDLES = 100
PAYLOAD_TYPE = "application/vnd.in-toto+json"
MEDIA_TYPE = "application/vnd.dev.sigstore.bundle.v0.3+json"
_MEDIA_TYPE = re.compile(r"application/vnd\.dev\.sigstore\.bundle(?:\.v0\.\d+\+json|\+json;version=0\.\d+)")


@dataclass(frozen=True, slots=True, kw_only=True)
class SigstoreBundle:
    """A bundle with one signature: ``hint`` names the key, ``certificate`` is that of an identity, in DER."""

    payload: bytes
    signature: bytes
    hint: str = ""
    certificate: bytes = b""

    @property
    def claimed_signer(self) -> str:
        """The signer that the bundle names, which nothing has verified."""
        if not self.certificate:
            return f"the key {self.hint}" if self.hint else "no key"
        from cryptography import x509

        try:
            certificate = x509.load_der_x509_certificate(self.certificate)
            names = certificate.extensions.get_extension_for_class(x509.SubjectAlternativeName).value
            uris = names.get_values_for_type(x509.UniformResourceIdentifier)
            texts = [*uris, *names.get_values_for_type(x509.RFC822Name)]
        except (ValueError, x509.ExtensionNotFound, x509.DuplicateExtension):
            texts = []
        return f"the identity {texts[0]}" if texts else "a certificate without an identity"


def dsse_signed_bytes(payload: bytes) -> bytes:
    """Return DSSE's encoding of a statement, over which a signature is made."""
    return b"DSSEv1 %d %s %d %s" % (len(PAYLOAD_TYPE), PAYLOAD_TYPE.encode(), len(payload), payload)


def serialize_key_signed_bundle(payload: bytes, signature: bytes, hint: str) -> bytes:
    """Return the bundle of a statement that was signed with a key."""
    envelope = {
        "payload": base64.b64encode(payload).decode(),
        "payloadType": PAYLOAD_TYPE,
        "signatures": [{"sig": base64.b64encode(signature).decode()}],
    }
    material = {"publicKey": {"hint": hint}, "tlogEntries": []}
    value = {"mediaType": MEDIA_TYPE, "verificationMaterial": material, "dsseEnvelope": envelope}
    return canonical_json(value)


def serialize_sidecar(bundles: Iterable[bytes]) -> bytes:
    """Return the content of the file for the bundles of a package."""
    return b"[" + b",".join(bundles) + b"]"


def sidecar_with_added_bundles(existing: bytes, bundles: Iterable[bytes]) -> bytes:
    """Return a sidecar with more bundles, or a new one where none exists; the bytes of the existing ones stay.

    Raises:
        ProvenanceBroken: when it is not a sidecar.
    """
    if not existing:
        return serialize_sidecar(bundles)
    parse_sidecar(existing)
    return existing.rstrip()[:-1] + b"," + b",".join(bundles) + b"]"


def parse_sidecar(data: bytes) -> list[dict[str, Any]]:
    """Return the bundles in a sidecar as JSON objects.

    Raises:
        ProvenanceBroken: when it is too large, or not a list of objects.
    """
    if len(data) > LARGEST_SIDECAR:
        raise _invalid_sidecar_error(f"it is larger than {LARGEST_SIDECAR:,} bytes")
    try:
        value = parse_strict_json(data)
    except ValueError as error:
        raise _invalid_sidecar_error(str(error)) from error
    if not isinstance(value, list) or not value or not all(isinstance(item, dict) for item in value):
        raise _invalid_sidecar_error("it is not a list of one or more bundles")
    if len(value) > MOST_BUNDLES:
        raise _invalid_sidecar_error(f"it has {len(value):,} bundles")
    return value


def parse_bundle(value: Mapping[str, Any]) -> SigstoreBundle:
    """Return the parts of a bundle."""
    envelope, material = value.get("dsseEnvelope"), value.get("verificationMaterial")
    if not isinstance(media := value.get("mediaType"), str) or not _MEDIA_TYPE.fullmatch(media):
        raise ValueError("it is not a Sigstore bundle of a known version")
    if not isinstance(envelope, dict) or not isinstance(material, dict) or "messageSignature" in value:
        raise ValueError("it has no DSSE envelope, or no material for its verification")
    if envelope.get("payloadType") != PAYLOAD_TYPE:
        raise ValueError("its payload is not an in-toto statement")
    signatures = envelope.get("signatures")
    if not isinstance(signatures, list) or len(signatures) != 1 or not isinstance(signatures[0], dict):
        raise ValueError("its envelope does not have one signature")
    return SigstoreBundle(
        payload=_decode_base64(envelope.get("payload"), "payload"),
        signature=_decode_base64(signatures[0].get("sig"), "signature"),
        **_key_hint_or_certificate(material),
    )


def _key_hint_or_certificate(material: Mapping[str, Any]) -> dict[str, Any]:
    key, chain = material.get("publicKey"), material.get("x509CertificateChain")
    certificates = [material["certificate"]] if "certificate" in material else []
    chained = chain.get("certificates") if isinstance(chain, dict) else None
    certificates += chained[:1] if isinstance(chained, list) else []
    if (key is None) == (not certificates) or len(certificates) > 1:
        raise ValueError("it names neither a key nor a certificate, or both")
    if certificates:
        raw = certificates[0].get("rawBytes") if isinstance(certificates[0], dict) else None
        return {"certificate": _decode_base64(raw, "certificate")}
    hint = key.get("hint", "") if isinstance(key, dict) else None
    if not isinstance(hint, str):
        raise ValueError("its key is invalid")  # noqa: TRY004 - one type for all that a bundle may have wrong
    return {"hint": hint}


def _decode_base64(value: Any, name: str) -> bytes:
    try:
        return base64.b64decode(value, validate=True)
    except (binascii.Error, TypeError, ValueError) as error:
        raise ValueError(f"its {name} is not in Base64") from error


def _invalid_sidecar_error(why: str) -> ProvenanceBroken:
    return ProvenanceBroken(
        "the file of a package's attestations is invalid",
        why=why,
        hint="request the attestations from the channel's owner",
    )


SIDECAR_FIELD = "attestations_sha256"  # in a record of the index
SIDECAR_ENDING = ".sigs"
SIDECAR_HINT = "request the attestations from the channel's owner"


def sidecar_hash(data: bytes) -> str:
    """Return the hash that names a sidecar."""
    return hashlib.sha256(data).hexdigest()


def download_sidecar(url: str, sha256: object) -> bytes:
    """Return the sidecar of the package at a URL as clients find it: the index names it by its hash (CEP 50).

    Raises:
        ProvenanceBroken: when the hash is invalid, the file is missing, or it is another one.
        LimitExceeded: when it is too large.
        DownloadFailed, TokenRefused: when the server does not send it.
    """
    folder, _, file = url.rpartition("/")
    if not isinstance(sha256, str) or not SHA256.fullmatch(sha256):
        raise ProvenanceBroken(f"the index has an invalid attestations_sha256 of {file}", hint=SIDECAR_HINT)
    data = channel_reader(folder, LARGEST_SIDECAR)(f"{file}{SIDECAR_ENDING}.{sha256}")
    if data is None:
        raise ProvenanceBroken(
            f"the attestations of {file} are missing",
            why=f"the index names {file}{SIDECAR_ENDING}.{sha256}",
            hint=SIDECAR_HINT,
        )
    if sidecar_hash(data) != sha256:
        raise ProvenanceBroken(
            f"the attestations of {file} are not those of the index",
            why=f"their hash is {sidecar_hash(data)}",
            hint=SIDECAR_HINT,
        )
    return data


HOME = "https://github.com/conda-forge/tensorflow-feedstock"  # kiln's own, see pyproject.toml
DIFFERS_FROM = "differsFromGitCommit"  # the hash of the resource is one over the files that differ
BUILD_TYPE = f"{HOME}/kiln/build/v1"
MACHINE = "urn:kiln:machine:"  # of a builder that is no CI, before the name of the machine
EXTERNAL = (
    "config",
    "variant",
    "recipe",
    "commit",
    "remote",
    "engine",
    "container",
    "image",
    "epoch",
    "extra",
    "feedstock_files",
)
INTERNAL = (
    "workflow",
    "run_url",
    "engine_version",
    "kiln",
    "machine",
    "cores",
    "tests",
    "tested_with",
    "cross_compiled",
    "sbom_sha256",
    "cyclonedx_sha256",
    "log_sha256",
)
OF_THE_FILE = ("subdir", "size", "name", "version", "build", "license", "depends", "sources")
_ALGORITHMS = {"sha256", "sha512", "sha1", "md5"}


def predicate_of_record(record: Mapping[str, Any]) -> dict[str, Any]:
    """Return the predicate of a record: what was built from what, by whom.

    The builder is the CI's workflow, else its run, else the user's machine.
    """
    host = str(record["machine"]).partition(",")[0]
    builder = record.get("workflow") or record.get("run_url") or f"{MACHINE}{quote(host)}"
    moments = {
        name: iso_timestamp(seconds) if isinstance(seconds, (int, float)) else ""
        for name, seconds in (("startedOn", record.get("started")), ("finishedOn", record.get("finished")))
    }
    metadata = {"invocationId": record.get("run_url"), **moments}
    byproducts = [
        {"name": name, "digest": {"sha256": record[key]}}
        for name, key in (("log", "log_sha256"), ("sbom", "sbom_sha256"), ("sbom.cdx", "cyclonedx_sha256"))
        if record.get(key)
    ]
    internal = {**_selected_fields_as_json(record, INTERNAL), "package": _selected_fields_as_json(record, OF_THE_FILE)}
    times = {key: record.get(key) for key in ("started", "finished")}
    return {
        "buildDefinition": {
            "buildType": BUILD_TYPE,
            "externalParameters": _selected_fields_as_json(record, EXTERNAL),
            "internalParameters": {**internal, "times": times},
            "resolvedDependencies": list(_resolved_dependencies(record)),
        },
        "runDetails": {
            "builder": {
                "id": builder,
                "version": {"kiln": str(record["kiln"]), str(record["engine"]): str(record["engine_version"])},
            },
            "metadata": {key: value for key, value in metadata.items() if value},
            "byproducts": byproducts,
        },
    }


def is_kiln_predicate(value: Mapping[str, Any]) -> bool:
    """Return whether kiln wrote a predicate."""
    definition = value.get("buildDefinition")
    return isinstance(definition, dict) and definition.get("buildType") == BUILD_TYPE


def record_from_predicate(value: Mapping[str, Any], file: str, sha256: str) -> dict[str, Any]:
    """Return the record that one of kiln's own predicates was made from.

    Raises:
        ProvenanceBroken: when it lacks the parts.
    """
    try:
        definition = value["buildDefinition"]
        internal = dict(definition["internalParameters"])
        package, times = internal.pop("package"), internal.pop("times")
        return {**definition["externalParameters"], **internal, **package, **times, "file": file, "sha256": sha256}
    except (KeyError, TypeError, ValueError) as error:
        raise ProvenanceBroken(f"the provenance of {file} is incomplete", why=f"it has no {error}") from error


def build_fact_lines(value: Mapping[str, Any]) -> list[str]:
    """Return who built a package from which commit with which inputs, a line for each fact; others' too."""
    definition, details = mapping_or_empty(value.get("buildDefinition")), mapping_or_empty(value.get("runDetails"))
    builder, metadata = mapping_or_empty(details.get("builder")), mapping_or_empty(details.get("metadata"))
    versions = " ".join(f"{name} {version}" for name, version in mapping_or_empty(builder.get("version")).items())
    name = str(builder.get("id"))
    who = f"the machine {unquote(name.removeprefix(MACHINE))}" if name.startswith(MACHINE) else name
    lines = [f"built by {who}" + (f" ({versions})" if versions else "")]
    if metadata.get("invocationId"):
        lines.append(f"in the run {metadata['invocationId']}")
    if is_kiln_predicate(value):
        lines.append(_build_description(mapping_or_empty(definition.get("externalParameters"))))
    dependencies = definition.get("resolvedDependencies")
    items = dependencies if isinstance(dependencies, list) else ()
    return [*lines, *(_input_description(item) for item in items if isinstance(item, dict))]


def _build_description(parameters: Mapping[str, Any]) -> str:
    where = f"in the image {parameters.get('image')}" if parameters.get("image") else "on a host"
    return f"built as the config {parameters.get('config')}, by {parameters.get('engine')} {where}"


def _input_description(item: Mapping[str, Any]) -> str:
    """Return an input with its hashes, or the commit of the feedstock or of a source."""
    digests = dict(mapping_or_empty(item.get("digest")))
    name = item.get("uri") or item.get("name")
    if commit := digests.pop("gitCommit", None):
        return f"built from the commit {commit} of {str(name).removeprefix('git+')}"
    if base := mapping_or_empty(item.get("annotations")).get(DIFFERS_FROM):
        name = f"{str(name).removeprefix('git+')}, with changes to its commit {base} that were not committed"
    return f"built from {name}" + "".join(f", {kind} {text}" for kind, text in digests.items())


def _selected_fields_as_json(record: Mapping[str, Any], names: Iterable[str]) -> dict[str, Any]:
    fields: dict[str, Any] = json.loads(json.dumps({name: record.get(name) for name in names}))
    return fields


def _resolved_dependencies(record: Mapping[str, Any]) -> Iterable[dict[str, Any]]:
    """Yield the feedstock, the sources and the image, each with its hash or commit."""
    if record.get("commit"):
        remote = record.get("remote") or ""
        name: dict[str, str] = {"uri": f"git+{remote}"} if "://" in remote else {"name": remote or "feedstock"}
        match = COMMIT.fullmatch(str(record["commit"]))
        if match and match[2]:
            yield {**name, "digest": {"sha256": match[2]}, "annotations": {DIFFERS_FROM: match[1]}}
        else:
            yield {**name, "digest": {"gitCommit": str(record["commit"])}}
    yield {"name": "recipe", "digest": {"sha256": str(record["recipe"])}}
    for source in record.get("sources") or ():
        yield _source_dependency(source)
    if record.get("image"):
        image, _, digest = str(record["image"]).partition("@")
        sha256 = digest.removeprefix("sha256:")
        yield {"uri": f"docker://{image}", **({"digest": {"sha256": sha256}} if digest != sha256 else {})}


def _source_dependency(source: Mapping[str, Any]) -> dict[str, Any]:
    checkout = source.get("checkout") or {}
    url = source.get("url") or checkout.get("url") or source.get("git_url") or source.get("path") or ""
    address = str(url[0] if isinstance(url, (list, tuple)) and url else url)
    hashes = {**(source.get("hashes") or {}), **{name: source.get(name) for name in _ALGORITHMS}}
    digests = {name: str(value) for name, value in hashes.items() if name in _ALGORITHMS and value}
    if revision := source.get("git_rev") or checkout.get("revision"):
        is_git = bool(source.get("git_url"))
        digests["gitCommit" if is_git else "revision"] = str(revision)
        address = f"git+{address}" if is_git else address
    if source.get("digest"):
        digests["sha256"] = str(source["digest"])
    place = {"uri": address} if "://" in address else {"name": address or "source"}
    return {**place, **({"digest": digests} if digests else {})}
