"""Holding a bucket alone: an object that names who does, renewed while they live, taken over when they no longer do.

Conditional writes make it one holder's (``If-None-Match`` and ``If-Match`` of PutObject and DeleteObject, as Amazon's
user guide on conditional requests has them). Time is the server's alone: when the object was written, and its answer's
date.
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

LIFE = 90.0  # seconds after which a lease that nobody has renewed is anybody's
RENEWAL = 20.0  # seconds
UNMET = frozenset({"PreconditionFailed", "412", "ConditionalRequestConflict", "409", "NoSuchKey", "404"})


@dataclass(slots=True, kw_only=True)
class Lease:
    """The right to change a bucket; ``key`` is the object's, ``tag`` its version while it is ours."""

    client: Any
    bucket: str
    key: str
    life: float = LIFE
    renewal: float = RENEWAL
    owner: str = field(default_factory=lambda: f"process {os.getpid()} on {socket.gethostname()}")
    tag: str = ""
    turn: threading.Lock = field(default_factory=threading.Lock, repr=False)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Hold the lease during the block; raises AlreadyRunning, naming who has it."""
        self._take()
        ended = threading.Event()
        renewing = threading.Thread(target=self._renew_until, args=(ended,), daemon=True)
        renewing.start()
        try:
            yield
        finally:
            ended.set()
            renewing.join(timeout=LIFE)  # a renewal under way has the version to delete; later it is anybody's
            with contextlib.suppress(AlreadyRunning):
                self._if_met(lambda: self.client.delete_object(Bucket=self.bucket, Key=self.key, IfMatch=self.tag))

    def renew(self) -> None:
        """Renew the lease; raises AlreadyRunning when it went to somebody else."""
        with self.turn:  # the thread that renews it by itself has the same version
            self.tag = self._write(IfMatch=self.tag)

    def _take(self) -> None:
        try:
            self.tag = self._write(IfNoneMatch="*")
        except AlreadyRunning:
            self.tag = self._write(IfMatch=self._abandoned())

    def _abandoned(self) -> str:
        """Return the version of a lease that has run out."""
        found = self._if_met(lambda: self.client.get_object(Bucket=self.bucket, Key=self.key))
        now = email.utils.parsedate_to_datetime(found["ResponseMetadata"]["HTTPHeaders"]["date"])
        age = (now - found["LastModified"]).total_seconds()
        if age < self.life:
            who = json.loads(found["Body"].read()).get("owner", "somebody")
            raise AlreadyRunning(
                f"{who} changes s3://{self.bucket} ({self.key})",
                why=f"it said so {max(age, 0):.0f} s ago",
                hint=f"wait until it has ended; if it was killed, for {self.life - max(age, 0):.0f} s",
            )
        return str(found["ETag"])

    def _renew_until(self, ended: threading.Event) -> None:
        from botocore.exceptions import BotoCoreError, ClientError

        while not ended.wait(self.renewal):
            with contextlib.suppress(AlreadyRunning, BotoCoreError, ClientError):  # the next change of the index tells
                self.renew()

    def _write(self, **condition: str) -> str:
        told = json.dumps({"owner": self.owner, "one": secrets.token_hex(8)}).encode()  # each version is another
        try:
            put = self._if_met(lambda: self.client.put_object(Bucket=self.bucket, Key=self.key, Body=told, **condition))
        except AlreadyRunning:
            found = self._if_met(lambda: self.client.get_object(Bucket=self.bucket, Key=self.key))
            if found["Body"].read() != told:
                raise
            return str(found["ETag"])  # it came, only the answer was lost, and boto3 asked again
        return str(put["ETag"])

    def _if_met(self, ask: Any) -> Any:
        from botocore.exceptions import ClientError

        try:
            return ask()
        except ClientError as error:
            if error.response.get("Error", {}).get("Code") not in UNMET:
                raise
            raise AlreadyRunning(
                f"somebody else began to change s3://{self.bucket} ({self.key})",
                why="two began at once, or this process stood still for too long",
                hint="wait until they have ended, then run the same command again",
            ) from error
