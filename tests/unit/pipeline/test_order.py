"""Given what cells share and how long they took, exactly this is built next."""

from __future__ import annotations

from hypothesis import given
from hypothesis import strategies as st

from kiln.pipeline.order import Planned, arrange, pick, succeed, whole_time

GROUPS = {"a10": "cuda12.5", "a11": "cuda12.5", "b10": "cuda12.9", "b11": "cuda12.9", "c10": "cpu"}


def test_leaders_come_first_and_the_longest_first_among_equals() -> None:
    times = {"a10": 10.0, "a11": 90.0, "b10": 50.0, "b11": 40.0, "c10": 20.0}
    planned = arrange(GROUPS, times)
    assert [(each.config, each.leader) for each in planned] == [
        ("a11", True),
        ("b10", True),
        ("c10", True),
        ("b11", False),
        ("a10", False),
    ]


def test_nobody_leads_where_nothing_is_shared() -> None:
    planned = arrange(GROUPS, {"a10": 10.0, "a11": 90.0, "b10": 50.0, "b11": 40.0, "c10": 20.0}, shared=False)
    assert [each.config for each in planned] == ["a11", "b10", "b11", "c10", "a10"]
    assert not any(each.leader for each in planned)


def test_what_was_never_built_takes_as_long_as_its_like() -> None:
    expected = {each.config: each.estimate for each in arrange(GROUPS, {"a10": 10.0, "b10": 30.0})}
    assert expected == {"a10": 10.0, "a11": 10.0, "b10": 30.0, "b11": 30.0, "c10": 20.0}
    assert {each.estimate for each in arrange(GROUPS, {})} == {None}


def test_a_follower_waits_for_its_leader() -> None:
    follower = Planned(config="a11", group="a", leader=False, estimate=None)
    other = Planned(config="b11", group="b", leader=False, estimate=None)
    assert pick([follower, other], {"a"}) is other
    assert pick([follower], {"a"}) is None
    assert pick([], set()) is None
    assert pick([follower, other], set()) is follower


def test_the_next_of_a_group_leads_when_its_leader_has_failed() -> None:
    waiting = [Planned(config=name, group=name[0], leader=False, estimate=None) for name in ("b11", "a11", "a12")]
    assert [each.config for each in succeed(waiting, "a") if each.leader] == ["a11"]
    assert succeed(waiting, "c") == tuple(waiting)


def test_the_whole_takes_as_long_as_the_longest_row_of_cells() -> None:
    cells = [Planned(config=str(time), group="", leader=False, estimate=time) for time in (5.0, 3.0, 3.0)]
    assert whole_time(cells, 2) == 6.0
    assert whole_time([*cells, Planned(config="x", group="", leader=False, estimate=None)], 2) is None
    assert whole_time([], 2) == 0.0


@given(st.dictionaries(st.text(min_size=1), st.sampled_from("abc"), max_size=12))
def test_every_cell_stands_in_the_order_once_and_each_group_has_one_leader(groups: dict[str, str]) -> None:
    planned = arrange(groups, {})
    assert sorted(each.config for each in planned) == sorted(groups)
    assert sorted(each.group for each in planned if each.leader) == sorted(set(groups.values()))
