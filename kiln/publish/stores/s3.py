"""The store of a channel in a bucket of S3, or of a server with the same interface.

Objects appear whole, but one by one: many cannot be renamed at once. So the index of a subdir changes file by file,
each of them whole and consistent, and the subdirs one after the other in the order of need. An index file is replaced
only if it is still the version that was read (``If-Match``), so of two writers the later one fails.
"""

from __future__ import annotations

import contextlib
import email.utils
import hashlib
import json
import os
import secrets
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any, ClassVar
from urllib.parse import urlsplit

from kiln.base.errors import AlreadyRunning, MissingTool, TokenRefused, UploadFailed, UsageError
from kiln.base.patterns import is_channel_subdir
from kiln.conda.index import PACKAGES, SHARDS
from kiln.publish.model import index_file_write_order
from kiln.publish.transaction import AGAIN

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

REFUSED = frozenset({"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "403", "401"})
MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
EXISTING = frozenset({"PreconditionFailed", "412"})
LEASE = ".kiln/lease.json"
IMMUTABLE, REVALIDATED = "public, max-age=31536000, immutable", "no-cache"
LIFE = 90.0  # seconds after which a lease that was not renewed is free
RENEWAL = 20.0  # seconds
UNMET = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409", "NoSuchKey", "404"})


@dataclass(slots=True, kw_only=True)
class Lease:
    """The right to change a bucket; ``key`` is the object's, ``tag`` its version while this process holds it."""

    client: Any
    bucket: str
    key: str
    life: float = LIFE
    renewal: float = RENEWAL
    owner: str = field(default_factory=lambda: f"process {os.getpid()} on {socket.gethostname()}")
    tag: str = ""
    turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextlib.contextmanager
    def hold(self) -> Iterator[None]:
        """Hold the lease during the block; raises AlreadyRunning, naming the owner."""
        try:
            self.tag = self._write_lease_object(IfNoneMatch="*")
        except AlreadyRunning:
            self.tag = self._write_lease_object(IfMatch=self._expired_lease_version())
        ended = threading.Event()
        renewing = threading.Thread(target=self._renew_until_ended, args=(ended,), daemon=True)
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join(timeout=LIFE)  # a renewal under way has the version to delete; later the lease runs out
            with contextlib.suppress(AlreadyRunning):
                self._send_conditional_request(
                    lambda: self.client.delete_object(Bucket=self.bucket, Key=self.key, IfMatch=self.tag)
                )

    def renew(self) -> None:
        """Renew the lease; raises AlreadyRunning when another process has taken it over."""
        with self.turn:  # the renewing thread changes the version, too
            self.tag = self._write_lease_object(IfMatch=self.tag)

    def _expired_lease_version(self) -> str:
        lease = self._send_conditional_request(lambda: self.client.get_object(Bucket=self.bucket, Key=self.key))
        now = email.utils.parsedate_to_datetime(lease["ResponseMetadata"]["HTTPHeaders"]["date"])
        age = (now - lease["LastModified"]).total_seconds()
        if age < self.life:
            owner = json.loads(lease["Body"].read()).get("owner", "another process")
            raise AlreadyRunning(
                f"{owner} is changing s3://{self.bucket} ({self.key})",
                why=f"it renewed its lease {max(age, 0):.0f} s ago",
                hint=f"wait until it has ended; if it was killed, for {self.life - max(age, 0):.0f} s",
            )
        return str(lease["ETag"])

    def _renew_until_ended(self, ended: threading.Event) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        while not ended.wait(self.renewal):
            with contextlib.suppress(
                AlreadyRunning, BotoCoreError, ClientError
            ):  # the next change of the index reports it
                self.renew()

    def _write_lease_object(self, **condition: str) -> str:
        content = json.dumps({"owner": self.owner, "one": secrets.token_hex(8)}).encode()  # no two versions are equal
        try:
            written = self._send_conditional_request(
                lambda: self.client.put_object(Bucket=self.bucket, Key=self.key, Body=content, **condition)
            )
        except AlreadyRunning:
            lease = self._send_conditional_request(lambda: self.client.get_object(Bucket=self.bucket, Key=self.key))
            if lease["Body"].read() != content:
                raise
            return str(lease["ETag"])  # it was written, the response was lost, and boto3 tried again
        return str(written["ETag"])

    def _send_conditional_request(self, request: Any) -> Any:
        from botocore.exceptions import ClientError

        try:
            return request()
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in UNMET:
                raise
            raise AlreadyRunning(
                f"another process began to change s3://{self.bucket} ({self.key})",
                why="two began at once, or this process stood still for too long",
                hint="wait until they have ended, then run the same command again",
            ) from error


@dataclass(frozen=True, slots=True, kw_only=True)
class S3Store:
    """The objects of a channel: ``prefix`` is empty or ends in a slash, ``reading`` is the URL for clients.

    ``tags`` are the versions of the objects that were read, None for those that did not exist.
    """

    notes: ClassVar[tuple[str, ...]] = (
        "index files change one by one, in the order of need: readers have the old release or the new one",
    )
    changes_stepwise: ClassVar[bool] = True

    client: Any
    bucket: str
    prefix: str
    reading: str
    lease: Lease
    tags: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def parse(cls, named: str, reading: str | None) -> S3Store:
        """Return the bucket of an ``s3://BUCKET/PREFIX``; boto3 finds credentials and endpoints.

        Raises:
            UsageError: when the URL names no bucket.
            MissingTool: when boto3 is not installed.
        """
        try:
            import boto3
            from botocore.config import Config
        except ModuleNotFoundError as error:
            hint = ".venv/bin/python -m pip install boto3"
            raise MissingTool("boto3 is needed for a channel on S3, and is not installed", hint=hint) from error
        parts = urlsplit(named)
        if not parts.netloc:
            raise UsageError(f"{named!r} names no bucket", hint="s3://BUCKET/PREFIX")
        client = boto3.client("s3", config=Config(retries={"mode": "standard", "total_max_attempts": 8}))
        prefix = parts.path.strip("/")
        prefix = f"{prefix}/" if prefix else ""
        address = reading or f"{client.meta.endpoint_url}/{parts.netloc}/{prefix}"
        lease = Lease(client=client, bucket=parts.netloc, key=f"{prefix}{LEASE}")
        return cls(client=client, bucket=parts.netloc, prefix=prefix, reading=address.rstrip("/"), lease=lease)

    @property
    def name(self) -> str:
        """The URL of the channel."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @contextlib.contextmanager
    def exclusive_lock(self) -> Iterator[None]:
        """Hold the bucket's lease, and raise its failures as kiln's own."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            with self.lease.hold():
                yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            what, why = f"{self.name} refuses: {code}", str(error)
            if code in REFUSED:
                hint = "set AWS_ACCESS_KEY_ID, AWS_PROFILE, or another variable that boto3 reads"
                raise TokenRefused(what, why=why, hint=hint) from error
            raise UploadFailed(what, why=why, hint=AGAIN) from error
        except BotoCoreError as error:
            raise UploadFailed(f"{self.name} cannot be reached", why=str(error), hint=AGAIN) from error

    def read(self, path: str) -> bytes | None:
        """Return an object's content."""
        self.tags[path] = None
        answer = self._object_request_or_none(MISSING, self.client.get_object, path)
        if answer is None:
            return None
        self.tags[path] = answer["ETag"]
        content: bytes = answer["Body"].read()
        return content

    def write(self, path: str, data: bytes, **condition: str) -> None:
        """Write an object, under a condition if there is one."""
        caching = IMMUTABLE if f"/{SHARDS}/" in path or ".sigs." in path else REVALIDATED
        kind = {"ContentType": "application/json"} if ".sigs" in path else {}
        request = {"Bucket": self.bucket, "Key": self._object_key(path), "Body": data, "CacheControl": caching, **kind}
        self.client.put_object(**request, **condition)

    def write_if_absent(self, path: str, data: bytes) -> bool:
        """Write an object unless there is one."""
        return (
            self._object_request_or_none(EXISTING, self.client.put_object, path, Body=data, IfNoneMatch="*") is not None
        )

    def has_file_with_hash(self, path: str, sha256: str) -> bool:
        """Return whether an object was uploaded with this hash."""
        head = self._object_request_or_none(MISSING, self.client.head_object, path)
        return head is not None and bool(head["Metadata"].get("sha256") == sha256)

    def store_package(self, file: Path, path: str, sha256: str) -> None:
        """Upload a package, in parts when it is large."""
        options = {"Metadata": {"sha256": sha256}, "CacheControl": IMMUTABLE, "ChecksumAlgorithm": "SHA256"}
        self.client.upload_file(str(file), self.bucket, self._object_key(path), ExtraArgs=options)

    def move(self, source: str, target: str) -> None:
        """Copy an object inside the bucket, then remove the original."""
        self.client.copy(
            {"Bucket": self.bucket, "Key": self._object_key(source)}, self.bucket, self._object_key(target)
        )
        self.client.delete_object(Bucket=self.bucket, Key=self._object_key(source))

    def remove(self, path: str) -> None:
        """Remove an object and all below it."""
        self.client.delete_object(Bucket=self.bucket, Key=self._object_key(path))
        for name in list(self._object_sizes(f"{path}/")):
            self.client.delete_object(Bucket=self.bucket, Key=name)

    def subdirs(self) -> tuple[str, ...]:
        """Return the subdirs that have objects."""
        request = {"Bucket": self.bucket, "Prefix": self.prefix, "Delimiter": "/"}
        pages = self.client.get_paginator("list_objects_v2").paginate(**request)
        folders = (item["Prefix"] for page in pages for item in page.get("CommonPrefixes", ()))
        names = {folder.removeprefix(self.prefix).rstrip("/") for folder in folders}
        return tuple(sorted(filter(is_channel_subdir, names)))

    def package_sizes(self, subdir: str) -> dict[str, int]:
        """Return the packages of a subdir."""
        start = self._object_key(f"{subdir}/")
        sizes = self._object_sizes(f"{subdir}/")
        return {name.removeprefix(start): size for name, size in sizes.items() if name.endswith(PACKAGES)}

    def sidecar_paths(self, path: str) -> tuple[str, ...]:
        """Return the files of attestations of one package, or of all in a folder."""
        start = path if path.endswith("/") else f"{path}.sigs"
        keys = (key.removeprefix(self.prefix) for key in self._object_sizes(start))
        return tuple(sorted(key for key in keys if ".sigs" in key))

    def replace_indexes(self, forms: Mapping[str, Mapping[str, bytes]]) -> None:
        """Replace the files that differ: shards first, kiln's own record last, which says what is done.

        Shards that are not needed any more stay.
        """
        self.lease.renew()
        for subdir, contents in forms.items():
            tags = self._object_etags(f"{subdir}/")
            current = {name: tags.get(self._object_key(f"{subdir}/{name}")) for name in contents}
            for name, tag in current.items():
                if self.tags.pop(f"{subdir}/{name}", tag) != tag:
                    raise self._concurrent_change_error(f"{subdir}/{name}")
            for name in sorted(contents, key=index_file_write_order):
                if current[name] != _content_etag(contents[name]):
                    self._replace_object_if_unchanged(f"{subdir}/{name}", contents[name], current[name])

    def _replace_object_if_unchanged(self, path: str, data: bytes, tag: str | None) -> None:
        from botocore.exceptions import ClientError

        try:
            self.write(path, data, **({"IfMatch": tag} if tag else {"IfNoneMatch": "*"}))
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in UNMET:
                raise
            if self._object_etags(path).get(self._object_key(path)) != _content_etag(
                data
            ):  # else the response was lost, and boto3 tried again
                raise self._concurrent_change_error(path) from error

    def _object_request_or_none(
        self, codes: frozenset[str], request: Callable[..., Any], path: str, **parameters: Any
    ) -> Any:
        """Return the answer to a request about an object; None for a refusal with one of the codes."""
        from botocore.exceptions import ClientError

        try:
            return request(Bucket=self.bucket, Key=self._object_key(path), **parameters)
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in codes:
                return None
            raise

    def _concurrent_change_error(self, path: str) -> AlreadyRunning:
        what = f"another process has changed {path} in {self.name} meanwhile"
        return AlreadyRunning(what, hint="run the same command again")

    def url(self, path: str) -> str:
        """Return the URL of a folder for clients."""
        return f"{self.reading}/{path}".rstrip("/")

    def _object_key(self, path: str) -> str:
        return f"{self.prefix}{path}"

    def _object_sizes(self, path: str) -> dict[str, int]:
        return {item["Key"]: item["Size"] for item in self._list_objects(path)}

    def _object_etags(self, path: str) -> dict[str, str]:
        return {item["Key"]: item["ETag"] for item in self._list_objects(path)}

    def _list_objects(self, path: str) -> list[dict[str, Any]]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._object_key(path))
        return [item for page in pages for item in page.get("Contents", ())]


def _content_etag(data: bytes) -> str:
    """Return the version that S3 gives to an object uploaded in one piece; an encrypted one has another."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'
