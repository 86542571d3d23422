"""A publication into a store: staged, tried out, promoted, and the index last; or taken back.

Readers follow the index. Packages come before it and go after it, so that they never find less than it says.
"""

from __future__ import annotations

import contextlib
from dataclasses import dataclass
from typing import TYPE_CHECKING, TypeVar

from kiln import provenance, repodata
from kiln.errors import HashMismatch, UsageError, nearest
from kiln.publish.journal import Journal, Phase
from kiln.publish.order import runs
from kiln.publish.records import BILL, CHAIN, extended
from kiln.repodata import Entry, Subdir

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from collections.abc import Set as AbstractSet
    from pathlib import Path
    from typing import Any

    from kiln.model.provenance import Attestation
    from kiln.publish.store import Store

SUBDIRS = ("noarch", "linux-64")
JOURNAL = ".kiln/journal.json"

What = TypeVar("What")


@dataclass(frozen=True, slots=True, kw_only=True)
class ChannelTarget:
    """A channel whose files kiln keeps itself."""

    store: Store

    @property
    def name(self) -> str:
        """What people are told."""
        return self.store.name

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of a publication there."""
        return self.store.notes

    def address(self) -> str:
        """Return where clients read the channel."""
        return self.store.url("").rstrip("/")

    def held(self) -> dict[str, str]:
        """Return the hashes of the packages in the channel's index, by their paths; none for what was deleted."""
        return {
            f"{subdir.name}/{file}": str(subdir.records.get(file, {}).get("sha256", ""))
            for subdir in self.index().values()
            for file in subdir.records.keys() | subdir.removed
        }

    def index(self) -> dict[str, Subdir]:
        """Return the channel's index, empty when it has none."""
        return {name: self._subdir(name) for name in SUBDIRS}

    def pending(self) -> Journal | None:
        """Return the publication that is neither finished nor taken back."""
        data = self.store.read(JOURNAL)
        return None if data is None else Journal.parse(data)

    def publish(
        self,
        packages: Sequence[Path],
        entries: Sequence[Entry],
        try_out: Callable[[str], None],
        attested: Attestation | None = None,
    ) -> tuple[str, ...]:
        """Put packages into the channel, all at once or none; returns the paths that are new there.

        ``entries`` are what the index is to say of them, in the same order. ``try_out`` gets the URL of a channel that
        has the new packages alone, and raises when they are no good; ``attested`` is published with them. A publication
        of the same packages that was
        interrupted is taken up where it was.

        Raises:
            PublicationPending: when another one is under way.
            AlreadyRunning: when another process publishes at this moment.
        """
        with self.store.exclusively():
            journal = self._begin(entries)
            sources = {entry.path: package for entry, package in zip(entries, packages, strict=True)}
            new = [entry for entry in entries if entry.path in journal.fresh]
            if journal.phase is Phase.STAGING and new:
                self._stage(journal, sources, new)
                try_out(self.store.url(journal.staging))
                journal = journal.promoting()
                self.store.write(JOURNAL, journal.written())
            for path in journal.fresh:
                self._promote(journal, path)
            if new:
                self._offer(new, self._records(journal, attested))
            self._end(journal)
        return journal.fresh

    def abort(self) -> tuple[str, ...]:
        """Take the publication back that is under way; returns the paths of its packages."""
        with self.store.exclusively():
            journal = self.pending()
            if journal is None:
                return ()
            gone = {path.split("/")[1] for path in journal.fresh}
            if journal.phase is Phase.PROMOTING and (
                self.store.stepwise or any(path in self.held() for path in journal.fresh)
            ):
                records = provenance.without(self._chain(), (journal.packages[path] for path in journal.fresh))
                self._withdraw(gone, Subdir.without, records)
            for path in journal.fresh:
                self.store.remove(path)
                self.store.remove(BILL.format(journal.packages[path]))
            self._end(journal)
        return journal.fresh

    def yank(self, names: Sequence[str], *, delete: bool = False) -> tuple[str, ...]:
        """Withdraw packages, by their file names, from the index; their files stay unless they are to be deleted."""
        with self._settled():
            paths = [self._path_of(name) for name in names]
            self._withdraw(set(names), _deleted if delete else _withdrawn)
            for path in paths if delete else ():
                self.store.remove(path)
        return tuple(paths)

    def patch(self, name: str, fields: Mapping[str, Any]) -> str:
        """Have the index tell fields of a package's record otherwise, ``depends`` for one; the file stays as it is."""
        with self._settled():
            path = self._path_of(name)
            self._change(lambda subdir: subdir.patched(name, fields) if name in subdir.records else subdir)
        return path

    def reindex(self, read: Callable[[str], Entry]) -> int:
        """Index what lies in the channel, reading only what the index does not know; returns how many that were."""
        with self._settled():
            index = self.index()
            there = {name: self.store.names(name) for name in SUBDIRS}
            gone = {file for name in SUBDIRS for file in index[name].records.keys() - there[name].keys()}
            new = [
                read(f"{name}/{file}")
                for name in SUBDIRS
                for file, size in there[name].items()
                if index[name].records.get(file, {}).get("size") != size
            ]
            self._change(lambda subdir: subdir.without(gone - subdir.removed).with_packages(new))
        return len(new)

    @contextlib.contextmanager
    def _settled(self) -> Iterator[None]:
        """Hold the channel while no publication is under way."""
        with self.store.exclusively():
            if (found := self.pending()) is not None:
                found.require_same(Journal.begun((), {}))
            yield

    def _begin(self, entries: Sequence[Entry]) -> Journal:
        wanted = Journal.begun(entries, self.held())
        if not wanted.fresh or self.store.create(JOURNAL, wanted.written()):
            return wanted
        found = self.pending() or wanted
        found.require_same(wanted)
        return found

    def _stage(self, journal: Journal, sources: Mapping[str, Path], new: Sequence[Entry]) -> None:
        for entry in new:
            place = f"{journal.staging}/{entry.path}"
            if not self.store.has(place, entry.sha256):
                self.store.put(sources[entry.path], place, entry.sha256)
        for name in SUBDIRS:
            forms = repodata.forms(repodata.Subdir(name=name).with_packages(new))
            self.store.write(f"{journal.staging}/{name}/repodata.json", forms["repodata.json"])

    def _promote(self, journal: Journal, path: str) -> None:
        staged = f"{journal.staging}/{path}"
        if self.store.has(staged, journal.packages[path]):
            self.store.move(staged, path)
        elif not self.store.has(path, journal.packages[path]):
            raise HashMismatch(
                f"{path} is neither staged nor in {self.name}",
                why="something else changed the channel's folder, or the disk lost it",
                hint="take the publication back with --abort, then publish again",
            )

    def _end(self, journal: Journal) -> None:
        self.store.remove(journal.staging)
        self.store.remove(JOURNAL)

    def _records(self, journal: Journal, attested: Attestation | None) -> bytes:
        """Put bills of materials into the channel, and return its records with those of the new packages."""
        chain = self._chain()
        if attested is None:
            return chain
        for sha256, bill in attested.boms.items():
            if sha256 in journal.packages.values():
                self.store.write(BILL.format(sha256), bill)
        return extended(chain, attested)

    def _offer(self, new: Sequence[Entry], records: bytes) -> None:
        """Put packages into the index, with their records; in steps, what others need comes first."""
        for part in (*(runs(new) if self.store.stepwise else ()), new):
            self._apply(Subdir.with_packages, part, records)

    def _withdraw(
        self, gone: AbstractSet[str], edit: Callable[[Subdir, AbstractSet[str]], Subdir], records: bytes | None = None
    ) -> None:
        """Take packages out of the index, then their records; in steps, what needs others goes first."""
        offered = self._offered() if self.store.stepwise else []
        entries = [entry for entry in offered if entry.file in gone]
        for part in reversed(runs(entries)):
            self._apply(edit, {entry.file for entry in part})
        self._apply(edit, gone, records)

    def _may_offer(self, journal: Journal) -> bool:
        """Whether readers may find packages of a publication; in steps, before kiln's own record tells."""
        told = self.store.stepwise or any(path in self.held() for path in journal.fresh)
        return journal.phase is Phase.PROMOTING and told

    def _offered(self) -> list[Entry]:
        """Return what readers find in the index at this moment."""
        found = {name: self.store.read(f"{name}/repodata.json") for name in SUBDIRS}
        return [
            Entry(file=file, subdir=name, record=record, run_exports={})
            for name, data in found.items()
            if data is not None
            for file, record in repodata.adopted(name, data).records.items()
        ]

    def _chain(self) -> bytes:
        return self.store.read(CHAIN) or b""

    def _apply(self, edit: Callable[[Subdir, What], Subdir], what: What, records: bytes | None = None) -> None:
        """Change the index by an edit and what it is about: packages, or their names."""
        self._change(lambda subdir: edit(subdir, what), records)

    def _change(self, edit: Callable[[Subdir], Subdir], records: bytes | None = None) -> None:
        """Change the index, and the records with it at the same moment."""
        forms = {name: repodata.forms(edit(subdir)) for name, subdir in self.index().items()}
        there = self.store.read(CHAIN)
        chain = (there or b"") if records is None else records
        folder, name = CHAIN.split("/")
        self.store.swap({**({folder: {name: chain}} if chain or there is not None else {}), **forms})

    def _subdir(self, name: str) -> Subdir:
        base = self.store.read(f"{name}/{repodata.BASE}")
        if base is not None:
            told = (self.store.read(f"{name}/{file}") for file in ("run_exports.json", repodata.INSTRUCTIONS))
            return repodata.parsed(name, base, *told)
        plain = self.store.read(f"{name}/repodata.json")
        return repodata.Subdir(name=name) if plain is None else repodata.adopted(name, plain)

    def _path_of(self, name: str) -> str:
        held = self.held()
        for path in held:
            if path.endswith(f"/{name}"):
                return path
        files = [path.split("/")[1] for path in held]
        raise UsageError(f"{self.name} has no package {name!r}", hint=nearest(name, files) or "name a whole file name")


def _withdrawn(subdir: Subdir, names: AbstractSet[str]) -> Subdir:
    return subdir.withdrawn(subdir.records.keys() & names)


def _deleted(subdir: Subdir, names: AbstractSet[str]) -> Subdir:
    return subdir.without(names).withdrawn(subdir.records.keys() & names)
