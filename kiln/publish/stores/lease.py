"""The lease of a bucket: an object that names its owner, renewed while the owner's process lives, then taken over.

Conditional writes give it to one owner (``If-None-Match`` and ``If-Match`` of PutObject and DeleteObject, as Amazon's
user guide on conditional requests describes them). The server's clock decides: the object's date, and the response's.
"""

from __future__ import annotations

import contextlib
import email.utils
import json
import os
import secrets
import socket
import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln.errors import AlreadyRunning

if TYPE_CHECKING:
    from collections.abc import Iterator

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
        self._acquire()
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

    def _acquire(self) -> None:
        try:
            self.tag = self._write_lease_object(IfNoneMatch="*")
        except AlreadyRunning:
            self.tag = self._write_lease_object(IfMatch=self._expired_lease_version())

    def _expired_lease_version(self) -> str:
        """Return the version of a lease that has run out."""
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
