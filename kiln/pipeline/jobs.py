"""What the processes of a run are told, each by a file: a cell's by the run, the one that builds by the cell's."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import files

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence


@dataclass(frozen=True, slots=True, kw_only=True)
class CellJob:
    """A cell to build: ``container`` is an engine's name, or ``none`` for the host; ``memory`` in bytes.

    ``found`` is the engine as the run has found it to work, which takes many times longer than to tell it.
    ``variables`` are conda-forge's, ``environment`` what a build on the host has besides; free of secrets, both.
    ``debug`` names an output that is to be made ready for a person, not built.
    ``python`` is an interpreter of this machine for a rehearsal, ``python_home`` its folder where a container can be
    given it.
    ``parent`` is the run's process. ``group`` are the cells that share a compile, whose ``leader`` is built first,
    ``cache_key`` names their cache, and ``share`` is the memory in bytes that a compile should do with, everywhere.
    """

    root: str
    config: str
    key: str
    shared: str
    engine: str
    container: str
    executable: str | None = None
    found: dict[str, Any] | None = None
    image: str | None = None
    options: tuple[str, ...] = ()
    cores: int
    memory: int | None = None
    variables: dict[str, str]
    environment: dict[str, str] = field(repr=False)
    keep_failed: bool = False
    rebuild: bool = False
    from_step: str | None = None
    parent: int | None = None
    rehearsal: bool = False
    python: str | None = None
    python_home: str | None = None
    debug: str | None = None
    network: str = "granted"
    log: str
    group: str
    leader: bool = False
    cache_key: str
    share: int
    stall: float
    distdir: str | None = None
    mirror: str | None = None

    def write(self, file: Path) -> None:
        """Write the job into a file."""
        files.write_text(file, json.dumps(dataclasses.asdict(self)))

    @classmethod
    def read(cls, file: Path) -> CellJob:
        """Return the job that a file holds, and remove the file."""
        fields = json.loads(file.read_text())
        file.unlink()
        return cls(**{**fields, "options": tuple(fields["options"])})


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildJob:
    """What to build and where: ``extra`` goes into the packages' metadata.

    From ``from_step`` on, every step runs again; of those before it, what they left last is taken.
    ``debug`` names the output whose script is to be run by hand, by a pattern; nothing stands for the recipe's own.
    ``parent`` is the process that starts the build, where that can be seen: on the host.
    ``queue`` is where scripts are handed over that run without the network, None where all run here.
    ``python`` and ``image`` are a rehearsal's: an interpreter to use, and the image, None on the host.
    ``compile`` are variables for the compile step alone, which do not decide its result; after ``stall`` seconds
    without any sign of life it is told to stand still. ``taken`` are reports of packages that another cell has made,
    which lie in ``channel``. ``mirror`` is where archives of the sources are looked for first.
    """

    root: Path
    recipe: Path
    config: str
    folder: Path
    cache: Path
    result: Path
    extra: Mapping[str, str]
    keep_failed: bool
    from_step: str | None = None
    parent: int | None = None
    python: Path | None = None
    image: str | None = None
    debug: str | None = None
    compile: Mapping[str, str] = field(default_factory=dict)
    stall: float
    taken: Sequence[Mapping[str, Any]] = ()
    channel: Path
    queue: Path | None = None
    mirror: str | None = None
    network: bool = False

    @classmethod
    def read(cls, file: Path) -> BuildJob:
        """Return the job that a file holds."""
        fields = json.loads(file.read_text())
        names = ("root", "recipe", "folder", "cache", "result", "channel", "python", "queue")
        paths = {name: Path(fields[name]) for name in names if fields[name] is not None}
        return cls(**{**fields, **paths})

    def write(self, file: Path) -> None:
        """Write the job into a file."""
        fields = dataclasses.asdict(self)
        files.write_text(
            file, json.dumps({key: str(value) if isinstance(value, Path) else value for key, value in fields.items()})
        )
