"""Packages that another config has made are taken, unless their tests were skipped and run now."""

from __future__ import annotations

from types import SimpleNamespace
from typing import TYPE_CHECKING, cast

import pytest

from kiln.base import files
from kiln.base.serialization import to_json
from kiln.build.job.job import BuildOptions
from kiln.container import emulation
from kiln.feedstock import config_file
from kiln.recipe import render
from kiln.recipe.feedstock import Feedstock
from kiln.run import config_process
from kiln.state.ledger.ledger import FINISHED_CONFIG, Ledger, StoredArtifact
from kiln.state.results import TestVerdict
from kiln.state.store.layout import ArtifactLayout
from tests import builders
from tests.unit.build.test_config_build import FORGE, META

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.build.job.job import JobContext


@pytest.mark.parametrize(
    ("verdict", "emulated", "taken"),
    [(TestVerdict.SKIPPED, True, 0), (TestVerdict.SKIPPED, False, 1), (TestVerdict.PASSED, True, 1)],
)
def test_an_untested_package_of_another_config_is_not_taken_where_its_tests_run(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, verdict: TestVerdict, emulated: bool, taken: int
) -> None:
    monkeypatch.setattr(emulation, "can_run_platform", lambda subdir, in_container: emulated and not in_container)
    feedstock = builders.expanded(tmp_path / "feedstock", META, "", FORGE)
    rendered = render.render(feedstock, config_file.read_config(feedstock, "linux_aarch64_"))
    (output,) = rendered.outputs
    layout = ArtifactLayout(root=tmp_path / "channel")
    package = {"build_string": output.build_string, "subdir": output.subdir, "size": 0, "config": "other"}
    report = builders.package_report(output.name, verdict=verdict, **package)
    path = report.artifact.path
    place = layout.root / path
    place.parent.mkdir(parents=True)
    place.write_text("")
    options = SimpleNamespace(options=BuildOptions(), config="linux_aarch64_", shared="s", key="k", container="none")
    task = SimpleNamespace(
        job=options, uses_other_engine=False, layout=layout, rendered=rendered, feedstock=Feedstock(root=tmp_path)
    )
    files.write_text(tmp_path / ".ci_support" / "other.yaml", "")
    modified = place.stat().st_mtime_ns
    with Ledger(tmp_path / "ledger.sqlite") as ledger:
        ledger.store_artifacts(
            StoredArtifact(path=str(path), sha256="5", size=0, modified=modified, config="other", inputs="s")
        )
        detail = {"packages": [to_json(report)]}
        ledger.store_step("other's", config="other", title=FINISHED_CONFIG, seconds=1.0, detail=detail)
        assert len(config_process.packages_reused_from_other_configs(cast("JobContext", task), ledger)) == taken
        (tmp_path / "conda-forge.yml").write_text("test: native\n")  # its tests never run here
        assert len(config_process.packages_reused_from_other_configs(cast("JobContext", task), ledger)) == 1
