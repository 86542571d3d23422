"""Where a channel's files lie, behind one interface; what is done with them is the same everywhere."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path


class Store(Protocol):
    """A tree of files; paths are relative to the channel, with slashes. Whatever is written appears whole or not."""

    @property
    def name(self) -> str:
        """What people are told, without credentials."""

    @property
    def notes(self) -> tuple[str, ...]:
        """What to know of a publication there; nothing where all changes at one moment."""

    @property
    def stepwise(self) -> bool:
        """Whether subdirs change one after the other, and not at one moment."""

    def exclusively(self) -> AbstractContextManager[None]:
        """Hold the channel alone; raises AlreadyRunning."""

    def read(self, path: str) -> bytes | None:
        """Return a file's content, or None when there is no such file."""

    def write(self, path: str, data: bytes) -> None:
        """Write a small file."""

    def create(self, path: str, data: bytes) -> bool:
        """Write a small file unless there is one; returns whether it was written."""

    def has(self, path: str, sha256: str) -> bool:
        """Return whether a file is there with this content."""

    def put(self, file: Path, path: str, sha256: str) -> None:
        """Bring a package there."""

    def move(self, source: str, target: str) -> None:
        """Give a file another place."""

    def remove(self, path: str) -> None:
        """Remove a file, or all files below a path; nothing there is fine."""

    def names(self, subdir: str) -> Mapping[str, int]:
        """Return the package files of a subdir with their sizes."""

    def swap(self, forms: Mapping[str, Mapping[str, bytes]]) -> None:
        """Put new index files of several subdirs in the place of the old, as near to one moment as can be."""

    def url(self, path: str) -> str:
        """Return where a client of this machine finds a folder of the channel."""
