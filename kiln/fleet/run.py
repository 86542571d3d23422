"""A fleet run on real machines, and the ways to give back what one has left."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln import files
from kiln.errors import AlreadyRunning, CredentialsRefused, MachinesLeft, UsageError
from kiln.fleet import orphans
from kiln.fleet.crew import CREDENTIALS, RESERVE, Crew
from kiln.fleet.playbooks import Playbooks
from kiln.fleet.supervisor import Supervisor

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence

    from kiln.errors import KilnError
    from kiln.fleet.mission import Mission
    from kiln.fleet.playbooks import Site
    from kiln.ledger.fleet import FleetLedger
    from kiln.model.artifact import PackageReport
    from kiln.model.fleet import FleetRun
    from kiln.model.run import MatrixReport
    from kiln.model.watch import Watcher


def execute(
    mission: Mission,
    site: Site,
    *,
    ledger: FleetLedger,
    watcher: Watcher,
    keep: Callable[[str, Sequence[PackageReport]], tuple[PackageReport, ...]],
) -> tuple[MatrixReport, Mapping[str, KilnError]]:
    """Build a mission's cells; returns what became of every cell, and why those failed that did.

    What a killed process of the same run left running on this machine is ended first. Raises what
    `Supervisor.execute` raises.
    """
    site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    orphans.end(site.folder)
    files.reserve(site.reserve, RESERVE)
    supervisor = Supervisor(mission, hands=Crew(site, keep=keep), book=ledger, watcher=watcher)
    return supervisor.execute(), supervisor.errors


def unfinished(runs: Sequence[FleetRun], *, provider: str, key: str) -> FleetRun | None:
    """Return the run that a new one has to go on with, None when there is none.

    Raises:
        AlreadyRunning: when it is under way in another process.
        UsageError: when it is of another provider, recipe or way of building: its machines cannot be used.
    """
    open_runs = [run for run in runs if run.finished is None]
    if not open_runs:
        return None
    run = open_runs[0]
    if run.lives:
        raise AlreadyRunning(f"the fleet run {run.id} is under way", hint="kiln fleet status")
    if (run.provider, run.key) != (provider, key):
        why = "it has another provider" if run.provider != provider else "it builds another recipe, or in another way"
        raise UsageError(
            f"the fleet run {run.id} was not ended, and cannot be gone on with",
            why=why,
            hint=f"kiln fleet down {run.id} gives its machines back, then run this again",
        )
    return run


def down(site: Site, run: str) -> None:
    """Give back all that a run has, and end what it left running on this machine.

    Raises:
        MachinesLeft: when something may be left.
        CredentialsRefused: when the provider does not know who asks.
    """
    site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    playbooks = Playbooks(site)
    playbooks.stop()
    files.remove(site.reserve)
    played = playbooks.play("down.yml", last=True)
    if not played.ok:
        raise _left(f"machines of the fleet run {run} may be left running", played.reason("localhost"))


def sweep(site: Site, *, everything: bool) -> None:
    """Give back the machines of all runs that have outlived their end, or with ``everything`` those of all runs.

    Raises:
        MachinesLeft: when something may be left.
        CredentialsRefused: when the provider does not know who asks.
    """
    _play(site, "sweep.yml", "machines of earlier runs may be left running", kiln_sweep_all=everything)


def found(site: Site) -> str:
    """Return what the provider says that it has of all runs, as JSON.

    Raises:
        MachinesLeft: when it does not say.
        CredentialsRefused: when it does not know who asks.
    """
    _play(site, "list.yml", "nobody knows what machines there are", kiln_everywhere=True)
    return (site.folder / "found.json").read_text(encoding="utf-8")


def _play(site: Site, name: str, otherwise: str, **variables: bool) -> None:
    site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    played = Playbooks(site).play(name, variables=variables)
    if not played.ok:
        raise _left(otherwise, played.reason("localhost"))


def _left(what: str, reason: str) -> KilnError:
    if CREDENTIALS.search(reason):
        return CredentialsRefused("the provider does not accept the credentials", why=reason)
    return MachinesLeft(what, why=reason, hint="the same command again, or the provider's own console")
