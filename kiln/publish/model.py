"""The packages of a release, their order, the journal of a publication, and the interface of stores."""

from __future__ import annotations

import dataclasses
import hashlib
import itertools
import json
from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any, Protocol

from kiln.base.errors import BrokenIndex, PublicationPending
from kiln.conda.index import BASE, SHARDS
from kiln.conda.specs import package_name

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kiln.conda.index import IndexEntry
    from kiln.recipe.rendered import Output
    from kiln.state.results import Artifact, ConfigState, TestVerdict


class Store(Protocol):
    """A tree of files; paths are relative to the channel, with slashes. A file appears whole or not at all."""

    @property
    def name(self) -> str:
        """The name in messages, without credentials."""

    @property
    def notes(self) -> tuple[str, ...]:
        """Remarks for the person who publishes there; empty where all files change at one moment."""

    @property
    def changes_stepwise(self) -> bool:
        """True when subdirs change one after the other, not at one moment."""

    def exclusive_lock(self) -> AbstractContextManager[None]:
        """Hold the channel during the block; raises AlreadyRunning."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content, or None if it does not exist."""

    def write(self, path: str, data: bytes) -> None:
        """Write a small file."""

    def write_if_absent(self, path: str, data: bytes) -> bool:
        """Write a small file unless there is one; return whether it was written."""

    def has_file_with_hash(self, path: str, sha256: str) -> bool:
        """Return whether a file is there with this content."""

    def store_package(self, file: Path, path: str, sha256: str) -> None:
        """Store a package."""

    def move(self, source: str, target: str) -> None:
        """Move a file."""

    def remove(self, path: str) -> None:
        """Remove a file, or all files below a path, if there are any."""

    def subdirs(self) -> tuple[str, ...]:
        """Return the names of the folders at the top that are conda's subdirs."""

    def package_sizes(self, subdir: str) -> Mapping[str, int]:
        """Return the package files of a subdir with their sizes."""

    def sidecar_paths(self, path: str) -> tuple[str, ...]:
        """Return the paths of the files of attestations whose names begin with a package's path."""

    def replace_indexes(self, forms: Mapping[str, Mapping[str, bytes]]) -> None:
        """Replace the index files of several subdirs, as near to one moment as the store can."""

    def url(self, path: str) -> str:
        """Return the URL of a folder of the channel, for clients on this machine."""


SUBDIRS = ("noarch", "linux-64")  # of every channel that is made here; others follow with their packages


def subdirs_with_defaults(names: Iterable[str]) -> tuple[str, ...]:
    """Return the subdirs of a channel that has, or gets, these: those of every channel first."""
    return (*SUBDIRS, *sorted(set(names) - set(SUBDIRS)))


def sorted_by_dependencies(entries: Iterable[IndexEntry]) -> list[IndexEntry]:
    """Return packages, those first that others need; all builds of a name stay together."""
    # Solvers prefer builds without tracked features, then those with a high build number.
    waiting = sorted(
        entries,
        key=lambda one: (bool(one.record.get("track_features")), -int(one.record.get("build_number", 0)), one.path),
    )
    needs = {entry.path: {package_name(str(spec)) for spec in entry.record.get("depends", ())} for entry in waiting}
    ordered: list[IndexEntry] = []
    while waiting:
        names = {entry.record["name"] for entry in waiting}
        blocked = {entry.record["name"] for entry in waiting if needs[entry.path] & (names - {entry.record["name"]})}
        free = [entry for entry in waiting if entry.record["name"] not in blocked] or waiting
        ordered += free
        waiting = [entry for entry in waiting if entry not in free]
    return ordered


def sorted_and_split_by_subdir(entries: Iterable[IndexEntry]) -> list[Sequence[IndexEntry]]:
    """Return packages in order, divided where the subdir changes: each part changes one index."""
    return [list(run) for _, run in itertools.groupby(sorted_by_dependencies(entries), key=lambda entry: entry.subdir)]


def index_file_write_order(name: str) -> tuple[bool, bool, bool, str]:
    """Return the turn of an index file where files are replaced one by one.

    Shards that others name come first, then what clients read, kiln's record last.
    """
    return not name.startswith(f"{SHARDS}/"), name == BASE, "repodata" in name, name


