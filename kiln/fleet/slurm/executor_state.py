"""The session of an executor on Slurm: everything that its threads share."""

from __future__ import annotations

import threading
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.fleet.executor_shared_state import EventSession
from kiln.fleet.slurm.client import SlurmClient, program_environment

if TYPE_CHECKING:
    from concurrent.futures import Future
    from pathlib import Path

    from kiln.fleet.slurm.site import SlurmSite

QUERIES = 3  # of the states of files for one of squeue, which burdens Slurm's controller


@dataclass(slots=True, kw_only=True)
class SlurmSession(EventSession):
    """The state of an executor on Slurm.

    ``project`` is kiln's folder on the shared filesystem, once it is there. ``submitted`` has the number of each
    config's latest job, as soon as it is known; ``reasons`` say why configs failed without a report, ``ended`` are
    those whose end was reported. ``submitting`` is held while a job is submitted, so that the tear-down misses none.
    """

    site: SlurmSite
    client: SlurmClient
    project: Path | None = None
    submitted: dict[str, Future[str]] = field(default_factory=dict)
    reasons: dict[str, str] = field(default_factory=dict)
    ended: set[str] = field(default_factory=set)
    submitting: threading.Lock = field(default_factory=threading.Lock)

    @classmethod
    def of(cls, site: SlurmSite) -> SlurmSession:
        """Return a new session of a site."""
        return cls(site=site, client=SlurmClient(program_environment(site.environment), interval=QUERIES * site.poll))
