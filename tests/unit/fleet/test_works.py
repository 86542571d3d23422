"""How long cells should take, and what machines there are for them."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.errors import MalformedYaml, UsageError
from kiln.fleet.works import Assumed, Wanted, flavours, offered, works
from kiln.ledger.fleet import Took

if TYPE_CHECKING:
    from pathlib import Path

ASSUMED = Assumed(compile=1000.0, cores=16, follower=0.2, parallel=0.9, up=1, home=1, down=1)
WANTED = (Wanted(config="a1", group="a"), Wanted(config="a2", group="a"), Wanted(config="b1", group="b"))
ROW = """
- {provider: there, type: small, flavour: t3.small, cores: 2, memory: 2, disk: 8, gpus: 0, hourly: 0.02,
   spot_hourly: null, currency: USD, region: here, source: a page, date: 2026-11-21}
"""


def took(config: str, seconds: float, *, leader: bool = True, cores: float = 16) -> Took:
    return Took(config=config, leader=leader, seconds=seconds, cores=cores)


def expected(*history: Took, cores: float = 16) -> dict[str, tuple[float, float, str]]:
    found = works(WANTED, history, cores=cores, assumed=ASSUMED)
    return {work.config: (round(work.full, 6), round(work.follower, 6), work.known) for work in found}


def test_without_any_history_what_is_assumed_holds_and_says_so() -> None:
    assert expected() == dict.fromkeys(("a1", "a2", "b1"), (1000.0, 200.0, "assumed"))


def test_a_cell_takes_what_it_took_else_what_its_group_took_else_what_all_took() -> None:
    assert expected(took("a1", 500.0)) == {
        "a1": (500.0, 100.0, "history"),
        "a2": (500.0, 100.0, "cells like it"),
        "b1": (500.0, 100.0, "cells like it"),
    }
    assert expected(took("a1", 500.0), took("b1", 900.0))["a2"] == (500.0, 100.0, "cells like it")


def test_followers_have_a_history_of_their_own() -> None:
    found = expected(took("a1", 500.0), took("a2", 60.0, leader=False))
    assert found["a2"] == (500.0, 60.0, "cells like it")
    assert found["b1"] == (500.0, 60.0, "cells like it")


def test_more_cores_shorten_only_what_is_parallel() -> None:
    assert ASSUMED.slower(16, 16) == 1.0
    assert ASSUMED.slower(1, 16) == pytest.approx(1 / (0.1 + 0.9 / 16))
    (full, _, _), *_ = expected(took("a1", 500.0, cores=4), cores=4).values()
    assert full == pytest.approx(500.0)
    assert {ASSUMED.slower(0, 16), ASSUMED.slower(16, 0)} == {1.0}
    (full, _, _), *_ = expected(took("a1", 500.0, cores=4), cores=8).values()
    assert full == pytest.approx(500.0 * (0.1 + 0.9 / 8) / (0.1 + 0.9 / 4))


def test_kilns_own_table_can_be_read() -> None:
    found = Assumed.read()
    assert 0.05 <= found.follower <= 0.3
    assert found.overheads.up == found.up


def test_flavours_are_chosen_by_what_they_mean(tmp_path: Path) -> None:
    table = tmp_path / "flavours.yml"
    table.write_text(f"kiln_flavours:{ROW}{ROW.replace('small, ', 'large, ', 1)}")
    found = flavours(table)
    assert [flavour.type for flavour in offered(found, provider="there", types=("large", "small"))] == [
        "large",
        "small",
    ]
    assert (found[0].billed, found[0].spot_hourly) == (1.0, None)
    with pytest.raises(UsageError, match="no machine of type 'huge'"):
        offered(found, provider="there", types=("huge",))
    with pytest.raises(UsageError, match="no provider 'ther'") as unknown:
        offered(found, provider="ther", types=("large",))
    assert "did you mean 'there'?" in unknown.value.hint


@pytest.mark.parametrize("text", ["[", "a: b", "kiln_flavours:\n- {provider: x}\n"])
def test_a_table_that_is_none_is_refused(text: str, tmp_path: Path) -> None:
    table = tmp_path / "flavours.yml"
    table.write_text(text)
    with pytest.raises(MalformedYaml, match="is no table of machines"):
        flavours(table)
