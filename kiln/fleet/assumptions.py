"""The assumptions of a fleet's plan: durations that the ledger does not know yet."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from kiln import plain_yaml_loading
from kiln.scheduling.estimates import CompileAssumptions
from kiln.scheduling.shared_compile_pool_simulation import PoolCores

ASSUMED = Path(__file__).with_name("assumed.yml")


@dataclass(frozen=True, slots=True, kw_only=True)
class Assumptions(CompileAssumptions):
    """The assumptions of a plan; assumed.yml has the meaning and the source of each row."""

    transfer: float
    startup: float
    collect: float
    packages: float
    teardown: float
    gpu_test: float

    @classmethod
    def read(cls) -> Assumptions:
        """Read kiln's own table."""
        rows = plain_yaml_loading.load(ASSUMED.read_text(encoding="utf-8"))
        return cls(**{row["name"]: float(row["value"]) for row in rows})

    def pool_cores_with_assumptions(self, cores: float) -> PoolCores:
        """Return a pool of so many cores."""
        return PoolCores(cores=cores, parallel=self.parallel, transfer=self.transfer)
