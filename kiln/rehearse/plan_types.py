"""The plan of a config's rehearsal: what stands in for the packages of a conda channel, and the sources."""

from __future__ import annotations

from collections.abc import Mapping  # noqa: TC003 - for the reader of JSON values, which looks annotations up
from dataclasses import dataclass, field


@dataclass(frozen=True, slots=True, kw_only=True)
class LockedWheel:
    """One exact wheel: ``name`` is its normalized PyPI name, ``size`` counts bytes, 0 where unknown."""

    name: str
    version: str
    file: str
    size: int
    sha256: str
    pythons: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class StandIn:
    """A package made from this machine, in the place of the channel's package of the same name.

    ``programs`` are the machine's programs by their names in ``bin``, ``libraries`` its shared libraries by their names
    in ``lib``, ``activation`` the lines of its activation script. ``strong_exports`` are its run exports. ``origin`` is
    what it was made from; ``differs`` is set when that does not have the required version.
    """

    name: str
    version: str
    programs: Mapping[str, str] = field(default_factory=dict)
    libraries: Mapping[str, str] = field(default_factory=dict)
    activation: tuple[str, ...] = ()
    depends: tuple[str, ...] = ()
    strong_exports: tuple[str, ...] = ()
    origin: str = ""
    differs: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class UnavailableItem:
    """A source that cannot be found, or a requested project without a fitting wheel, with the reason."""

    name: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class SourceFile:
    """A source of the recipe by its hash: ``url`` has the file ``name``; ``origin`` describes where it is."""

    name: str
    sha256: str
    url: str
    origin: str
    size: int = 0


@dataclass(frozen=True, slots=True, kw_only=True)
class RehearsalPlan:
    """The contents of a config's rehearsal in place of a channel; ``python`` is empty when the config needs none.

    ``upstream`` is the wheel that replaces the compile, None for a rehearsal that compiles. ``dependencies`` are wheels
    that become packages. ``notes`` are for the user.
    """

    python: str
    cuda: str | None = None
    upstream: LockedWheel | None = None
    dependencies: tuple[LockedWheel, ...] = ()
    stand_ins: tuple[StandIn, ...] = ()
    sources: tuple[SourceFile, ...] = ()
    notes: tuple[str, ...] = ()

    @property
    def summary(self) -> tuple[tuple[str, str], ...]:
        """The contents by their origins: a title, and names with versions."""
        wheels = (f"{wheel.name} {wheel.version}" for wheel in self.dependencies)
        stand_ins = (f"{package.name} {package.version}" for package in self.stand_ins)
        parts = (
            ("python", self.python),
            ("compile", f"{self.upstream.file}, in its place" if self.upstream else ""),
            ("wheels", ", ".join(wheels)),
            ("this machine", ", ".join(stand_ins)),
            ("sources", ", ".join(f"{source.name} ({source.origin})" for source in self.sources)),
        )
        return tuple((title, text) for title, text in parts if text)

    @property
    def wheels(self) -> tuple[LockedWheel, ...]:
        """All wheels, upstream's first."""
        return (*([self.upstream] if self.upstream else []), *self.dependencies)
