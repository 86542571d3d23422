"""The operations of py-rattler: index a folder, choose packages, install them, verify attestations.

Arguments and results are JSON.
"""

from __future__ import annotations

import asyncio
import contextlib
import errno
import io
import json
import os
import re
import signal
import sys
import threading
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO, cast
from urllib.parse import urlsplit

import rattler
from rattler.index import index_fs

from kiln.base import files, http, serialization
from kiln.base.errors import (
    BrokenIndex,
    BrokenPackage,
    DownloadFailed,
    Interrupted,
    KilnError,
    LimitExceeded,
    SolveFailed,
    UsageError,
)
from kiln.base.system.lock_handover import LockReceiver
from kiln.base.system.machine import limit_memory_and_file_size
from kiln.conda.rattler.client import records_from_json
from kiln.conda.rattler.limits import (
    Limits,
    Watchdog,
    WatchedTask,
    doubled_size_text,
    failure_to_json,
    limit_increase_hint,
)
from kiln.conda.safety import PreinstallChecker, installation_error, require_matching_hashes, uncached_packages

if TYPE_CHECKING:
    from collections.abc import Iterator

    from rattler import InstallerReporter


DISK_FULL, NOT_ALLOWED = f"(os error {errno.ENOSPC})", f"(os error {errno.EACCES})"  # in the library's words
TOO_LARGE = f"(os error {errno.EFBIG})"
NO_INDEX = ("failed to parse repodata", "failed to extract repodata")
_NO_CANDIDATES = re.compile(
    r"[└├]─ (.+), for which no candidates were found|No candidates were found for ([^\n]+?)\.?$", re.MULTILINE
)
_URL = re.compile(r"https?://[^\s()]+")
LEAST_UNPACKED, RATIO = 4 * 10**9, 100  # bytes, and how many times its packed size a package may be unpacked

Send = Callable[[Mapping[str, Any]], None]
Stop = Callable[[KilnError], None]


def make_operation(
    name: str, arguments: Mapping[str, Any], limits: Limits, send: Send, stop: Stop
) -> SolveSpecs | InstallPackages | IndexFolder | VerifyAttestations:
    """Return an operation by its name; its ``file_size`` is the largest file that it may write."""
    match name:
        case "solve":
            return SolveSpecs(**arguments, file_size=limits.index)
        case "install":
            packages = records_from_json(arguments["records"])
            prefix, cache, carried = Path(arguments["prefix"]), Path(arguments["cache"]), bool(arguments["carried"])
            checker = PreinstallChecker(packages, prefix, cache, carried=carried, limits=limits, send=send, stop=stop)
            return InstallPackages(packages=packages, admission=checker, seen_at=arguments["seen_at"])
        case "index":
            return IndexFolder(**arguments, file_size=limits.index)
        case "verify":
            return VerifyAttestations(**arguments, file_size=limits.index)
    raise ValueError(name)


@dataclass(kw_only=True)
class IndexFolder:
    """Index a folder of packages."""

    root: str
    force: bool
    file_size: int | None

    @property
    def watched_task(self) -> WatchedTask:
        """The task: its folder is what it waits for."""
        return WatchedTask(what="indexing a channel", limit="solve", waits_for=lambda: self.root)

    async def execute(self) -> None:
        """Write the index.

        Raises:
            BrokenPackage: when the metadata of a package there cannot be read.
        """
        try:
            await index_fs(Path(self.root), write_shards=False, force=self.force)
        except Exception as error:
            _raise_disk_error(error, self.root)
            raise BrokenPackage(
                f"the packages in {self.root} cannot be indexed",
                why=_error_in_one_line(error),
                hint="one of them is damaged, or not a conda package",
            ) from error


