"""A worker of the Remote Workers API: takes actions from BuildGrid, runs them here, and stores their outputs.

Runs in a container, with BuildGrid's packages on PYTHONPATH and nothing of this project. Each action runs in a folder
of its own, with exactly the inputs that Bazel names.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
import uuid
from pathlib import Path
from typing import TYPE_CHECKING

import grpc
from buildgrid._protos.build.bazel.remote.execution.v2 import remote_execution_pb2 as reapi
from buildgrid._protos.build.bazel.remote.execution.v2 import remote_execution_pb2_grpc as reapi_grpc
from buildgrid._protos.google.bytestream import bytestream_pb2, bytestream_pb2_grpc
from buildgrid._protos.google.devtools.remoteworkers.v1test2 import bots_pb2, bots_pb2_grpc

if TYPE_CHECKING:
    from collections.abc import Iterator

    from google.protobuf import any_pb2

SMALL = 1 << 20  # bytes of a blob that goes with others into one message
BATCH = 3 << 20
INLINE = 1 << 16  # bytes of a program's output that the result has itself
POLL = 10.0  # seconds that the server may hold a request until there is work
HEARTBEAT = 1.0  # seconds between two reports of a running action
PATIENCE = 120  # seconds without a server after which a worker gives up


class Store:
    """The server's content-addressable storage, and the blobs that this worker has already seen."""

    def __init__(self, channel: grpc.Channel, instance: str, folder: Path) -> None:
        self.instance, self.folder = instance, folder
        self.prefix = f"{instance}/" if instance else ""
        self.cas = reapi_grpc.ContentAddressableStorageStub(channel)
        self.streams = bytestream_pb2_grpc.ByteStreamStub(channel)
        folder.mkdir(parents=True, exist_ok=True)

    def fetch(self, digests: list[reapi.Digest]) -> None:
        """Have blobs in the worker's folder."""
        missing = {digest.hash: digest for digest in digests if not (self.folder / digest.hash).exists()}
        batch: list[reapi.Digest] = []
        for digest in missing.values():
            if digest.size_bytes > SMALL:
                self._fetch_stream(digest)
                continue
            if sum(item.size_bytes for item in batch) + digest.size_bytes > BATCH:
                self._fetch_batch(batch)
                batch = []
            batch.append(digest)
        if batch:
            self._fetch_batch(batch)

    def read(self, digest: reapi.Digest) -> bytes:
        """Return a blob."""
        self.fetch([digest])
        path: Path = self.folder / digest.hash
        return path.read_bytes()

    def put(self, blobs: dict[str, bytes]) -> None:
        """Store blobs, by their hashes, unless the server has them."""
        digests = [reapi.Digest(hash=name, size_bytes=len(data)) for name, data in blobs.items()]
        request = reapi.FindMissingBlobsRequest(instance_name=self.instance, blob_digests=digests)
        for digest in self.cas.FindMissingBlobs(request).missing_blob_digests:
            data = blobs[digest.hash]
            if len(data) > SMALL:
                self.streams.Write(self._pieces(digest, data))
            else:
                batch = reapi.BatchUpdateBlobsRequest(instance_name=self.instance)
                batch.requests.add(digest=digest, data=data)
                self.cas.BatchUpdateBlobs(batch)

    def _fetch_batch(self, digests: list[reapi.Digest]) -> None:
        request = reapi.BatchReadBlobsRequest(instance_name=self.instance, digests=digests)
        for answer in self.cas.BatchReadBlobs(request).responses:
            if answer.status.code:
                raise LookupError(f"{answer.digest.hash}: {answer.status.message}")
            (self.folder / answer.digest.hash).write_bytes(answer.data)

    def _fetch_stream(self, digest: reapi.Digest) -> None:
        name = f"{self.prefix}blobs/{digest.hash}/{digest.size_bytes}"
        partial = self.folder / f"{digest.hash}.part"
        with partial.open("wb") as file:
            for piece in self.streams.Read(bytestream_pb2.ReadRequest(resource_name=name)):
                file.write(piece.data)
        partial.rename(self.folder / digest.hash)

    def _pieces(self, digest: reapi.Digest, data: bytes) -> Iterator[bytestream_pb2.WriteRequest]:
        name = f"{self.prefix}uploads/{uuid.uuid4()}/blobs/{digest.hash}/{digest.size_bytes}"
        for at in range(0, len(data), SMALL):
            yield bytestream_pb2.WriteRequest(
                resource_name=name if at == 0 else "",
                write_offset=at,
                data=data[at : at + SMALL],
                finish_write=at + SMALL >= len(data),
            )