@dataclass(frozen=True, slots=True, kw_only=True)
class ContentLeak:
    """Content that a package's file must not hold: what it is, its first byte, and how to keep it out.

    ``text`` is empty for secrets.
    """

    file: str
    what: str
    offset: int
    text: str = ""
    cure: str = ""

    def __str__(self) -> str:
        text = f": {self.text}" if self.text else ""
        cure = f"; {self.cure}" if self.cure else ""
        return f"{self.file} contains {self.what} at byte {self.offset:,}{text}{cure}"


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageContents:
    """The contents of a package file: ``paths`` are the files that it installs, ``licenses`` its license texts.

    ``leaks`` are files with content that they must not hold, ``escapes`` paths and links that lead out of a prefix.
    ``links`` are its symbolic links, each with its target.
    """

    sha256: str
    size: int
    index: Mapping[str, Any]
    about: Mapping[str, Any]
    paths: tuple[str, ...] = ()
    licenses: tuple[str, ...] = ()
    leaks: tuple[ContentLeak, ...] = ()
    escapes: tuple[str, ...] = ()
    links: tuple[tuple[str, str], ...] = ()


@dataclass(frozen=True, slots=True, kw_only=True)
class Candidate:
    """A package that configs built, with the report of the first of them.

    ``contents`` is None when the file cannot be read, ``broken`` says why; ``built_on`` is the platform that it was
    cross-compiled on, empty for a native build; ``output`` is its config's current render,
    and with ``needs_nothing_else`` no package can have added to its requirements. ``is_current`` when it was built
    from the feedstock's files as they are now.
    """

    path: Path
    configs: tuple[str, ...]
    artifact: Artifact
    verdict: TestVerdict
    contents: PackageContents | None
    broken: str = ""
    built_on: str = ""
    output: Output | None = None
    needs_nothing_else: bool = False
    is_current: bool = True


@dataclass(frozen=True, slots=True, kw_only=True)
class Release:
    """The packages of a run that are to be published.

    ``configs`` are all configs of the matrix with their states, None for one that was never built; ``partial``
    are those that may be missing. ``expected`` are the paths in the channel that each config renders. ``allowed`` are
    globs over package names, ``held`` the hashes of the files in the channel, by their paths, empty for withdrawn ones.
    ``untested`` are platforms whose cross-compiled packages may be published without tests. With ``allow_dirty``,
    packages may be built from a checkout with changes. ``damaged`` are the paths of files that the channel offers, and
    does not have as its index says. ``skipped`` are remarks on the packages that are left out.
    """

    configs: Mapping[str, ConfigState | None]
    expected: Mapping[str, tuple[str, ...]]
    candidates: tuple[Candidate, ...]
    partial: frozenset[str] = frozenset()
    allowed: tuple[str, ...]
    held: Mapping[str, str] = field(default_factory=dict)
    damaged: frozenset[str] = frozenset()
    untested: frozenset[str] = frozenset()
    allow_dirty: bool = False
    skipped: tuple[str, ...] = ()


class PublicationPhase(str, Enum):
    """The progress of a publication."""

    STAGING = "staging"
    PROMOTING = "promoting"


