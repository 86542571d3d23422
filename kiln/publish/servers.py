"""Channels on servers that keep their own index: anaconda.org, prefix.dev, quetz, Artifactory.

A release goes to a channel for staging, is tried out from there, and is then published as nearly at once as the server
can. What was brought where is written down on this machine before each upload, so that the same command goes on, and
what was brought can be taken back: never a package that was there before, or whose hash is another.
"""

from __future__ import annotations

import contextlib
import dataclasses
import hashlib
import random
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, TypeVar
from urllib.parse import urlsplit

from kiln import files, provenance
from kiln.errors import KilnError, PublicationPending, TokenRefused, UploadFailed, UsageError
from kiln.publish import web
from kiln.publish.journal import Journal, Phase
from kiln.publish.order import in_order
from kiln.publish.records import BILL, CHAIN, extended
from kiln.publish.services import HOMES, TOKENS, Kind, Service, service

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence

    from kiln.model.provenance import Attestation
    from kiln.repodata import Entry

T = TypeVar("T")
ATTEMPTS = 6
PAUSE = 2.0  # seconds, doubled each time
PATIENCE = 600.0  # seconds for a server to index what it took
SUBDIRS = ("noarch", "linux-64")
AGAIN = "run the same command again; what is there is not brought again"


@dataclass(frozen=True, slots=True, kw_only=True)
class ServerTarget:
    """A channel on a server; ``staging`` is the channel (or label) that packages are tried out from.

    ``journals`` is a folder of this machine for what is under way.
    """

    kind: Kind
    url: str
    channel: str
    staging: str | None
    service: Service
    journals: Path
    pause: Callable[[float], None] = time.sleep

    @classmethod
    def parse(
        cls,
        kind: Kind,
        named: str,
        environment: Mapping[str, str],
        *,
        staging: str | None,
        journals: Path,
        reading: str | None = None,
    ) -> ServerTarget:
        """Return the target that ``named``, an owner, a channel or its URL, stands for.

        Raises:
            UsageError: when it is no such thing.
            TokenRefused: when there are no credentials, or they would travel in the open.
        """
        url, _, channel = named.rpartition("/")
        url = url or HOMES.get(kind, "")
        if not channel or urlsplit(url).scheme not in {"http", "https"}:
            raise UsageError(f"{named!r} is no channel of {kind.value}", hint=f"{kind.value}:https://SERVER/CHANNEL")
        token, auth_file = environment.get(TOKENS[kind]), environment.get("RATTLER_AUTH_FILE")
        if not token and not auth_file:
            raise TokenRefused(f"no token for {url}", hint=f"set {TOKENS[kind]}, or RATTLER_AUTH_FILE to a file")
        if urlsplit(url).scheme == "http" and urlsplit(url).hostname not in {"localhost", "127.0.0.1", "::1"}:
            raise TokenRefused(f"a token would go to {url} in the open", hint="use https")
        kept = web.Credentials(token=token) if token else web.Credentials.kept(Path(auth_file or ""), url)
        pattern = f"{reading.rstrip('/')}/{{channel}}" if reading else None
        server = service(kind, url, channel, kept, auth_file=auth_file, reading=pattern)
        return cls(kind=kind, url=url, channel=channel, staging=staging, service=server, journals=journals)

    @property
    def name(self) -> str:
        """What people are told."""
        return f"{self.kind.value}:{self.url}/{self.channel}"

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of a publication there."""
        kept = self._place / "provenance"
        return self.service.moment, f"the server has no place for records of how packages were made; they are in {kept}"

    def held(self) -> dict[str, str]:
        """Return the hashes of what the channel has, by path."""
        return self._listed(self.channel)

    def address(self) -> str:
        """Return where clients read the channel."""
        return self.service.address(self.channel)

    def publish(
        self,
        packages: Sequence[Path],
        entries: Sequence[Entry],
        try_out: Callable[[str], None],
        attested: Attestation | None = None,
    ) -> tuple[str, ...]:
        """Bring packages to the channel for staging, have them tried out there, then to the channel itself.

        Raises:
            UploadFailed: naming how far it came; the same command goes on from there.
            TokenRefused: when the server does not take the token.
            PublicationPending: when another publication from this machine is under way.
        """
        with self._alone():
            journal = self._begin(entries)
            sources = {entry.path: package for entry, package in zip(entries, packages, strict=True)}
            new = [entry for entry in in_order(entries) if entry.path in journal.fresh]
            if journal.phase is Phase.STAGING and new:
                journal = self._stage(journal, new, sources)
                try_out(self.service.address(journal.aside))
                journal = self._note(journal.promoting())
            if new:
                journal = self._promote(journal, new, sources)
                self._record(attested)
                self._clear(journal)
            files.remove(self._journal)
        return tuple(entry.path for entry in new)

    def abort(self) -> tuple[str, ...]:
        """Take back what a publication from this machine brought, from the channel and from staging.

        Returns the paths of what was taken back; what a fault has left is there for another call.

        Raises:
            UploadFailed, TokenRefused: when the server does not remove something.
        """
        with self._alone():
            journal = self._pending()
            if journal is None:
                return ()
            staged, there = self._listed(journal.aside), self._listed(self.channel)
            for path in reversed(journal.brought_to(journal.aside)):
                lies = self._lying(path, journal.aside, staged) or there.get(path)
                if lies == journal.packages[path]:
                    self._remove(self.service.delete, path, journal.aside)
            self._take_back(journal)
            gone = {path: journal.packages[path] for path in journal.brought_to(journal.aside)}
            self._wait(journal.aside, lambda now: not now.items() & gone.items(), "goes on listing what was removed")
            self._forget(journal)
            files.remove(self._journal)
        return journal.fresh

    # What is under way

    @property
    def _place(self) -> Path:
        """The folder for what is known here of this channel."""
        host = urlsplit(self.url).hostname or ""
        return self.journals / f"{host}-{self.channel}-{hashlib.sha256(self.name.encode()).hexdigest()[:8]}"

    @property
    def _journal(self) -> Path:
        return self._place / "journal.json"

    @contextlib.contextmanager
    def _alone(self) -> Iterator[None]:
        with files.locked(self._place / "lock"):
            files.remove_leftovers(self._place)
            yield

    def _record(self, attested: Attestation | None) -> None:
        if attested is not None:
            for sha256, bill in attested.boms.items():
                files.write_bytes(self._place / BILL.format(sha256), bill)
            files.write_bytes(self._place / CHAIN, extended(self._chain(), attested))

    def _forget(self, journal: Journal) -> None:
        hashes = [journal.packages[path] for path in journal.fresh]
        if chain := self._chain():
            files.write_bytes(self._place / CHAIN, provenance.without(chain, hashes))
        for sha256 in hashes:
            files.remove(self._place / BILL.format(sha256))

    def _chain(self) -> bytes:
        place = self._place / CHAIN
        return place.read_bytes() if place.is_file() else b""

    def _pending(self) -> Journal | None:
        return Journal.parse(self._journal.read_bytes()) if self._journal.is_file() else None

    def _note(self, journal: Journal) -> Journal:
        files.write_bytes(self._journal, journal.written())
        return journal

    def _begin(self, entries: Sequence[Entry]) -> Journal:
        found = self._pending()
        wanted = Journal.begun(entries, self.held())
        if found is not None:
            found.require_same(wanted)
            return found
        if not wanted.fresh:
            return wanted
        if not self.staging or self.staging == self.channel:
            hint = "--staging CHANNEL, or LABEL on anaconda"
            raise UsageError(f"no channel for staging on {self.kind.value}", hint=hint)
        wanted = dataclasses.replace(wanted, aside=self.staging)
        self._require_own(wanted)
        return self._note(wanted)

    def _require_own(self, journal: Journal) -> None:
        """Where one request publishes everything that is staged, nothing else may be."""
        others = self._listed(journal.aside).keys() - journal.packages.keys() if self.service.sweeps else ()
        if others:
            raise PublicationPending(
                f"{journal.aside} holds other packages: {', '.join(sorted(others)[:3])}",
                why="everything there would be published, too; perhaps another publication is under way",
                hint="name another --staging, or remove them from this one",
            )

    # There

    def _stage(self, journal: Journal, new: Sequence[Entry], sources: Mapping[str, Path]) -> Journal:
        aside = journal.aside
        for entry in new:
            journal = self._bring(journal, [entry], aside, lambda paths: self._upload(paths, sources, aside))
        self._wait_for(new, aside)
        return journal

    def _upload(self, paths: Sequence[str], sources: Mapping[str, Path], channel: str) -> None:
        for path in paths:
            self.service.upload(sources[path], channel)

    def _promote(self, journal: Journal, new: Sequence[Entry], sources: Mapping[str, Path]) -> Journal:
        self._require_own(journal)
        aside = journal.aside

        def promote(paths: Sequence[str]) -> None:
            self.service.promote({path: sources[path] for path in paths}, aside, self.channel)

        try:
            for batch in [new] if self.service.together else [[entry] for entry in new]:
                journal = self._bring(journal, batch, self.channel, promote)
        except (UploadFailed, TokenRefused) as error:
            raise type(error)(error.what, why=f"{error.why}; {self._reverse()}", hint=AGAIN) from error
        self._wait_for(new, self.channel)
        return journal

    def _bring(
        self, journal: Journal, batch: Sequence[Entry], channel: str, act: Callable[[Sequence[str]], None]
    ) -> Journal:
        """Have packages come to a channel, written down before; those that are there by their hash are left."""
        missing = self._missing(batch, channel)
        if not missing:
            return journal
        journal = self._note(journal.bringing(channel, missing))
        what = ", ".join(path.split("/")[-1] for path in missing)
        self._again(
            lambda: act(self._missing(batch, channel)),
            lambda: not self._missing(batch, channel),
            f"{what} could not be brought to {channel} on {self.url}",
        )
        return journal

    def _missing(self, batch: Sequence[Entry], channel: str) -> list[str]:
        there = self._listed(channel)
        for entry in batch:
            if there.get(entry.path, entry.sha256) != entry.sha256:
                raise UploadFailed(f"{channel} has {entry.file} with another hash", hint="raise the build number")
        return [entry.path for entry in batch if entry.path not in there]

    # And back

    def _reverse(self) -> str:
        """Take back what a failed promotion has brought to the channel; returns what came of it."""
        journal = self._pending()
        assert journal is not None, "a promotion begins with a journal"
        try:
            self._take_back(journal)
        except KilnError as error:
            left = sorted(self.held().keys() & journal.fresh)
            return f"{len(left)} of {len(journal.fresh)} packages are in {self.channel} and stay there: {error.what}"
        return f"nothing of it is in {self.channel}"

    def _take_back(self, journal: Journal) -> None:
        """Have the channel be without what was brought there, the last first."""
        there = self._listed(self.channel)
        ours = [path for path in journal.brought_to(self.channel) if path in journal.fresh]
        for path in reversed(ours):
            if self._lying(path, self.channel, there) == journal.packages[path]:
                self._remove(self.service.unlist, path, self.channel)
        gone = {path: journal.packages[path] for path in ours}
        self._wait(self.channel, lambda now: not now.items() & gone.items(), "goes on listing what was removed")

    def _clear(self, journal: Journal) -> None:
        """Take from staging what was published; where the token is not good for that, it stays."""
        with contextlib.suppress(UploadFailed, TokenRefused):
            for path in reversed(journal.brought_to(journal.aside)):
                self._remove(self.service.unlist, path, journal.aside)

    def _remove(self, remove: Callable[[str, str], None], path: str, channel: str) -> None:
        def act() -> None:
            try:
                remove(path, channel)
            except web.Fault as fault:
                if fault.status != 404:  # it is gone already
                    raise

        self._again(act, lambda: False, f"{path} could not be removed from {channel} on {self.url}")

    def _lying(self, path: str, channel: str, listed: Mapping[str, str]) -> str | None:
        """Return the hash of a package that a channel has, also of one that is not in its index yet."""
        url = f"{self.service.address(channel)}/{path}"
        return listed[path] if path in listed else self._asked(lambda: web.hash_of(url), url)

    # Waiting

    def _again(self, act: Callable[[], None], done: Callable[[], bool], what: str) -> None:
        """Do something, again after a pause when a fault may pass and it is not done all the same."""
        told = ""
        for attempt in range(ATTEMPTS):
            self._before(attempt)
            try:
                act()
            except web.Fault as fault:
                told = str(fault)
                if fault.refuses:
                    raise TokenRefused(f"{self.url} does not take the token ({fault.status})", why=told) from fault
                if done():  # it came, only the answer was lost
                    return
            else:
                return
        raise UploadFailed(f"{what} in {ATTEMPTS} attempts", why=told, hint=AGAIN)

    def _asked(self, ask: Callable[[], T], what: str) -> T:
        """Ask something, again after a pause when a fault may pass."""
        told = ""
        for attempt in range(ATTEMPTS):
            self._before(attempt)
            try:
                return ask()
            except web.Fault as fault:
                told = str(fault)
        raise UploadFailed(f"{what} cannot be read", why=told, hint="run the same command again")

    def _before(self, attempt: int) -> None:
        if attempt:
            self.pause(PAUSE * 2 ** (attempt - 1) * random.uniform(0.75, 1.25))  # noqa: S311 - to keep two apart

    def _listed(self, channel: str) -> dict[str, str]:
        return {
            f"{subdir}/{file}": str(record.get("sha256", ""))
            for subdir in SUBDIRS
            for file, record in self._index(channel, subdir).items()
        }

    def _index(self, channel: str, subdir: str) -> dict[str, Any]:
        url = f"{self.service.address(channel)}/{subdir}/repodata.json"
        return self._asked(lambda: web.index(url), url)

    def _wait_for(self, entries: Sequence[Entry], channel: str) -> None:
        wanted = {entry.path: entry.sha256 for entry in entries}
        self._wait(channel, lambda now: wanted.items() <= now.items(), "does not list what it took")

    def _wait(self, channel: str, fine: Callable[[Mapping[str, str]], bool], otherwise: str) -> None:
        """Wait until a server has indexed what it took, or was rid of."""
        waited, pause = 0.0, 1.0
        while not fine(self._listed(channel)):
            if waited > PATIENCE:
                hint = "run the same command again, when the server has come so far"
                raise UploadFailed(f"{self.url} {otherwise} in {channel}, after {PATIENCE:.0f} s", hint=hint)
            self.pause(pause)
            waited, pause = waited + pause, min(2 * pause, 30.0)
