"""A channel in a bucket of S3 or of what speaks its language.

Objects appear whole, but one by one: there is no rename of many. So the index of a subdir changes file by file, each
of them whole and true, ``noarch`` first.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any
from urllib.parse import urlsplit

from kiln.errors import MissingTool, TokenRefused, UploadFailed, UsageError
from kiln.repodata import SHARDS

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping
    from pathlib import Path

REFUSED = frozenset({"AccessDenied", "InvalidAccessKeyId", "SignatureDoesNotMatch", "ExpiredToken", "403", "401"})
MISSING = frozenset({"404", "NoSuchKey", "NotFound"})
AGAIN = "run the same command again; what is there is not brought again"
FOR_EVER, ASK_AGAIN = "public, max-age=31536000, immutable", "no-cache"


@dataclass(frozen=True, slots=True, kw_only=True)
class Bucket:
    """The objects of a channel: ``prefix`` is empty or ends in a slash, ``reading`` is where clients find it."""

    client: Any
    bucket: str
    prefix: str
    reading: str

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
        return cls(client=client, bucket=parts.netloc, prefix=prefix, reading=where.rstrip("/"))

    @property
    def name(self) -> str:
        """The URL of the channel."""
        return f"s3://{self.bucket}/{self.prefix}".rstrip("/")

    @property
    def notes(self) -> tuple[str, ...]:
        """What readers may see while index files change."""
        return ("index files change one by one, in the order of need: readers have the old release or the new one",)

    @contextlib.contextmanager
    def exclusively(self) -> Iterator[None]:
        """Tell faults as kiln's own; a bucket has no locks, its one journal keeps others out."""
        from botocore.exceptions import BotoCoreError, ClientError

        try:
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

        try:
            content: bytes = self.client.get_object(Bucket=self.bucket, Key=self._key(path))["Body"].read()
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") in MISSING:
                return None
            raise
        return content

    def write(self, path: str, data: bytes) -> None:
        """Write an object."""
        keep = FOR_EVER if f"/{SHARDS}/" in path else ASK_AGAIN
        self.client.put_object(Bucket=self.bucket, Key=self._key(path), Body=data, CacheControl=keep)

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
        """Write shards, then the other files, ``repodata.json`` last; shards that nobody needs any more stay."""
        for subdir, told in forms.items():
            there = self._listed(f"{subdir}/{SHARDS}/").keys()
            for name in sorted(told, key=lambda name: (not name.startswith(f"{SHARDS}/"), "repodata" in name, name)):
                if not name.startswith(f"{SHARDS}/") or self._key(f"{subdir}/{name}") not in there:
                    self.write(f"{subdir}/{name}", told[name])

    def url(self, path: str) -> str:
        """Return where clients read."""
        return f"{self.reading}/{path}".rstrip("/")

    def _key(self, path: str) -> str:
        return f"{self.prefix}{path}"

    def _listed(self, path: str) -> dict[str, int]:
        pages = self.client.get_paginator("list_objects_v2").paginate(Bucket=self.bucket, Prefix=self._key(path))
        return {each["Key"]: each["Size"] for page in pages for each in page.get("Contents", ())}
