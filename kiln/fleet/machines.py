"""The machines of a fleet run: asked for, made ready, given work, lost, given back; one of them may hold a cache."""

from __future__ import annotations

from typing import TYPE_CHECKING

from kiln.errors import CredentialsRefused, MachinesLost, MachinesRefused
from kiln.fleet.orders import Attend, Bring, Collect, Look, Prepare, Remove, Renew
from kiln.model.fleet import JobState, MachineState

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.fleet.builds import Builds
    from kiln.fleet.orders import Refused
    from kiln.fleet.state import State
    from kiln.fleet.yard import Station


class Machines:
    """What becomes of machines.

    There are to be ``most`` of them that build; ``brought`` were asked for so far, ``died`` were lost. ``cache`` is
    where they find what others have compiled: None until that is known, empty when there is no such place.
    """

    def __init__(self, run: State, builds: Builds) -> None:
        self.run = run
        self.builds = builds
        self.most = run.mission.most
        self.brought = 0
        self.died = 0
        self.cache: str | None = None if run.mission.cache is not None else ""

    def up(self, station: Station, identity: str) -> None:
        """Go on with a machine that is there; one that was made anew under its old name has to be prepared.

        A cache always is: where it runs already nothing changes, and it is told where it can be reached.
        """
        if station.known and identity != station.machine.id:
            station.known, station.begun = False, False
            for config in tuple(station.bring):
                self.builds.again(self.run.works[config], station, "the machine was gone")
            station.bring.clear()
        self.run.yard.keep(station, state=MachineState.PREPARING, id=identity, up=self.run.hands.now())
        station.renewed = self.run.hands.now()
        looks = station.known and not station.is_cache
        self.run.order(Look(machine=station.name) if looks else Prepare(machine=station.name))

    def refused(self, station: Station, event: Refused) -> None:
        """Take note of a machine that the provider does not give."""
        self.run.yard.keep(station, state=MachineState.REFUSED, reason=event.reason, gone=self.run.hands.now())
        self.builds.release(station, event.reason)
        if station.is_cache:
            self.without_cache()
            return
        self.most -= 1
        if event.credentials:
            hint = "docs/how-to/fleet.md says what the provider needs, and where it is read from"
            self.run.stop = CredentialsRefused(
                "the provider does not accept the credentials", why=event.reason, hint=hint
            )
        elif not self.run.yard.builders:
            self.run.stop = MachinesRefused(
                "the provider gives none of the machines that were asked for",
                why=event.reason,
                hint="another --type, a higher quota, or later",
            )

    def ready(self, station: Station, cache: str) -> None:
        """Let a machine build, or a cache be used."""
        self.run.yard.keep(station, state=MachineState.READY)
        if station.is_cache:
            self.cache = cache
            self.run.order(Attend(machine=station.name))

    def looked(self, station: Station, jobs: Mapping[str, str]) -> None:
        """Go on with what a machine of an earlier process of the run does, or has done."""
        self.run.yard.keep(station, state=MachineState.READY)
        for config in station.bring:
            self.run.order(Collect(machine=station.name, config=config))
        for job in self.run.yard.latest_jobs():
            if job.machine == station.name and job.state is JobState.HOME and job.config in self.run.cells:
                self.run.queue.has(station.name, self.run.cells[job.config].group)
        if station.work is None or not station.begun:
            return
        if jobs.get(station.work.config) in {"running", "ended"}:
            self.builds.watch(station, station.work.config)
        else:
            self.run.yard.keep_job(station.work.config, state=JobState.LOST, reason="never begun, or lost")
            station.begun = False

    def lose(self, station: Station, reason: str) -> None:
        """Take a machine for dead: its cell is given to another, and what may be left of it removed."""
        self.run.yard.keep(station, state=MachineState.LOST, reason=reason)
        self.run.order(Remove(machine=station.name))
        unsent = tuple(station.bring)
        station.bring.clear()
        station.again.clear()
        self.builds.release(station, reason)
        for config in unsent:
            self.builds.again(self.run.works[config], station, reason)
        if station.is_cache:
            self.without_cache()
            return
        self.died += 1
        if self.died > self.run.mission.replacements:
            self.most = min(self.most, len(self.run.yard.builders))
        if not self.most and self.run.queue:
            what = f"{self.died} machines died, and no more are asked for"
            self.run.stop = MachinesLost(what, why=reason, hint="--replacements N allows for more")

    def without_cache(self) -> None:
        """Go on without the cache that all machines use."""
        self.cache = ""
        self.run.queue.lose_cache()

    def tend_to(self, station: Station, now: float) -> None:
        """Renew a machine's lease, and give it something to do, or back."""
        self._renew(station, now)
        if station.machine.state is not MachineState.READY or station.begun:
            return
        if station.is_cache:
            if self.run.mission.cache is None:  # an earlier process of the run wanted it
                self._give_back(station)
            return
        if station.work is None and not station.retired and (work := self.run.queue.next(station.name, now)):
            station.work = work
            self.run.queue.begin(station.name, work, now)
        if station.work is not None:
            if self.cache is not None:  # it is there, or there will be none
                self.builds.start(station, station.work, now, cache=self.cache)
        elif not station.bring and (station.retired or not (self.run.queue or self._nearly_over())):
            self._give_back(station)

    def _give_back(self, station: Station) -> None:
        self.run.yard.keep(station, state=MachineState.LEAVING)
        self.run.queue.leave(station.name)
        self.run.order(Remove(machine=station.name))

    def _nearly_over(self) -> bool:
        """Whether all that is left to do comes home now: the tear-down, soon, gives back all machines at once."""
        return not (self.run.queue or self.run.waiting or any(station.work for station in self.run.yard))

    def try_again(self, station: Station, now: float) -> None:
        """Order anew what failed before and is due again."""
        for config in station.due(now):
            name = station.name
            self.run.order(Collect(machine=name, config=config) if config else Remove(machine=name))

    def bring(self, now: float) -> None:
        """Ask for machines for what waits and nobody who is there can take."""
        names: list[str] = []
        name, cache = self.run.mission.machine_name(None), self.run.mission.cache
        if cache is not None and self.cache is None and name not in self.run.yard.stations:
            names.append(self.run.yard.ask(name, kind=cache.type, hourly=cache.hourly, now=now).name)
        while len(self.run.yard.builders) < self.most:
            name = self.run.mission.machine_name(self.brought + 1)
            if self.run.queue.next(name, now + self.run.mission.up) is None:
                break
            self.brought += 1
            kind = self.run.mission.flavour.type
            station = self.run.yard.ask(name, kind=kind, hourly=self.run.mission.hourly, now=now)
            self.builds.reserve(station, now)
            names.append(name)
        self.run.order(Bring(machines=tuple(names)))

    def _renew(self, station: Station, now: float) -> None:
        if station.machine.state is not MachineState.ASKED and now >= station.renewed + self.run.mission.lease / 4:
            station.renewed = now
            self.run.order(Renew(machine=station.name, seconds=self.run.mission.lease))
