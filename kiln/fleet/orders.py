"""What the supervisor has done, and what it hears of it: all that stands between deciding and doing.

An order is begun and returns at once; events come in their own time. So whatever carries orders out, Ansible on real
machines or a simulation under a clock of its own, the same supervisor decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Protocol, TypeAlias

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.artifact import PackageReport, StepReport


@dataclass(frozen=True, slots=True, kw_only=True)
class Bring:
    """Make machines, or find them again when they are there: `Up` or `Refused` for each."""

    machines: tuple[str, ...]


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepare:
    """Make a machine ready to build: `Prepared` or `Failed`."""

    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Attend:
    """See whether the cache still runs that a machine holds: `Heard` and `Silent`, again and again."""

    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Look:
    """See what a machine builds and has built: `Looked` or `Failed`."""

    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Start:
    """Start a cell's build, which then goes on by itself: `Began` or `Failed`; ``cache`` is a URL, or empty."""

    machine: str
    config: str
    cache: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Watch:
    """Follow a build: `Heard`, `Silent` and `Line` again and again, and `Ended` in the end; lines go to ``log`` too."""

    machine: str
    config: str
    log: Path | None = None


@dataclass(frozen=True, slots=True, kw_only=True)
class Collect:
    """Bring a cell's packages and log home and check them: `Home` or `NotHome`."""

    machine: str
    config: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Renew:
    """Let a machine live for so many seconds more; nothing is heard of it."""

    machine: str
    seconds: float


@dataclass(frozen=True, slots=True, kw_only=True)
class Remove:
    """Give a machine back: `Removed`, or `Failed`."""

    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Down:
    """Stop whatever else is under way, and give back all that the run has: `AllGone` or `Left`."""


Order: TypeAlias = Bring | Prepare | Attend | Look | Start | Watch | Collect | Renew | Remove | Down


@dataclass(frozen=True, slots=True, kw_only=True)
class Up:
    """A machine is there."""

    machine: str
    id: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Refused:
    """A provider gives no such machine; ``credentials`` when it does not even know who asks."""

    machine: str
    reason: str
    credentials: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class Prepared:
    """A machine can build; ``cache`` is where others find the cache that it holds, if it is there for that."""

    machine: str
    cache: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Looked:
    """What a machine knows of cells: a state each, ``running``, ``ended`` or ``lost``."""

    machine: str
    jobs: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, kw_only=True)
class Failed:
    """An order to a machine could not be carried out."""

    machine: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Began:
    """A cell's build runs."""

    machine: str
    config: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Heard:
    """A machine has answered."""

    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Silent:
    """A machine does not answer."""

    machine: str
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Line:
    """A line of what a build says, or of what is done to a machine for a cell; empty when a step begins."""

    config: str
    step: str
    text: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Ended:
    """A build is over: ``exit_code`` is kiln's own there, None when nobody knows how it ended."""

    machine: str
    config: str
    exit_code: int | None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class Home:
    """What a build left is here and checked; ``log`` is its own, ``reason`` says why a cell failed that did."""

    machine: str
    config: str
    packages: tuple[PackageReport, ...] = ()
    steps: tuple[StepReport, ...] = ()
    peak_memory: int | None = None
    log: Path | None = None
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class NotHome:
    """What a build left could not be brought home; ``corrupt`` when it came, but is not what was sent."""

    machine: str
    config: str
    reason: str
    corrupt: bool = False


@dataclass(frozen=True, slots=True, kw_only=True)
class NoRoom:
    """An order was not carried out because the disk of this computer is full; no machine is to blame."""

    order: Order
    reason: str


@dataclass(frozen=True, slots=True, kw_only=True)
class Removed:
    """A machine is gone."""

    machine: str


@dataclass(frozen=True, slots=True, kw_only=True)
class AllGone:
    """Nothing is left of the run."""


@dataclass(frozen=True, slots=True, kw_only=True)
class Left:
    """Something may be left of the run."""

    reason: str


Event: TypeAlias = (
    Up
    | Refused
    | Prepared
    | Looked
    | Failed
    | Began
    | Heard
    | Silent
    | Line
    | Ended
    | Home
    | NotHome
    | NoRoom
    | Removed
    | AllGone
    | Left
)


class Hands(Protocol):
    """Carries orders out, and keeps the time."""

    def now(self) -> float:
        """Return the time in seconds since the epoch."""

    def begin(self, order: Order) -> None:
        """Begin to carry out an order, and return at once."""

    def hear(self, until: float) -> Event | None:
        """Return the next event, or None when it is ``until`` and there was none."""