@dataclass(kw_only=True)
class SolveSpecs:
    """Choose packages, see `kiln.conda.solve.solve`."""

    channels: list[str]
    specs: list[str]
    virtual_packages: Mapping[str, tuple[str, str]]
    platform: str
    installed: list[dict[str, Any]]
    priority: str
    file_size: int | None

    @property
    def watched_task(self) -> WatchedTask:
        """The task: it waits for the channels' servers."""
        return WatchedTask(
            what="choosing packages", limit="solve", waits_for=lambda: _url_hosts(map(_channel_base_url, self.channels))
        )

    async def execute(self) -> list[dict[str, Any]]:
        """Return the records of the packages."""
        try:
            records = await self._solve_with_rattler()
        except Exception as error:
            _raise_disk_error(error, "the cache of indexes")
            raise self._solve_error(error) from error
        return [json.loads(record.to_json()) for record in records]

    async def _solve_with_rattler(self) -> list[rattler.RepoDataRecord]:
        client = http.rattler_http_client()
        return await rattler.solve(
            self.channels,
            self.specs,
            platforms=[rattler.Subdir(self.platform), rattler.Subdir("noarch")],
            virtual_packages=[
                rattler.GenericVirtualPackage(
                    rattler.PackageName(name), rattler.Version(version), rattler.BuildString(build)
                )
                for name, (version, build) in self.virtual_packages.items()
            ],
            locked_packages=records_from_json(self.installed),
            channel_priority=getattr(rattler.ChannelPriority, self.priority.capitalize()),
            gateway=None if client is None else rattler.Gateway(client=client),
        )

    def _solve_error(self, error: Exception) -> KilnError:
        from rattler import exceptions

        channels, specs, why = ", ".join(self.channels), ", ".join(self.specs), str(error).strip()
        match error:
            case exceptions.InvalidMatchSpecError():
                return UsageError(f"one of {specs} is not a match spec", why=why, hint="'numpy <2', 'python=3.12'")
            case exceptions.InvalidChannelError():
                hint = "a folder, a URL, or a name such as conda-forge"
                return UsageError(f"one of {channels} is not a channel", why=why, hint=hint)
            case exceptions.SolverError():
                # The specs that no package satisfies; none when packages exclude each other.
                found = (first or second for first, second in _NO_CANDIDATES.findall(why))
                missing = list(dict.fromkeys(spec.removesuffix(" *") for spec in found))
                requested = {str(rattler.MatchSpec(spec)).removesuffix(" *") for spec in self.specs}
                needed_by = f", a requirement of {specs}" if set(missing) - requested else ""
                what = f"nothing in {channels} satisfies {', '.join(missing) or specs}{needed_by}"
                return SolveFailed(what, why=why)
        if TOO_LARGE in why:
            return LimitExceeded(
                f"the index of a channel of {channels} is larger than {files.human_readable_size(self.file_size or 0)}",
                why="no real index is; its server is broken or malicious",
                hint=limit_increase_hint(f"index={doubled_size_text(self.file_size or 0)}"),
            )
        received = any(words in why for words in NO_INDEX)
        if isinstance(error, (exceptions.GatewayError, exceptions.FetchRepoDataError)) and not received:
            return unreachable_channel_error(self.channels, why)
        return BrokenIndex(
            f"the index of a channel of {channels} cannot be read",
            why=_error_in_one_line(error),
            hint="the channel's owner should index it again; in a folder, kiln publish --reindex does",
        )


@dataclass(kw_only=True)
class VerifyAttestations:
    """Verify the attestations of a package, next to which they are, by an identity or by any."""

    record: dict[str, Any]
    identity: str | None
    issuer: str | None
    trusted_root: str
    compares_channel: bool
    file_size: int | None

    @property
    def watched_task(self) -> WatchedTask:
        """The task: its file is what it waits for."""
        return WatchedTask(what="verifying attestations", limit="solve", waits_for=lambda: "the disk")

    async def execute(self) -> dict[str, Any]:
        """Return the signer with the number of the attestation, or a refusal in words.

        Raises:
            UsageError: when the trusted root is invalid.
        """
        from rattler import sigstore
        from rattler.exceptions import AttestationError

        issuer = None if self.issuer is None else sigstore.Issuer(self.issuer)
        policy = sigstore.VerificationPolicy.require(
            sigstore.Publisher(self.identity, issuer),
            channel_check=sigstore.ChannelCheck.REQUIRE if self.compares_channel else sigstore.ChannelCheck.IGNORE,
        )
        try:
            root = (
                sigstore.TrustedRoot.from_json(self.trusted_root)
                if self.trusted_root
                else sigstore.TrustedRoot.embedded()
            )
        except ValueError as error:
            raise UsageError("the trusted root of Sigstore is invalid", why=_error_in_one_line(error)) from error
        (record,) = records_from_json([self.record])
        try:
            outcome = await sigstore.verify_attestation(record, policy, trusted_root=root)
        except AttestationError as error:
            return {"refusal": "; ".join(line.strip(" -:") for line in str(error).splitlines())}
        attestation = outcome.attestation
        if attestation is None:
            return {"refusal": "; ".join(outcome.warnings) or "nothing was verified"}
        claims = attestation.claims
        return {
            "index": attestation.index,
            "identity": attestation.identity or "",
            "issuer": attestation.issuer or "",
            "logged": attestation.integrated_time or "",
            "commit": (claims.source_repository_digest or "") if claims else "",
        }


