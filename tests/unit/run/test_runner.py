"""A run indexes its channel once for the configs that have finished meanwhile, and a failure is theirs."""

from __future__ import annotations

import dataclasses
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

import pytest

from kiln.errors import BrokenPackage
from kiln.model.run import ConfigRun, ConfigState
from kiln.run.runner import MatrixRun
from kiln.scheduling import local_build_order
from kiln.store import build_cache

if TYPE_CHECKING:
    from kiln.run.plan import RunPlan

DONE = tuple(ConfigRun(config=name, group=name, state=ConfigState.DONE) for name in ("a", "b"))


@pytest.fixture
def run(monkeypatch: pytest.MonkeyPatch) -> MatrixRun:
    """Return a run of two configs that have finished, and are not in the index yet."""
    monkeypatch.setattr(local_build_order, "queue_of_configs", lambda *_, **__: None)
    plan = SimpleNamespace(waiting=(), compiles=False, configs=DONE, layout=SimpleNamespace())
    ledger = SimpleNamespace(update_config=lambda *_: None)
    watcher = SimpleNamespace(config_changed=lambda _: None)
    run = MatrixRun(cast("RunPlan", plan), ledger=cast("Any", ledger), watcher=cast("Any", watcher))
    run.unindexed = ["a", "b"]
    return run


def test_configs_that_finished_meanwhile_are_indexed_once(run: MatrixRun, monkeypatch: pytest.MonkeyPatch) -> None:
    layouts: list[object] = []
    monkeypatch.setattr(build_cache, "index_channel", layouts.append)
    run._index_new_packages()
    run._index_new_packages()
    assert layouts == [run.layout]
    assert (run.errors, tuple(run.configs.values())) == ({}, DONE)


def test_packages_that_cannot_be_indexed_fail_their_configs(run: MatrixRun, monkeypatch: pytest.MonkeyPatch) -> None:
    broken = BrokenPackage("the packages in build_artifacts cannot be indexed")

    def refuse(_: object) -> None:
        raise broken

    monkeypatch.setattr(build_cache, "index_channel", refuse)
    run.unindexed = ["b"]
    run._index_new_packages()
    assert run.errors == {"b": broken}
    failed = dataclasses.replace(DONE[1], state=ConfigState.FAILED, reason=broken.what)
    assert tuple(run.configs.values()) == (DONE[0], failed)