class Action:
    """An action that runs in a thread."""

    def __init__(self, store: Store, action: reapi.Action, worker: str) -> None:
        self.store, self.action, self.worker = store, action, worker
        self.process: subprocess.Popen[bytes] | None = None
        self.canceled = False
        self.error = ""
        self.result = reapi.ActionResult()
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def cancel(self) -> None:
        """End the action's processes."""
        self.canceled = True
        if self.process is not None and self.process.poll() is None:
            os.killpg(self.process.pid, signal.SIGKILL)

    def _run(self) -> None:
        metadata = self.result.execution_metadata
        metadata.worker = self.worker
        metadata.worker_start_timestamp.GetCurrentTime()
        root = Path(tempfile.mkdtemp(prefix="action-"))
        try:
            command = reapi.Command.FromString(self.store.read(self.action.command_digest))
            metadata.input_fetch_start_timestamp.GetCurrentTime()
            self._lay_out(self.action.input_root_digest, root)
            metadata.input_fetch_completed_timestamp.GetCurrentTime()
            metadata.execution_start_timestamp.GetCurrentTime()
            self._execute(command, root)
            metadata.execution_completed_timestamp.GetCurrentTime()
            metadata.output_upload_start_timestamp.GetCurrentTime()
            self._upload(command, root)
            metadata.output_upload_completed_timestamp.GetCurrentTime()
        except (OSError, LookupError, grpc.RpcError) as error:
            self.error = f"{type(error).__name__}: {error}"
        finally:
            metadata.worker_completed_timestamp.GetCurrentTime()
            shutil.rmtree(root, ignore_errors=True)

    def _lay_out(self, digest: reapi.Digest, folder: Path) -> None:
        """Write a folder of inputs."""
        folder.mkdir(exist_ok=True)
        directory = reapi.Directory.FromString(self.store.read(digest))
        self.store.fetch([file.digest for file in directory.files])
        for file in directory.files:
            shutil.copyfile(self.store.folder / file.digest.hash, folder / file.name)
            (folder / file.name).chmod(0o755 if file.is_executable else 0o644)
        for link in directory.symlinks:
            (folder / link.name).symlink_to(link.target)
        for inner in directory.directories:
            self._lay_out(inner.digest, folder / inner.name)

    def _execute(self, command: reapi.Command, root: Path) -> None:
        here = root / command.working_directory
        for output in (*command.output_files, *command.output_directories, *command.output_paths):
            (here / output).parent.mkdir(parents=True, exist_ok=True)
        environment = {variable.name: variable.value for variable in command.environment_variables}
        self.process = subprocess.Popen(
            list(command.arguments),
            cwd=here,
            env=environment,
            stdin=subprocess.DEVNULL,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,
        )
        stdout, stderr = self.process.communicate()
        self.result.exit_code = self.process.returncode
        self.result.stdout_raw, self.result.stderr_raw = stdout[-INLINE:], stderr[-INLINE:]

    def _upload(self, command: reapi.Command, root: Path) -> None:
        here = root / command.working_directory
        blobs: dict[str, bytes] = {}
        for output in dict.fromkeys((*command.output_files, *command.output_paths, *command.output_directories)):
            path = here / output
            if path.is_dir():
                tree = reapi.Tree()
                tree.root.CopyFrom(_directory(path, tree, blobs))
                self.result.output_directories.add(path=output, tree_digest=_blob(tree.SerializeToString(), blobs))
            elif path.is_file():
                digest = _blob(path.read_bytes(), blobs)
                self.result.output_files.add(path=output, digest=digest, is_executable=os.access(path, os.X_OK))
        self.store.put(blobs)


def _directory(folder: Path, tree: reapi.Tree, blobs: dict[str, bytes]) -> reapi.Directory:
    """Return a folder's message; its files go into the blobs, its folders into the tree as well."""
    result = reapi.Directory()
    for path in sorted(folder.iterdir()):
        if path.is_symlink():
            result.symlinks.add(name=path.name, target=str(path.readlink()))
        elif path.is_dir():
            inner = _directory(path, tree, blobs)
            tree.children.append(inner)
            result.directories.add(name=path.name, digest=_blob(inner.SerializeToString(), blobs))
        else:
            digest = _blob(path.read_bytes(), blobs)
            result.files.add(name=path.name, digest=digest, is_executable=os.access(path, os.X_OK))
    return result


