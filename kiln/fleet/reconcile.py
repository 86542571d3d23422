"""Compare the wanted workers of a run with those that its provider lists: one rule for all faults of machines.

A worker that was lost, refused, half made or stopped, machines of an earlier process whose ledger is lost, and those of
strangers are all the same case: what exists is the truth, what is wanted decides.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from enum import Enum
from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping


@dataclass(frozen=True, slots=True, kw_only=True)
class ListedMachine:
    """A machine as a provider lists it; one that ``ended`` builds no more, but may still be charged for.

    ``expires`` is the end of its lifetime, in seconds since the epoch, 0 where that is unknown.
    """

    name: str
    owner: str
    id: str = ""
    type: str = ""
    ended: bool = False
    expires: float = 0.0

    @classmethod
    def from_row(cls, row: Mapping[str, Any]) -> ListedMachine:
        """Return a machine of the answer of `list.yml`."""
        name, ended = str(row["name"]), bool(row["ended"])
        texts = {key: str(row.get(key, "")) for key in ("owner", "id", "type")}
        return cls(name=name, ended=ended, expires=float(row.get("expires") or 0.0), **texts)


class MachineActionKind(str, Enum):
    """The step by which what exists becomes what is wanted."""

    KEEP = "keep"  # it is wanted, and there
    PREPARE = "prepare"  # a new machine has the name of a wanted one
    ADOPT = "adopt"  # nobody knows it any more, and it can be reached
    CREATE = "create"
    TERMINATE = "terminate"
    LEAVE = "leave"  # it is another's


@dataclass(frozen=True, slots=True, kw_only=True)
class MachineAction:
    """A step for a wanted worker, by its name, or for a ``machine`` that the provider lists."""

    step: MachineActionKind
    name: str
    reason: str = ""
    machine: ListedMachine | None = field(default=None, compare=False)


def reconcile_machines(
    workers: Mapping[str, str], existing: Iterable[ListedMachine], *, owner: str, adoptable: Iterable[str] = ()
) -> tuple[MachineAction, ...]:
    """Return the actions for all machines, then for the wanted workers that are missing.

    ``workers`` maps the names of workers to the provider's ids, empty where none is known. ``adoptable`` are the names
    of machines that are taken over though no worker of the run is known by them: those that answer to its key. Of two
    machines of a name, the one with the worker's id is kept.
    """
    actions: list[MachineAction] = []
    present: set[str] = set()
    adoptable = frozenset(adoptable)
    for machine in sorted(existing, key=lambda machine: machine.id != workers.get(machine.name)):
        step, reason = _action_kind_and_reason(machine, workers, owner=owner, adoptable=adoptable, present=present)
        actions.append(MachineAction(step=step, name=machine.name, reason=reason, machine=machine))
        if step in {MachineActionKind.KEEP, MachineActionKind.PREPARE, MachineActionKind.ADOPT}:
            present.add(machine.name)
    missing = [name for name in workers if name not in present]
    return (
        *actions,
        *(MachineAction(step=MachineActionKind.CREATE, name=name, reason="it does not exist") for name in missing),
    )


def _action_kind_and_reason(
    machine: ListedMachine, workers: Mapping[str, str], *, owner: str, adoptable: frozenset[str], present: set[str]
) -> tuple[MachineActionKind, str]:
    name = machine.name
    if machine.owner not in {"", owner}:
        return MachineActionKind.LEAVE, f"it is of the owner {machine.owner}"
    if machine.ended:
        return MachineActionKind.TERMINATE, "it has ended"
    if name in present:
        return MachineActionKind.TERMINATE, "it exists twice"
    if name in workers:
        same = workers[name] in {"", machine.id}
        return (MachineActionKind.KEEP, "") if same else (MachineActionKind.PREPARE, "it is a new machine")
    if name in adoptable:
        return MachineActionKind.ADOPT, "the ledger does not have it"
    return MachineActionKind.TERMINATE, "it is not wanted"