@dataclass(frozen=True, slots=True, kw_only=True)
class Journal:
    """A publication: ``packages`` maps the paths of all packages to their hashes, ``fresh`` are the new paths.

    On a server ``aside`` is the channel for staging, and ``brought`` lists what this publication has uploaded, or may
    have: channels with paths, in that order. ``confirmed`` are those that the server said it took from it: the others
    may be another machine's, of the same packages.
    """

    id: str
    packages: Mapping[str, str]
    fresh: tuple[str, ...]
    phase: PublicationPhase = PublicationPhase.STAGING
    aside: str = ""
    brought: tuple[tuple[str, str], ...] = ()
    confirmed: tuple[tuple[str, str], ...] = ()

    @classmethod
    def from_entries(cls, entries: Iterable[IndexEntry], hashes: Mapping[str, str]) -> Journal:
        """Return the journal of a new publication; ``hashes`` are those of the channel, by path."""
        packages = {entry.path: entry.sha256 for entry in entries}
        fresh = tuple(sorted(path for path, sha256 in packages.items() if hashes.get(path) != sha256))
        content = json.dumps(packages, sort_keys=True).encode()
        return cls(id=hashlib.sha256(content).hexdigest()[:16], packages=packages, fresh=fresh)

    @classmethod
    def parse(cls, data: bytes) -> Journal:
        """Return the journal that a file holds.

        Raises:
            BrokenIndex: when the file is not a journal.
        """
        try:
            values = json.loads(data)
            return cls(
                id=values["id"],
                packages=dict(values["packages"]),
                fresh=tuple(_checked_package_path(path) for path in values["fresh"]),
                phase=PublicationPhase(values["phase"]),
                aside=str(values.get("aside", "")),
                brought=_checked_uploads(values.get("brought", ())),
                confirmed=_checked_uploads(values.get("confirmed", ())),
            )
        except (ValueError, KeyError, TypeError) as error:
            raise BrokenIndex("the channel's journal of a publication cannot be read", why=repr(error)) from error

    def to_json_bytes(self) -> bytes:
        """Return the content of the journal's file."""
        return json.dumps(dataclasses.asdict(self), indent=1).encode()

    def with_promoting_phase(self) -> Journal:
        """Return the journal after the packages passed their tests in staging."""
        return dataclasses.replace(self, phase=PublicationPhase.PROMOTING)

    def with_uploads(self, channel: str, paths: Iterable[str]) -> Journal:
        """Return the journal before packages are uploaded to a channel of a server."""
        return dataclasses.replace(self, brought=tuple(dict.fromkeys((*self.brought, *((channel, p) for p in paths)))))

    def with_confirmed_upload(self, channel: str, path: str) -> Journal:
        """Return the journal after a server took a package."""
        return dataclasses.replace(self, confirmed=tuple(dict.fromkeys((*self.confirmed, (channel, path)))))

    def uploaded_paths(self, channel: str) -> tuple[str, ...]:
        """Return the paths that this publication has, or may have, uploaded to a channel of a server."""
        return tuple(path for name, path in self.brought if name == channel)

    def confirmed_paths(self, channel: str) -> tuple[str, ...]:
        """Return the paths that a channel of a server took from this publication."""
        return tuple(path for name, path in self.confirmed if name == channel)

    @property
    def staging_folder(self) -> str:
        """The folder of a store for the packages until they are promoted."""
        return f".kiln/staging/{self.id}"

    def require_same_publication(self, other: Journal) -> None:
        """Raise PublicationPending when this journal, which is in the channel, is of another publication."""
        if self.id == other.id:
            return
        names = ", ".join(path.split("/")[-1] for path in self.fresh[:3]) + (", ..." if len(self.fresh) > 3 else "")
        raise PublicationPending(
            f"another publication is under way there: {len(self.fresh)} packages ({names})",
            hint="finish it by the command that began it, or take it back with --abort",
        )


@dataclass(frozen=True, slots=True, kw_only=True)
class JournalFile:
    """The file of the journal in a store; it exists during publications alone."""

    store: Store
    path: str

    def read(self) -> Journal | None:
        """Return the publication that is neither finished nor reversed."""
        data = self.store.read(self.path)
        return None if data is None else Journal.parse(data)

    def write_if_absent(self, journal: Journal) -> bool:
        """Write the journal unless there is one; return whether it was written."""
        return self.store.write_if_absent(self.path, journal.to_json_bytes())

    def write(self, journal: Journal) -> None:
        """Replace the journal."""
        self.store.write(self.path, journal.to_json_bytes())

    def remove(self) -> None:
        """Remove the journal: the publication is over."""
        self.store.remove(self.path)

    def require_no_pending_publication(self) -> None:
        """Raise PublicationPending when any publication is under way."""
        if (journal := self.read()) is not None:
            journal.require_same_publication(Journal.from_entries((), {}))


def _checked_uploads(uploads: Iterable[tuple[str, str]]) -> tuple[tuple[str, str], ...]:
    return tuple((str(channel), _checked_package_path(path)) for channel, path in uploads)


def _checked_package_path(path: str) -> str:
    """Return the path of a package file; others may write the journal, and it names files to remove."""
    parts = path.split("/")
    if len(parts) != 2 or not all(parts) or any(part.startswith(".") for part in parts):
        raise ValueError(f"{path!r} is not the path of a package")
    return path