def _blob(data: bytes, blobs: dict[str, bytes]) -> reapi.Digest:
    name = hashlib.sha256(data).hexdigest()
    blobs[name] = data
    return reapi.Digest(hash=name, size_bytes=len(data))


class Worker:
    """A session with the server, which has one action at a time."""

    def __init__(self, options: argparse.Namespace) -> None:
        credentials = grpc.ssl_channel_credentials(
            root_certificates=(options.credentials / "ca.pem").read_bytes(),
            private_key=(options.credentials / "client.key").read_bytes(),
            certificate_chain=(options.credentials / "client.pem").read_bytes(),
        )
        headers = options.credentials / "headers"
        if headers.exists():
            _, _, token = headers.read_text().strip().partition(": Bearer ")
            credentials = grpc.composite_channel_credentials(credentials, grpc.access_token_call_credentials(token))
        channel = grpc.secure_channel(options.server, credentials)
        self.options = options
        self.bots = bots_pb2_grpc.BotsStub(channel)
        self.store = Store(channel, options.instance, options.folder)
        self.session = bots_pb2.BotSession()
        self.actions: dict[str, Action] = {}
        self.answered = time.monotonic()

    def serve(self) -> None:
        """Take actions until this process is ended, or no server answers any more."""
        while time.monotonic() - self.answered < PATIENCE:
            try:
                self._exchange()
                self.answered = time.monotonic()
            except grpc.RpcError as error:
                print(f"{error.code()}: {error.details()}", file=sys.stderr, flush=True)
                if error.code() is grpc.StatusCode.DEADLINE_EXCEEDED:
                    self.answered = time.monotonic()
                    continue
                self._forget()
                time.sleep(0.5)

    def _forget(self) -> None:
        """End all actions: the server has given them to another session, or will."""
        for action in self.actions.values():
            action.cancel()
        self.actions.clear()
        self.session = bots_pb2.BotSession()

    def _exchange(self) -> None:
        """Report the state of actions to the server, and take what it assigns."""
        if not self.session.name:
            fresh = bots_pb2.BotSession(bot_id=self.options.name, status=bots_pb2.BotStatus.OK)
            device = fresh.worker.devices.add(handle=self.options.name)
            for text in self.options.property:
                name, _, value = text.partition("=")
                device.properties.add(key=name, value=value)
            request = bots_pb2.CreateBotSessionRequest(parent=self.options.instance, bot_session=fresh)
            self.session = self.bots.CreateBotSession(request, timeout=POLL)
        current = {lease.id for lease in self.session.leases}
        for name in [name for name in self.actions if name not in current]:
            self.actions.pop(name).cancel()  # the server cancels an action by leaving it out
        for lease in self.session.leases:
            self._advance(lease)
        request = bots_pb2.UpdateBotSessionRequest(name=self.session.name, bot_session=self.session)
        self.session = self.bots.UpdateBotSession(request, timeout=POLL)

    def _advance(self, lease: bots_pb2.Lease) -> None:
        """Start a new action, or report one that has ended."""
        action = self.actions.get(lease.id)
        if action is None:
            action = self.actions[lease.id] = Action(self.store, self._message(lease.payload), self.options.name)
        action.thread.join(HEARTBEAT)
        if action.thread.is_alive():
            return
        lease.state = bots_pb2.LeaseState.COMPLETED
        if action.error:
            lease.status.code = grpc.StatusCode.UNAVAILABLE.value[0]
            lease.status.message = action.error
        lease.result.Pack(action.result)

    def _message(self, payload: any_pb2.Any) -> reapi.Action:
        """Return the action of a lease, which has either the message or its digest."""
        action, digest = reapi.Action(), reapi.Digest()
        if payload.Unpack(action):
            return action
        payload.Unpack(digest)
        return reapi.Action.FromString(self.store.read(digest))


def main() -> None:
    """Run a worker with the arguments of the command line."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--server", required=True)
    parser.add_argument("--instance", required=True)
    parser.add_argument("--name", required=True)
    parser.add_argument("--credentials", type=Path, required=True)
    parser.add_argument("--folder", type=Path, required=True)
    parser.add_argument("--property", action="append", default=[])
    options = parser.parse_args()
    signal.signal(signal.SIGTERM, lambda *_: os._exit(0))
    Worker(options).serve()


if __name__ == "__main__":
    main()
