"""A channel in a bucket of S3 or of what speaks its language.

Objects appear whole, but one by one: there is no rename of many. So the index of a subdir changes file by file, each
of them whole and true, and the subdirs one after the other in the order of need. An index file is replaced only if it
is still the one that was there before (``If-Match``), so of two who change it the later finds out.
"""

from __future__ import annotations

import contextlib
import hashlib
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kiln.errors import AlreadyRunning, MissingTool, TokenRefused, UploadFailed, UsageError
from kiln.publish.lease import UNMET, Lease
from kiln.repodata import BASE, SHARDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

REFUSED = frozenset({"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "403", "401"})
MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
AGAIN = "run the same command again; what is there is not brought again"
LEASE = ".kiln/lease.json"
FOR_EVER, ASK_AGAIN = "public, max-age=31536000, immutable", "no-cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The objects of a channel: ``prefix`` is empty or ends in a slash, ``reading`` is where clients find it.

    ``tags`` are the versions of what was read, None for what was not there.
    """

    client: Any
    bucket: str
    prefix: str
    reading: str
    lease: Lease
    tags: dict[str, str | None] = field(default_factory=dict, repr=False, compare=False)

    @classmethod
    def parse(cls, named: str, reading: str | None) -> Bucket:
        """Return the bucket of an ``s3://BUCKET/PREFIX``, with boto3's own ways to credentials and endpoints.

        Raises:
            UsageError: when it is no such URL.
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
        where = reading or f"{client.meta.endpoint_url}/{parts.netloc}/{prefix}"
        lease = Lease(client=client, bucket=parts.netloc, key=f"{prefix}{LEASE}")
        return cls(client=client, bucket=parts.netloc, prefix=prefix, reading=where.rstrip("/"), lease=lease)

    @property
    def name(self) -> str:
        """The URL of the channel."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def notes(self) -> tuple[str, ...]:
        """What readers may see while index files change."""
        return ("index files change one by one, in the order of need: readers have the old release or the new one",)

    @property
    def stepwise(self) -> bool:
        """Subdirs change one after the other."""
        return True

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[None]:
        """Hold the bucket's lease, and tell faults as kiln's own."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
            with self.lease.held():
                yield
        except ClientError as error:
            code = error.response.get("Error", {}).get("Code", "")
            kind = TokenRefused if code in REFUSED else UploadFailed
            hint = "see AWS_ACCESS_KEY_ID, AWS_PROFILE, or what else boto3 reads" if kind is TokenRefused else AGAIN
            raise kind(f"{self.name} refuses: {code}", why=str(error), hint=hint) from error
        except BotoCoreError as error:
            raise UploadFailed(f"{self.name} cannot be reached", why=str(error), hint=AGAIN) from error

    def read(self, path: str) -> bytes | None:
        """Return an object's content."""
        from botocore.exceptions import ClientError

        self.tags[path] = None
        try:
            found = self.client.get_object(Bucket=self.bucket, Key=self._key(path))
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in MISSING:
                return None
            raise
        self.tags[path] = found["ETag"]
        content: bytes = found["Body"].read()
        return content

    def write(self, path: str, data: bytes, **condition: str) -> None:
        """Write an object, under a condition if there is one."""
        keep = FOR_EVER if f"/{SHARDS}/" in path else ASK_AGAIN
        self.client.put_object(Bucket=self.bucket, Key=self._key(path), Body=data, CacheControl=keep, **condition)

    def create(self, path: str, data: bytes) -> bool:
        """Write an object unless there is one."""
        from botocore.exceptions import ClientError

        try:
            self.client.put_object(Bucket=self.bucket, Key=self._key(path), Body=data, IfNoneMatch="*")
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in {"PreconditionFailed", "412"}:
                return False
            raise
        return True

    def has(self, path: str, sha256: str) -> bool:
        """Return whether an object was brought with this hash."""
        from botocore.exceptions import ClientError

        try:
            told = self.client.head_object(Bucket=self.bucket, Key=self._key(path))
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in MISSING:
                return False
            raise
        return bool(told["Metadata"].get("sha256") == sha256)

    def put(self, file: Path, path: str, sha256: str) -> None:
        """Bring a package, in parts when it is large."""
        more = {"Metadata": {"sha256": sha256}, "CacheControl": FOR_EVER, "ChecksumAlgorithm": "SHA256"}
        self.client.upload_file(str(file), self.bucket, self._key(path), ExtraArgs=more)

    def move(self, source: str, target: str) -> None:
        """Copy an object inside the bucket, then remove the first."""
        self.client.copy({"Bucket": self.bucket, "Key": self._key(source)}, self.bucket, self._key(target))
        self.client.delete_object(Bucket=self.bucket, Key=self._key(source))

    def remove(self, path: str) -> None:
        """Remove an object and all below it."""
        self.client.delete_object(Bucket=self.bucket, Key=self._key(path))
        for name in list(self._listed(f"{path}/")):
            self.client.delete_object(Bucket=self.bucket, Key=name)

    def names(self, subdir: str) -> dict[str, int]:
        """Return the packages of a subdir."""
        start = self._key(f"{subdir}/")
        sizes = self._listed(f"{subdir}/")
        return {name.removeprefix(start): size for name, size in sizes.items() if name.endswith(".conda")}

    def swap(self, forms: Mapping[str, Mapping[str, bytes]]) -> None:
        """Replace what is to be other than it is: shards first, kiln's own record last, which tells of what is done.

        Shards that nobody needs any more stay.

        Raises:
            AlreadyRunning: when somebody else has changed something since it was read.
        """
        self.lease.renew()
        for subdir, told in forms.items():
            there = self._tagged(f"{subdir}/")
            now = {name: there.get(self._key(f"{subdir}/{name}")) for name in told}
            for name, tag in now.items():
                if self.tags.pop(f"{subdir}/{name}", tag) != tag:
                    raise self._changed(f"{subdir}/{name}")
            for name in sorted(told, key=_turn):
                if now[name] != _tag(told[name]):
                    self._replace(f"{subdir}/{name}", told[name], now[name])

    def _replace(self, path: str, data: bytes, tag: str | None) -> None:
        """Write a file in the place of the version that was there."""
        from botocore.exceptions import ClientError

        try:
            self.write(path, data, **({"IfMatch": tag} if tag else {"IfNoneMatch": "*"}))
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in UNMET:
                raise
            if self._tagged(path).get(self._key(path)) != _tag(data):  # else the answer was lost, and boto3 asked again
                raise self._changed(path) from error

    def _changed(self, path: str) -> AlreadyRunning:
        what = f"somebody else has changed {path} in {self.name} meanwhile"
        return AlreadyRunning(what, hint="run the same command again")

    def url(self, path: str) -> str:
        """Return where clients read."""
        return f"{self.reading}/{path}".rstrip("/")

    def _key(self, path: str) -> str:
        return f"{self.prefix}{path}"

    def _listed(self, path: str) -> dict[str, int]:
        return {each["Key"]: each["Size"] for each in self._objects(path)}

    def _tagged(self, path: str) -> dict[str, str]:
        return {each["Key"]: each["ETag"] for each in self._objects(path)}

    def _objects(self, path: str) -> list[dict[str, Any]]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._key(path))
        return [each for page in pages for each in page.get("Contents", ())]


def _tag(data: bytes) -> str:
    """Return the version that S3 gives to an object brought in one piece; one that is encrypted has another."""
    return f'"{hashlib.md5(data, usedforsecurity=False).hexdigest()}"'


def _turn(name: str) -> tuple[bool, bool, bool, str]:
    """Return the turn of an index file: what others name first, what clients ask for next, what kiln goes by last."""
    return not name.startswith(f"{SHARDS}/"), name == BASE, "repodata" in name, name
