"""The configuration of a fleet run: the configs to build, the workers, their leases, and the limits."""

from __future__ import annotations

import re
import secrets
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.fleet.model import LEASE, LIFETIME, FleetRun, MachineType, Offer, WorkerState

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kiln.fleet.options import FleetOptions
    from kiln.fleet.plan.plan import Assumptions, WorkerArrangement, WorkerTestPlan
    from kiln.state.results import ConfigRun, JobEstimate


FREE = ("local", "static", "slurm")
ENDS_ITSELF = ("aws",)  # a worker that shuts down is terminated; elsewhere it has to delete itself, or be deleted
_PLAIN = re.compile(r"[A-Za-z0-9_./:=@+-]+")


def greatest_cost_text(way: WorkerArrangement) -> str:
    """Describe the greatest cost of an arrangement after the controller is gone for good."""
    machine_type, hours = way.machine_type, LEASE / 3600
    total = sum(kind.hourly_price(spot=spot) for kind, spot in way.machines) * hours
    most = f"{total:.2f} {machine_type.currency} at most" if way.is_priced else "as much as they do in that time"
    if machine_type.provider in FREE:
        return "nothing is charged for these workers"
    if machine_type.provider in ENDS_ITSELF:
        return (
            f"should this computer never return, workers terminate themselves within {hours:.1f} h, which costs {most}"
        )
    return (
        f"should this computer never return, workers delete themselves within {hours:.1f} h, which costs {most}"
        f", if the cloud grants each a credential for that (the run says if it does"
        f" not); else {machine_type.provider} charges for them until they are deleted, and only a sweep from another"
        f" computer bounds that (kiln fleet sweep --provider {machine_type.provider} --print-timer)"
    )


def sweep_timer_script(
    provider: str, argv: Sequence[str], *, folder: str, environment: Mapping[str, str], every: float
) -> str:
    """Return a shell script that makes systemd sweep a provider every so many seconds, for the user who runs it.

    ``environment`` must hold no secret; these are read from a file of the user.
    """
    name = f"kiln-sweep-{provider}"
    settings = "".join(
        f"Environment={_quote_for_systemd(f'{key}={text}')}\n" for key, text in sorted(environment.items())
    )
    return f"""#!/bin/sh
# Every {every / 60:.0f} minutes: delete {provider}'s workers that have ended or expired, of all runs.
# Run this on a computer that is always on. Secrets go into ~/.config/kiln/{name}.env, as NAME=VALUE.
set -eu
units=${{XDG_CONFIG_HOME:-$HOME/.config}}/systemd/user
mkdir -p "$units"
cat >"$units/{name}.service" <<'END'
[Unit]
Description=Delete stale workers of kiln's fleet at {provider}

[Service]
Type=oneshot
WorkingDirectory={folder.replace("%", "%%")}
EnvironmentFile=-%h/.config/kiln/{name}.env
{settings}ExecStart={" ".join(_quote_for_systemd(word).replace("$", "$$") for word in argv)}
END
cat >"$units/{name}.timer" <<'END'
[Unit]
Description=Delete stale workers of kiln's fleet at {provider}, periodically

[Timer]
OnActiveSec=0
OnUnitInactiveSec={every:.0f}

[Install]
WantedBy=timers.target
END
systemctl --user daemon-reload
systemctl --user enable --now {name}.timer
loginctl enable-linger
"""


def _quote_for_systemd(text: str) -> str:
    text = text.replace("%", "%%")
    return text if _PLAIN.fullmatch(text) else '"' + text.replace("\\", "\\\\").replace('"', '\\"') + '"'


CACHE = "cache"  # the end of the name of the worker that holds the shared cache
SURPLUS = re.compile(r".+-surplus-\d+")  # the names of machines that are no worker's
OVER = frozenset({WorkerState.TERMINATING, WorkerState.LOST, WorkerState.REFUSED, WorkerState.TERMINATED})


def cache_worker_type(run: FleetRun) -> str | None:
    """Return the type of the worker that holds a run's cache; None without one."""
    caches = (worker for worker in run.workers if worker.name.endswith(CACHE) and worker.state not in OVER)
    return next((worker.type for worker in caches), None)


