"""How long cells should take: from what the ledger remembers of them, or else from what is assumed and says so."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import yaml

from kiln.errors import MalformedYaml, UsageError, nearest
from kiln.fleet.plan import Overheads
from kiln.model.fleet import Flavour, Work

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence

    from kiln.ledger.fleet import Took

ASSUMED = Path(__file__).with_name("assumed.yml")
HISTORY, ALIKE, DEFAULT = "history", "cells like it", "assumed"


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumed:
    """What a plan takes for granted; see assumed.yml for what each row means and where it comes from."""

    compile: float
    cores: float
    follower: float
    parallel: float
    up: float
    home: float
    down: float

    @classmethod
    def read(cls) -> Assumed:
        """Read kiln's own table."""
        rows = yaml.safe_load(ASSUMED.read_text(encoding="utf-8"))
        return cls(**{row["name"]: float(row["value"]) for row in rows})

    @property
    def overheads(self) -> Overheads:
        """What a machine takes besides building."""
        return Overheads(up=self.up, home=self.home, down=self.down)

    def slower(self, cores: float, reference: float) -> float:
        """Return how many times as long a compile takes on ``cores`` as on ``reference`` cores (Amdahl's law).

        Nobody knows how many cores machines have that exist already: with 0 of them it takes as long.
        """
        return 1.0 if 0 in {cores, reference} else self._time(cores) / self._time(reference)

    def _time(self, cores: float) -> float:
        return 1.0 - self.parallel + self.parallel / cores


@dataclass(frozen=True, slots=True, kw_only=True)
class Wanted:
    """A cell that is to be built: ``group`` is what shares its compile, ``key`` a hash over all it is made of."""

    config: str
    group: str
    key: str = ""


def works(wanted: Sequence[Wanted], history: Iterable[Took], *, cores: float, assumed: Assumed) -> tuple[Work, ...]:
    """Return cells with the seconds they should take on ``cores`` cores.

    A cell is taken to need what it took when it was last built, else what its group's cells took on average, else what
    all took, else what is assumed; with and without the compile, each by itself.
    """
    full, quick = ({}, {})  # type: tuple[dict[str, float], dict[str, float]]
    for took in history:
        (full if took.leader else quick)[took.config] = took.seconds * assumed.slower(cores, took.cores)
    default = assumed.compile * assumed.slower(cores, assumed.cores)
    groups = {each.config: each.group for each in wanted}
    return tuple(_work(each, full, quick, groups, default, assumed.follower) for each in wanted)


def _work(
    wanted: Wanted,
    full: Mapping[str, float],
    quick: Mapping[str, float],
    groups: Mapping[str, str],
    default: float,
    follower: float,
) -> Work:
    seconds, known = _expected(wanted, full, groups)
    after, after_known = _expected(wanted, quick, groups)
    if seconds is None:
        seconds, known = (default, DEFAULT) if after is None else (max(default, after), after_known)
    return Work(
        config=wanted.config,
        group=wanted.group,
        full=seconds,
        follower=min(seconds, seconds * follower if after is None else after),
        known=known,
        key=wanted.key,
    )


def _expected(wanted: Wanted, known: Mapping[str, float], groups: Mapping[str, str]) -> tuple[float | None, str]:
    if wanted.config in known:
        return known[wanted.config], HISTORY
    alike = [seconds for config, seconds in known.items() if groups.get(config) == wanted.group]
    some = alike or list(known.values())
    return (sum(some) / len(some), ALIKE) if some else (None, "")


def flavours(path: Path) -> tuple[Flavour, ...]:
    """Read the table of machines and prices, a list of rows under ``kiln_flavours``.

    Raises:
        MalformedYaml: when a row lacks something, or is not what it should be.
    """
    try:
        rows = yaml.safe_load(path.read_text(encoding="utf-8"))["kiln_flavours"]
        return tuple(_flavour(row) for row in rows)
    except (OSError, KeyError, TypeError, ValueError, yaml.YAMLError) as error:
        raise MalformedYaml(f"{path} is no table of machines", why=f"{type(error).__name__}: {error}") from error


def _flavour(row: Mapping[str, Any]) -> Flavour:
    spot = row.get("spot_hourly")
    return Flavour(
        provider=str(row["provider"]),
        type=str(row["type"]),
        name=str(row["flavour"]),
        cores=int(row["cores"]),
        memory=float(row["memory"]),
        disk=float(row["disk"]),
        hourly=float(row["hourly"]),
        spot_hourly=None if spot is None else float(spot),
        currency=str(row["currency"]),
        billed=float(row.get("billed", 1)),
        region=str(row.get("region", "")),
        source=str(row["source"]),
        date=str(row["date"]),
    )


def offered(table: Sequence[Flavour], *, provider: str, types: Sequence[str]) -> tuple[Flavour, ...]:
    """Return a provider's machines of the types that were asked for.

    Raises:
        UsageError: when there is none such; the message names those that there are.
    """
    there = {flavour.type: flavour for flavour in table if flavour.provider == provider}
    if not there:
        known = sorted({flavour.provider for flavour in table})
        hint = nearest(provider, known) or f"one of {', '.join(known)}"
        raise UsageError(f"there is no provider {provider!r}", hint=hint)
    for wanted in types:
        if wanted not in there:
            raise UsageError(f"{provider} has no machine of type {wanted!r}", hint=f"one of {', '.join(sorted(there))}")
    return tuple(there[wanted] for wanted in types)
