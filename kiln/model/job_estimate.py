"""The estimated duration of a config's build, and the machine that it needs."""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from kiln.model.fleet_run import MachineType


@dataclass(frozen=True, slots=True, kw_only=True)
class JobSize:
    """The needs of a config: cores, GB of memory and of disk, GPUs; and the seconds that it may take."""

    cores: int = 0
    memory: float = 0.0
    disk: float = 0.0
    gpus: int = 0
    time_limit: float | None = None

    def fits(self, machine_type: MachineType) -> bool:
        """Return whether a machine type is large enough; a size that is unknown is."""
        sizes = ((self.cores, machine_type.cores), (self.memory, machine_type.memory), (self.disk, machine_type.disk))
        return all(not offer or need <= offer for need, offer in sizes) and self.gpus <= machine_type.gpus

    def __str__(self) -> str:
        cores, gpus = "core" if self.cores == 1 else "cores", "GPU" if self.gpus == 1 else "GPUs"
        parts = [(self.cores, cores), (self.memory, "GB of memory"), (self.disk, "GB of disk"), (self.gpus, gpus)]
        return ", ".join(f"{value:g} {unit}" for value, unit in parts if value) or "nothing"


@dataclass(frozen=True, slots=True, kw_only=True)
class JobEstimate:
    """A config to build: ``cold`` are the seconds with its group's compile, ``warm`` those with the compile cached.

    Both are 0 until they are estimated. ``key`` is a hash over the inputs of its packages, ``source`` the origin of the
    figures, ``size`` what it needs. ``type`` is the machine type that builds it, where a run has several.
    """

    config: str
    group: str
    cold: float = 0.0
    warm: float = 0.0
    source: str = ""
    key: str = ""
    size: JobSize = field(default_factory=JobSize)
    type: str = ""
