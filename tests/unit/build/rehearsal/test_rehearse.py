"""A rehearsal that compiles is a build with other places of packages and sources."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.serialization import to_json
from kiln.build.bazel import events
from kiln.build.engine_calls import StepCache
from kiln.build.job.messages import StepReporter
from kiln.build.rehearsal import rehearse
from kiln.build.rehearsal.rehearse import Rehearsal
from kiln.build.rehearsal.wheel_download import plan_from_locks
from kiln.build.rehearsal.wheels import RehearsalPlan
from kiln.feedstock import matrix, rerender
from kiln.recipe import pins, render
from kiln.state.ledger.ledger import Ledger
from kiln.state.store.layout import RehearsalLayout
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

URL = "https://code.example/archive/v1.0.tar.gz"
SHA = "0" * 64


class CapturedBuilder:
    """The builder of a rehearsal, which keeps what it gets."""

    def __init__(self, **values: Any) -> None:
        self.values = values


@pytest.mark.processes
def test_what_is_made_of_a_wheel_for_another_platform_counts_as_cross_compiled(tmp_path: Path) -> None:
    recipe = "package:\n  name: tensorflow\n  version: 2.21.0\n"
    feedstock = builders.feedstock(tmp_path / "feedstock", recipe, "", "provider: {osx_arm64: default}\n")
    (config,) = (config for config in matrix.configs(feedstock) if config.platform == "osx-arm64")
    rerender.write_ci_support(feedstock, [config])
    plan = plan_from_locks(python="3.11", subdir="osx-arm64")
    job = builders.build_job(feedstock.root, config=config.name, rehearsal_plan=to_json(plan))
    made = Rehearsal.from_job(job, StepReporter(), {}).rendered.config
    assert not config.is_cross
    assert (made.platform, made.build_platform, made.is_cross) == ("osx-arm64", "linux-64", True)


def test_fetched_sources_come_before_the_users_downloads_which_stay(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    feedstock = builders.feedstock(tmp_path / "feedstock", "package:\n  name: a\n  version: 1\n", "", "")
    (config, *_) = matrix.configs(feedstock)
    rerender.write_ci_support(feedstock, [config])
    downloads, layout = tmp_path / "downloads", RehearsalLayout(config=tmp_path / "rehearsal" / "a")
    for file in (downloads / "v1.0.tar.gz", layout.sources / SHA / "v1.0.tar.gz"):
        file.parent.mkdir(parents=True)
        file.touch()
    job = builders.build_job(feedstock.root, config=config.name, compile={events.DISTDIR: str(downloads)})
    reporter = StepReporter()
    monkeypatch.setattr(rehearse, "ConfigBuilder", CapturedBuilder)
    rendered = pins.close_static_pins(render.render(feedstock, config))
    builder: Any = Rehearsal(
        job=job,
        rendered=rendered,
        wheels=RehearsalPlan(python=""),
        layout=layout,
        step_cache=StepCache(config=job.config, ledger=Ledger(tmp_path / "steps.sqlite"), console=reporter),
        reporter=reporter,
        environment={},
    ).config_builder(rendered, ())
    assert builder.values["job"].compile == job.compile
    urls = builder.values["engine"].source_archive_mirrors.urls_to_try([URL], SHA)
    assert urls == [(layout.sources / SHA / "v1.0.tar.gz").as_uri(), (downloads / "v1.0.tar.gz").as_uri(), URL]