def unreachable_channel_error(channels: Sequence[str], why: str) -> DownloadFailed:
    """Return the error of a channel whose server cannot be reached, from the library's message."""
    urls = _URL.findall(why)
    named = [channel for channel in channels if any(url.startswith(_channel_base_url(channel) or "\0") for url in urls)]
    what = f"the channel {named[0]}" if named else f"a channel of {', '.join(channels)}"
    cause = why.splitlines()[-1].removeprefix("Caused by: ")
    return DownloadFailed(
        f"{what} cannot be reached",
        why=f"{_url_hosts(urls)}: {cause}" if urls else why,
        hint="check that the channels can be reached, then run the same command again",
    )


@dataclass(kw_only=True)
class InstallPackages:
    """Install packages, which limit what may be unpacked, see `kiln.conda.solve.install`."""

    packages: list[rattler.RepoDataRecord]
    admission: PreinstallChecker
    seen_at: str | None
    file_size: int | None = None

    @property
    def watched_task(self) -> WatchedTask:
        """The task: it waits for the packages' servers, and writes into the cache."""
        return WatchedTask(
            what="installing packages",
            limit="install",
            waits_for=lambda: _url_hosts(self.admission.in_flight_urls()),
            writes=self._most_bytes_written(),
            folder=self.admission.cache,
        )

    def _most_bytes_written(self) -> int:
        limit = self.admission.limits.unpacked
        if any(not package.size for package in self.packages):
            return limit
        packed = sum(package.size or 0 for package in self.packages)
        return min(limit, max(LEAST_UNPACKED, RATIO * packed))

    async def execute(self) -> None:
        """Install the packages."""
        self.admission.check_installed_packages()
        try:
            new = await uncached_packages(self.packages, self.admission.cache)
            size = sum(package.size or 0 for package in new)
            self.admission.expected = size
            files.require_disk_space(self.admission.cache, size, for_what=f"downloading {len(new)} packages")
            require_matching_hashes(new)
            await self._install_with_rattler()
        except KilnError:
            raise
        except Exception as error:
            if self.admission.refusal is not None:
                raise self.admission.refusal from error
            _raise_disk_error(error, str(self.admission.prefix))
            raise installation_error(error, self.packages) from error

    async def _install_with_rattler(self) -> None:
        await rattler.install(
            self.packages,
            self.admission.prefix,
            cache_dir=self.admission.cache,
            show_progress=False,
            client=http.rattler_http_client(),
            reporter=cast("InstallerReporter", self.admission),  # it has the methods that are called
            execute_link_scripts=False,
            alternative_target_prefix=self.seen_at,
        )
        if self.admission.refusal is not None:
            raise self.admission.refusal


def _raise_disk_error(error: Exception, place: str) -> None:
    """Raise the OSError of a disk that failed; the library raises another type, with the system's words."""
    message = str(error)
    if DISK_FULL in message:
        raise OSError(errno.ENOSPC, os.strerror(errno.ENOSPC), place) from error
    if NOT_ALLOWED in message:
        raise PermissionError(errno.EACCES, message.splitlines()[-1], place) from error


def _error_in_one_line(error: Exception) -> str:
    return "; ".join(line.removeprefix("Caused by: ") for line in (str(error) or repr(error)).splitlines())


def _channel_base_url(channel: str) -> str:
    try:
        return rattler.Channel(channel).base_url
    except Exception:  # noqa: BLE001 - the library's own, of a channel that it will refuse itself
        return ""


