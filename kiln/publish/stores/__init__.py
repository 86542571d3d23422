"""The stores of channels whose files kiln writes: one interface over a folder and a bucket."""

from __future__ import annotations

from typing import TYPE_CHECKING, Protocol

if TYPE_CHECKING:
    from collections.abc import Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path


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
