"""A config that took more time or disk here than its CI service allows is named, with what to set."""

from __future__ import annotations

from typing import TYPE_CHECKING

import pytest

from kiln.cli import rerender
from kiln.recipe.feedstock import Feedstock
from kiln.state.ledger.ledger import FINISHED_CONFIG, Ledger
from kiln.state.results import ConfigRun, ConfigState, MatrixReport
from tests.unit.feedstock.test_rerender import CHAIN, CONFIGS, a_config, settings

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def feedstock(tmp_path: Path) -> Feedstock:
    """A feedstock without settings."""
    return Feedstock(root=tmp_path)


def took(feedstock: Feedstock, seconds: dict[str, float]) -> None:
    """Record builds of configs in the ledger, each of which began in an earlier job."""
    feedstock.artifacts.mkdir()
    runs = tuple(
        ConfigRun(
            config=config,
            state=ConfigState.DONE,
            group="cuda12.9",
            started=0.0,
            finished=1.0,
            earlier_seconds=duration - 1.0,
        )
        for config, duration in seconds.items()
    )
    report = MatrixReport(
        run=1,
        command="kiln build",
        started=0.0,
        finished=7200.0,
        machine="m",
        cores=32,
        jobs=1,
        engine="rattler-build",
        container="docker",
        configs=runs,
    )
    with Ledger(feedstock.artifacts / "ledger.sqlite") as ledger:
        ledger.end_run(ledger.begin_run(report))


def test_a_config_that_took_longer_here_than_its_jobs_may_is_named(feedstock: Feedstock) -> None:
    assert rerender.limit_excess_notes(feedstock, CONFIGS) == []
    took(feedstock, {CONFIGS[1].name: 7200.0 + 4e4})
    (note,) = rerender.limit_excess_notes(feedstock, CONFIGS)
    assert note.startswith(f"{CONFIGS[1].name} took 14 h when it was last built here")
    settings(feedstock, CHAIN)
    assert rerender.limit_excess_notes(feedstock, CONFIGS) == []


def test_a_config_of_another_service_that_takes_longer_than_its_jobs_may_is_named(feedstock: Feedstock) -> None:
    settings(feedstock, "provider: {linux_64: azure, linux_aarch64: travis, linux_ppc64le: github_actions}\n")
    configs = [*CONFIGS, a_config("None", "3.10", "linux-aarch64"), a_config("None", "3.10", "linux-ppc64le")]
    took(feedstock, {configs[0].name: 359 * 60, configs[1].name: 361 * 60, configs[2].name: 3600, configs[3].name: 1e6})
    azure, travis = rerender.limit_excess_notes(feedstock, configs)
    assert azure.startswith(f"{configs[1].name} took 361 min when it was last built here, and azure allows 360 minutes")
    assert azure.endswith("build it over several, with --budget and --handover")
    assert travis.startswith(f"{configs[2].name} took 60 min")
    assert rerender.limit_excess_notes(feedstock, configs[:1]) == []


def test_a_shorter_config_without_hours_is_named_beside_a_longer_one_with_them(feedstock: Feedstock) -> None:
    settings(feedstock, "kiln: {build_hours: {cuda: 14}}\n")
    took(feedstock, {CONFIGS[0].name: 8 * 3600.0, CONFIGS[1].name: 13 * 3600.0})
    (note,) = rerender.limit_excess_notes(feedstock, CONFIGS)
    assert note.startswith(f"{CONFIGS[0].name} took 8 h")


@pytest.mark.parametrize(
    ("gigabytes", "text", "expected"),
    [
        (14, "", ""),
        (15, "", "set workflow_settings: free_disk_space: max, or use another runner"),
        (15, "workflow_settings: {free_disk_space: max}\n", "use another runner"),
        (15, "github_actions: {self_hosted: true}\n", ""),
        (15, "provider: {linux_64: azure}\n", "build it on a machine with more"),
        (15, "provider: {linux_64: circle}\n", ""),
    ],
)
def test_a_config_that_took_more_disk_than_its_runner_has_is_named(
    feedstock: Feedstock, gigabytes: int, text: str, expected: str
) -> None:
    settings(feedstock, text)
    feedstock.artifacts.mkdir()
    with Ledger(feedstock.artifacts / "ledger.sqlite") as ledger:
        for config, size in ((CONFIGS[0], gigabytes), (CONFIGS[1], gigabytes - 1)):
            detail = {"disk": size * 10**9}
            ledger.store_step(config.name, config=config.name, title=FINISHED_CONFIG, seconds=1.0, detail=detail)
    notes = rerender.limit_excess_notes(feedstock, CONFIGS)
    assert len(notes) == (1 if expected else 0)
    for note in notes:
        assert note.startswith(f"{CONFIGS[0].name} took {gigabytes} GB of disk when it was last built here, and ")
        assert expected in note