def _url_hosts(urls: Any) -> str:
    """Return the hosts of URLs, without credentials; folders by their paths."""
    parts = [urlsplit(url) for url in urls]
    names = (f"{part.hostname}:{part.port}" if part.port else part.hostname or part.path for part in parts)
    return ", ".join(dict.fromkeys(filter(None, names))) or "the disk"


UNWINDING = 2.0  # seconds for the library to remove its half-written files once its work is cancelled


class RequestServer:
    """A server of one request after the other; ``breach`` is the limit that was exceeded."""

    def __init__(self, parent: int, answers: TextIO, locks: LockReceiver) -> None:
        self.parent, self.answers, self.locks = parent, answers, locks
        self.breach: KilnError | None = None
        self.answered = threading.Event()

    def send_message(self, message: Mapping[str, Any]) -> None:
        """Write one message to the parent."""
        serialization.write_line(self.answers, serialization.encode(message))

    def serve_request(self, line: str) -> None:
        """Run the operation of a request, under its limits, and answer."""
        request = serialization.decode(line) or {}
        http.register_credentials(request["credentials"])
        try:
            with self._hold_received_lock(request):
                value = asyncio.run(self._execute_within_limits(request))
        except (Exception, asyncio.CancelledError) as error:  # noqa: BLE001 - the parent decides what it means
            self._send_answer_once({"error": failure_to_json(self.breach or error)})
        else:
            self._send_answer_once({"value": value})
        if self.breach is not None:
            os._exit(0)

    @contextlib.contextmanager
    def _hold_received_lock(self, request: Mapping[str, Any]) -> Iterator[None]:
        """Hold the parent's lock, which came with the request; after a failure until this process ends.

        For compiled code may go on with its work then, until the parent ends the process, or is gone itself.
        """
        locks = self.locks.receive_locks() if request["lock"] else []
        yield
        for descriptor in locks:
            os.close(descriptor)

    async def _execute_within_limits(self, request: Mapping[str, Any]) -> Any:
        limits = Limits(**request["limits"])
        loop = asyncio.get_running_loop()
        self.answered.clear()
        task: asyncio.Future[Any] | None = None

        def end_operation(error: KilnError) -> None:
            """Cancel the operation; answer and exit when compiled code cannot be cancelled."""
            self.breach = self.breach or error
            if task is not None:
                loop.call_soon_threadsafe(task.cancel)
            if not self.answered.wait(UNWINDING):
                self._send_answer_once({"error": failure_to_json(self.breach)})
                os._exit(0)

        def end_operation_in_thread(error: KilnError) -> None:
            threading.Thread(target=end_operation, args=(error,), daemon=True).start()

        loop.add_signal_handler(signal.SIGTERM, end_operation_in_thread, Interrupted("the process was terminated"))
        operation = make_operation(
            request["operation"], request["arguments"], limits, self.send_message, end_operation_in_thread
        )
        # The watchdog acts sooner and gives the reason; this holds when memory grows faster than it polls.
        limit_memory_and_file_size(memory=2 * limits.memory + 10**9, file_size=operation.file_size)
        watchdog = Watchdog(limits, operation.watched_task, self.parent, end_operation)
        if isinstance(operation, InstallPackages):
            operation.admission.exceeded = watchdog.exceeded_space_error
        task = asyncio.ensure_future(operation.execute())
        watchdog.start()
        try:
            return await task
        finally:
            watchdog.stopped.set()

    def _send_answer_once(self, message: Mapping[str, Any]) -> None:
        if not self.answered.is_set():
            self.answered.set()
            self.send_message(message)


def main(parent: str, locks: str) -> None:
    """Answer until the input ends, then exit without the library's tear-down (see kiln.__main__)."""
    answers = os.fdopen(os.dup(sys.stdout.fileno()), "w", encoding="utf-8", newline="\n")
    os.dup2(sys.stderr.fileno(), sys.stdout.fileno())  # a library's output is not an answer
    server = RequestServer(int(parent), answers, LockReceiver(int(locks)))
    for line in io.TextIOWrapper(sys.stdin.buffer, encoding="utf-8"):
        server.serve_request(line)
    os._exit(0)


if __name__ == "__main__":
    main(*sys.argv[1:])
