"""The plan of the tests of built packages on a worker: its machine type, the time and the cost."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln.fleet.plan import worker_cost

if TYPE_CHECKING:
    from collections.abc import Sequence

    from kiln.fleet.assumptions import Assumptions
    from kiln.model.fleet import MachineType


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTestPlan:
    """The tests of configs, one after the other, on one worker: from its request to its end."""

    configs: tuple[str, ...]
    machine_type: MachineType
    spot: bool
    seconds: float
    cost: float

    @classmethod
    def for_configs(
        cls, configs: Sequence[str], machine_type: MachineType, *, spot: bool, assumptions: Assumptions
    ) -> WorkerTestPlan:
        """Return the plan, if the tests of each config take the assumed time."""
        seconds = assumptions.startup + len(configs) * assumptions.gpu_test + assumptions.teardown
        hourly = machine_type.price(spot=spot)
        cost = worker_cost(hourly, seconds, billed=machine_type.billed)
        return cls(configs=tuple(configs), machine_type=machine_type, spot=spot, seconds=seconds, cost=cost)