@dataclass(frozen=True, slots=True, kw_only=True)
class FleetRunConfig:
    """The configuration of a fleet run, of builds or of tests, by its ``options`` and ``assumptions``.

    ``max_workers_by_type`` run at a time, the most of the first type. Each config is tried on up to ``attempts``
    workers, or unless the options say how many until its losses are more than those of the others explain; up to
    ``replacements`` workers are provisioned for lost ones, and as many spot workers for those that the provider took
    back after a notice. ``wait_for_cold`` makes warm builds wait for a cold build of their group; with ``is_scheduled``
    they do so in the provider's own queue. ``key`` is a hash over the recipe and the options of the builds. Workers are
    requested by the first of the ``type_offers`` of their machine type that is not refused. A worker ends ``lifetime``
    after its request at the latest. ``origin`` has the commit, the addresses and the workflow of `MatrixReport`.
    ``cached_configs`` need no building, ``previous_run`` is the record of an earlier process of the same run, ``logs``
    the folder of the configs' logs.

    The planned ``tests`` follow the run: its limits and its cost have a place for them. The names of the workers begin
    with ``prefix``, after that of the run.
    """

    id: str
    command: str
    estimates: tuple[JobEstimate, ...]
    max_workers_by_type: Mapping[MachineType, int]
    type_offers: Mapping[MachineType, tuple[Offer, ...]]
    options: FleetOptions
    assumptions: Assumptions
    attempts: int
    replacements: int
    cache: MachineType | None = None
    wait_for_cold: bool = True
    is_scheduled: bool = False
    key: str = ""
    origin: Mapping[str, str] = field(default_factory=dict)
    lifetime: float = LIFETIME
    cached_configs: tuple[ConfigRun, ...] = ()
    previous_run: FleetRun | None = None
    logs: Path | None = None
    tests: WorkerTestPlan | None = None
    prefix: str = ""

    @property
    def machine_type(self) -> MachineType:
        """The machine type of most workers."""
        return next(iter(self.max_workers_by_type))

    @property
    def max_workers(self) -> int:
        """The largest number of workers at a time."""
        return sum(self.max_workers_by_type.values())

    @property
    def all_offers(self) -> list[Offer]:
        """The offers by which workers of any planned machine type are requested."""
        return [offer for kind in self.max_workers_by_type for offer in self.type_offers[kind]]

    def planned_type_replaced_by(self, machine_type: str) -> str:
        """Return the planned machine type whose place a worker of another type, a fall-back, takes.

        One of an earlier process of the run, whose type or fall-back is not planned any more, gets no more configs: it
        may be too small for those of the others.
        """
        planned = [kind.type for kind in self.max_workers_by_type]
        others = (
            kind.type
            for kind in self.max_workers_by_type
            if any(o.machine_type.type == machine_type for o in self.type_offers[kind])
        )
        known = self.previous_run.machine_types if self.previous_run else ()
        unknown = planned[0] if len(known) < 2 and machine_type not in known else machine_type
        return machine_type if machine_type in planned else next(others, unknown)

    @property
    def currency(self) -> str:
        """The currency of the run's cost; empty when a price is unknown, and so the cost."""
        tests = None if self.tests is None else self.tests.machine_type
        kinds = (*self.max_workers_by_type, *(kind for kind in (self.cache, tests) if kind is not None))
        return self.machine_type.currency if all(kind.is_priced for kind in kinds) else ""

    def worker_name(self, number: int | None) -> str:
        """Return the name of a worker; without a number, that of the cache's."""
        return f"kiln-{self.id}-{CACHE if number is None else f'{self.prefix}{number}'}"

    def build_log_path(self, config: str, attempt: int) -> Path | None:
        """Return the path of the log of a config's build."""
        return None if self.logs is None else self.logs / f"{config}.{attempt}.log"


def run_id(options: FleetOptions, previous: FleetRun | None) -> str:
    """Return the name of a run: of the one that is resumed, the one that a controller was given, or a random one."""
    return previous.id if previous is not None else options.own_run or secrets.token_hex(4)
