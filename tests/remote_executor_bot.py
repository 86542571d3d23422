"""A worker of BuildGrid: takes leases by the Remote Workers API, and runs their actions in a container.

Started by `remote_executor.py` with the Python of BuildGrid's environment, as ``ADDRESS FOLDER CONTAINER LIST``.
It appends the outputs of each action that it has run to the file LIST.
"""

from __future__ import annotations

import hashlib
import shutil
import subprocess
import sys
import uuid
from pathlib import Path

import grpc
from buildgrid._protos.build.bazel.remote.execution.v2 import remote_execution_pb2 as reapi
from buildgrid._protos.build.bazel.remote.execution.v2 import remote_execution_pb2_grpc as reapi_grpc
from buildgrid._protos.google.devtools.remoteworkers.v1test2 import bots_pb2, bots_pb2_grpc

LONG_POLL = 20.0  # seconds


class Storage:
    """The content-addressable storage of a server: blobs by their digests."""

    def __init__(self, channel: grpc.Channel) -> None:
        self._stub = reapi_grpc.ContentAddressableStorageStub(channel)

    def read(self, digest: reapi.Digest) -> bytes:
        """Return a blob."""
        (answer,) = self._stub.BatchReadBlobs(reapi.BatchReadBlobsRequest(digests=[digest])).responses
        if answer.status.code:
            raise LookupError(answer.status.message)
        return bytes(answer.data)

    def write(self, data: bytes) -> reapi.Digest:
        """Store a blob; returns its digest."""
        digest = reapi.Digest(hash=hashlib.sha256(data).hexdigest(), size_bytes=len(data))
        blob = reapi.BatchUpdateBlobsRequest.Request(digest=digest, data=data)
        (answer,) = self._stub.BatchUpdateBlobs(reapi.BatchUpdateBlobsRequest(requests=[blob])).responses
        if answer.status.code:
            raise OSError(answer.status.message)
        return digest

    def unpack(self, digest: reapi.Digest, folder: Path) -> None:
        """Write a tree of inputs into a folder."""
        tree = reapi.Directory.FromString(self.read(digest))
        folder.mkdir(parents=True, exist_ok=True)
        for node in tree.files:
            (folder / node.name).write_bytes(self.read(node.digest))
            (folder / node.name).chmod(0o755 if node.is_executable else 0o644)
        for node in tree.symlinks:
            (folder / node.name).symlink_to(node.target)
        for node in tree.directories:
            self.unpack(node.digest, folder / node.name)


def run_action(storage: Storage, action: reapi.Action, root: Path, container: str) -> reapi.ActionResult:
    """Run an action in the container, which has ``root`` at the same path; return its result, and store its outputs."""
    command = reapi.Command.FromString(storage.read(action.command_digest))
    storage.unpack(action.input_root_digest, root)
    folder = root / command.working_directory
    paths = list(command.output_paths) or list(command.output_files)
    for path in paths:
        (folder / path).parent.mkdir(parents=True, exist_ok=True)
    variables = [f"--env={each.name}={each.value}" for each in command.environment_variables]
    words = ("docker", "exec", f"--workdir={folder}", *variables, container, *command.arguments)
    ended = subprocess.run(words, capture_output=True, check=False)
    result = reapi.ActionResult(exit_code=ended.returncode)
    result.stdout_digest.CopyFrom(storage.write(ended.stdout))
    result.stderr_digest.CopyFrom(storage.write(ended.stderr))
    for path in paths:
        file = folder / path
        if file.is_file():
            result.output_files.add(
                path=path, digest=storage.write(file.read_bytes()), is_executable=bool(file.stat().st_mode & 0o100)
            )
    return result


def main() -> None:
    """Take one lease after the other until the server or this process is killed."""
    address, folder, container, done = sys.argv[1:]
    channel = grpc.insecure_channel(address)
    storage, bots = Storage(channel), bots_pb2_grpc.BotsStub(channel)
    session = bots_pb2.BotSession(bot_id=f"bot-{uuid.uuid4()}", status=bots_pb2.OK)
    session.worker.devices.add().properties.add(key="OSFamily", value="linux")
    session = bots.CreateBotSession(
        bots_pb2.CreateBotSessionRequest(parent="", bot_session=session), timeout=LONG_POLL, wait_for_ready=True
    )
    while True:
        for lease in session.leases:
            if lease.state == bots_pb2.PENDING:
                lease.state = bots_pb2.ACTIVE
            elif lease.state == bots_pb2.ACTIVE:
                action, digest = reapi.Action(), reapi.Digest()
                if lease.payload.Unpack(digest):
                    action = reapi.Action.FromString(storage.read(digest))
                else:
                    lease.payload.Unpack(action)
                place = Path(folder, uuid.uuid4().hex)
                result = run_action(storage, action, place, container)
                shutil.rmtree(place)
                with Path(done).open("a", encoding="utf-8") as file:
                    file.write("".join(f"{each.path}\n" for each in result.output_files))
                lease.result.Pack(result)
                lease.state = bots_pb2.COMPLETED
        session = bots.UpdateBotSession(
            bots_pb2.UpdateBotSessionRequest(name=session.name, bot_session=session), timeout=LONG_POLL
        )


if __name__ == "__main__":
    main()
