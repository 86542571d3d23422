"""The journal of a publication under way: what is needed to finish it or to reverse it."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from dataclasses import dataclass
from enum import Enum
from typing import TYPE_CHECKING

from kiln.errors import BrokenIndex, PublicationPending

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.publish.stores import Store
    from kiln.repodata.index_entry import IndexEntry


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
