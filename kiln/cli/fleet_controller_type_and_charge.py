"""The machine type of the controller of a detached run, and what it is charged for: by its own run, too."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.fleet.detached.attach_key import RunKey
    from kiln.model.fleet_run import MachineType
    from kiln.model.run import ControllerCharge

CONTROLLER_TYPE = "controller"
# The machines that a controller gets where no type is named: it builds nothing, and packages wait on its disk (GB). The
# third figure is the step of billing in seconds, as of the workers in ansible/group_vars/all/machine_types.yml.
FLAVORS = {"aws": ("t3.medium", 60, 1), "openstack": ("c3-4", 50, 3600)}
CHARGE = "KILN_FLEET_CONTROLLER"  # the variable by which a controller knows its own price
KEEP = "72h"  # for which packages wait


def controller_type_row(provider: str) -> dict[str, Any]:
    """Return the row of the playbooks' table of machine types for a controller."""
    flavor, disk, billed = FLAVORS[provider]
    size = {"cores": 2, "memory": 4, "disk": disk, "gpus": 0, "gpu": "", "billed": billed}
    return {"provider": provider, "type": CONTROLLER_TYPE, "flavor": flavor, **size}


def controller_price_variable(kind: MachineType, since: float) -> dict[str, str]:
    """Return the variable that tells a controller its price from a time on; none where it is unknown, or nothing."""
    hourly = kind.hourly_price(spot=False)
    if not (kind.is_priced and hourly):
        return {}
    return {CHARGE: " ".join((repr(hourly), repr(kind.billed), repr(since), kind.currency, kind.name))}


def own_controller_charge(environment: Mapping[str, str]) -> ControllerCharge | None:
    """Return the charge for the controller on which this process runs; None elsewhere."""
    from kiln.model.run import ControllerCharge

    words = environment.get(CHARGE, "").split()
    if len(words) != 5:
        return None
    hourly, billed, since = map(float, words[:3])
    return ControllerCharge(hourly=hourly, billed=billed, since=since, currency=words[3], name=words[4])


def controller_end_text(key: RunKey, *, is_alive: bool, is_removed: bool) -> str:
    """Return how a controller has ended; what it has besides its machine ``is_removed`` only where the run began."""
    state = "still answers, and ends by its lease" if is_alive else "has ended"
    text = f"{key.run}: its controller {state}"
    if is_removed or key.provider not in FLAVORS:
        return text
    left = f"its security group remains at {key.provider}, and costs nothing"
    return f"{text}\n{key.run}: {left}; kiln fleet down {key.run}, where the run began, removes it"
