"""The folders of a rehearsal, below build_artifacts/rehearsal."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import files
from kiln.channel import Channel

if TYPE_CHECKING:
    from pathlib import Path

SIGN = "REHEARSAL.txt"
SIGN_TEXT = """\
The packages in this channel are a rehearsal of a release, not a release: what is compiled in them was published by
TensorFlow's own project as a wheel, and the Python in them comes from the machine, or the container's image, that they
were made on. They are for trying this feedstock there. kiln refuses to publish them.
"""


@dataclass(frozen=True, slots=True, kw_only=True)
class Workshop:
    """Where a rehearsal of one cell keeps what it fetches, makes and says: ``cell`` is this cell's alone."""

    cell: Path

    @property
    def root(self) -> Path:
        """What all cells share."""
        return self.cell.parent

    @property
    def lock(self) -> Path:
        """Held by the one process that fetches wheels, or converts them."""
        return self.root / ".lock"

    @property
    def wheels(self) -> Path:
        """The fetched wheels, shared by all cells."""
        return self.root / "wheels"

    @property
    def converted(self) -> Path:
        """The packages made from wheels and interpreters, shared by all cells; their names stand for their content."""
        return self.root / "converted"

    @property
    def cache(self) -> Path:
        """The package cache, from which prefixes are linked."""
        return self.root / "cache"

    @property
    def channel(self) -> Channel:
        """The channel of this cell: its own packages and what they need."""
        return Channel(root=self.cell / "channel")

    @property
    def work(self) -> Path:
        """Where packages are made."""
        return self.cell / "work"

    @property
    def prefixes(self) -> Path:
        """Where packages are installed to be tested."""
        return self.cell / "prefixes"

    @property
    def logs(self) -> Path:
        """What the tests said."""
        return self.cell / "logs"

    def open(self) -> None:
        """Make the folders, sweep out what a killed run left half-done, and mark the channel as a rehearsal's."""
        for folder in (self.wheels, self.converted, self.work, self.prefixes, self.logs):
            folder.mkdir(parents=True, exist_ok=True)
            if folder.parent == self.cell:
                files.remove_leftovers(folder)
        self.channel.mend()
        files.write_text(self.channel.root / SIGN, SIGN_TEXT)
