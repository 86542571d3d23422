"""The provider's list and the wanted workers give the actions, whatever the fault was."""

from __future__ import annotations

import pytest

from kiln.fleet.protocol import ListedMachine, MachineAction, MachineActionKind, reconcile_machines


def machine(name: str, *, owner: str = "r1", identity: str = "i-1", ended: bool = False) -> ListedMachine:
    return ListedMachine(name=name, owner=owner, id=identity, ended=ended)


@pytest.mark.parametrize(
    ("wanted", "existing", "adoptable", "expected"),
    [
        pytest.param({}, [], (), [], id="nothing"),
        pytest.param({"a": ""}, [], (), [("create", "a")], id="new"),
        pytest.param({"a": "i-1"}, [machine("a")], (), [("keep", "a")], id="undisturbed"),
        pytest.param({"a": ""}, [machine("a")], (), [("keep", "a")], id="requested by a killed controller"),
        pytest.param({"a": "i-0"}, [machine("a")], (), [("prepare", "a")], id="another machine of the name"),
        pytest.param({"a": "i-1"}, [], (), [("create", "a")], id="preempted"),
        pytest.param({"a": "i-1"}, [machine("a", ended=True)], (), [("terminate", "a"), ("create", "a")], id="SHUTOFF"),
        pytest.param({}, [machine("a")], (), [("terminate", "a")], id="half made and refused"),
        pytest.param({}, [machine("a")], ("a",), [("adopt", "a")], id="lost ledger"),
        pytest.param({}, [machine("a", ended=True)], ("a",), [("terminate", "a")], id="lost ledger, stopped"),
        pytest.param({}, [machine("a"), machine("b")], ("b",), [("terminate", "a"), ("adopt", "b")], id="no answer"),
        pytest.param({"a": ""}, [machine("a", owner="r2")], (), [("leave", "a"), ("create", "a")], id="foreign"),
        pytest.param({}, [machine("a", owner="r2", ended=True)], ("a",), [("leave", "a")], id="foreign, stopped"),
        pytest.param({}, [machine("a", owner="")], (), [("terminate", "a")], id="of an older kiln"),
        pytest.param(
            {"a": "i-1"},
            [machine("a"), machine("a", identity="i-2")],
            (),
            [("keep", "a"), ("terminate", "a")],
            id="twice",
        ),
        pytest.param(
            {"a": "i-1"},
            [machine("a", identity="i-0"), machine("a")],
            (),
            [("keep", "a"), ("terminate", "a")],
            id="twice, the one that nobody knows listed first",
        ),
    ],
)
def test_every_fault_is_a_comparison_of_wanted_and_existing(
    wanted: dict[str, str], existing: list[ListedMachine], adoptable: tuple[str, ...], expected: list[tuple[str, str]]
) -> None:
    actions = reconcile_machines(wanted, existing, owner="r1", adoptable=adoptable)
    assert [(action.step.value, action.name) for action in actions] == expected


def test_of_two_machines_of_a_name_the_one_of_the_id_is_kept() -> None:
    existing = [machine("a", identity="i-0"), machine("a"), machine("a", identity="i-2", ended=True)]
    actions = reconcile_machines({"a": "i-1"}, existing, owner="r1")
    ids = {action.machine.id: action.step for action in actions if action.machine is not None}
    assert ids == {
        "i-1": MachineActionKind.KEEP,
        "i-0": MachineActionKind.TERMINATE,
        "i-2": MachineActionKind.TERMINATE,
    }


def test_a_machine_is_read_from_the_answer_of_the_listing() -> None:
    row = {"name": "a", "owner": "r1", "id": "i-1", "type": "compute-8", "ended": False, "expires": 1790000000}
    expected = ListedMachine(name="a", owner="r1", id="i-1", type="compute-8", expires=1790000000.0)
    assert ListedMachine.from_row({**row, "state": "running", "address": "192.0.2.1"}) == expected
    assert ListedMachine.from_row({"name": "a", "ended": True}) == ListedMachine(name="a", owner="", ended=True)
    with pytest.raises(TypeError):
        ListedMachine.from_row("a")  # type: ignore[arg-type] # from JSON


def test_applying_the_actions_leaves_nothing_to_do_but_to_keep() -> None:
    existing = [machine("a"), machine("b", ended=True), machine("c"), machine("d", owner="r2")]
    wanted = {"a": "i-1", "b": "i-1", "e": ""}
    actions = reconcile_machines(wanted, existing, owner="r1")
    gone = {action.name for action in actions if action.step is MachineActionKind.TERMINATE}
    made = [machine(action.name, identity="i-9") for action in actions if action.step is MachineActionKind.CREATE]
    after = [each for each in existing if each.name not in gone] + made
    again = reconcile_machines({**wanted, **{each.name: each.id for each in made}}, after, owner="r1")
    assert [action for action in again if action.step not in {MachineActionKind.KEEP, MachineActionKind.LEAVE}] == []
    assert MachineAction(step=MachineActionKind.LEAVE, name="d", reason="it is of the owner r2") in again
