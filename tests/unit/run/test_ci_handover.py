"""A chain of jobs: each takes over what the one before has handed on, and one without progress ends it."""

from __future__ import annotations

import dataclasses
import os
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BrokenHandover, BudgetSpent, BuildFailed, NoProgress
from kiln.recipe.feedstock import Feedstock
from kiln.run import ci_handover
from kiln.run.ci_handover import ContinuedBuild
from kiln.state.results import ConfigRun, ConfigState, StepReport
from kiln.state.store import handover
from kiln.state.store.handover import ChainState
from kiln.state.store.layout import ArtifactLayout
from tests import builders
from tests.unit.run.test_plan import a_plan
from tests.unit.run.view.run import a_run

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.base.errors import KilnError
    from kiln.run.plan import RunPlan

BOUND = 1_000_000


class Machine:
    """A machine with a checkout of the feedstock; ``chain`` is the folder that the jobs hand on."""

    def __init__(self, root: Path, chain: Path, config: str = "a") -> None:
        self.feedstock = Feedstock(root=root)
        names = ("recipe/meta.yaml", "conda-forge.yml", ".ci_support/a.yaml", ".ci_support/b.yaml")
        builders.write_files(root, dict.fromkeys(names, "{}\n"))
        self.layout = ArtifactLayout(root=root / "build_artifacts")
        self.chain = ContinuedBuild.from_handover_folder(self.feedstock, self.layout, config, chain, bound=BOUND)
        self.cache = self.layout.compile_caches.folder("key")

    @classmethod
    def stopped_after_an_action(cls, root: Path, chain: Path) -> Machine:
        """The first job of a chain, which has handed on one action."""
        machine = cls(root, chain)
        machine.begin()
        machine.act(1)
        stopped(machine=machine)
        return machine

    def begin(self, **more: Any) -> tuple[RunPlan, tuple[str, ...]]:
        job = SimpleNamespace(cache_key=more.pop("key", "key"))
        return self.chain.restore_handed_over_files(a_plan(estimate=None, **{"jobs_of": {"a": job}, **more}))

    def act(self, *numbers: int) -> None:
        builders.write_files(self.cache, {f"ac/{number:02x}/{number:064x}": "result" for number in numbers})

    def finish(self, title: str, name: str) -> None:
        work = self.layout.work_folder("a")
        builders.write_files(work, {f"{title.replace(' ', '-')}/{name}": title, ci_handover.STEPS: "a ledger"})

    def end(
        self, *titles: str, error: KilnError | None = None, state: ConfigState = ConfigState.INTERRUPTED
    ) -> tuple[KilnError | None, tuple[str, ...]]:
        steps = tuple(StepReport(title=title, seconds=1.0, reused=False) for title in ("render", *titles))
        packages = (builders.package_report(),)
        done = state in {ConfigState.DONE, ConfigState.CACHED}
        config = ConfigRun(config="a", state=state, group="cpu", steps=steps, packages=packages if done else ())
        report = a_run(config)
        return self.chain.hand_over_to_next_job(report, {} if error is None else {"a": error})


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    """The folder that the jobs hand on."""
    return tmp_path / "chain"


def stopped(*titles: str, machine: Machine) -> tuple[KilnError | None, tuple[str, ...]]:
    return machine.end(*titles, error=BudgetSpent("stopped"))


def test_a_job_continues_with_the_actions_and_steps_of_the_one_before(tmp_path: Path, folder: Path) -> None:
    first = Machine(tmp_path / "1", folder)
    plan, notes = first.begin()
    assert (notes, plan.configs[0].earlier_seconds) == ((), 0.0)
    first.act(1, 2)
    first.finish("compile s", "package")
    error, (note,) = stopped("compile s", machine=first)
    assert isinstance(error, BudgetSpent)
    assert "not finished after job 1: 2 actions more, 2 actions in all; finished steps: compile s" in error.what
    assert "4 files" in note

    second = Machine(tmp_path / "2", folder)
    recorded = handover.read_handover_record(folder)
    assert recorded is not None
    recorded_seconds = recorded.total_seconds
    plan, (note,) = second.begin()
    assert "continued after 1 job" in note
    assert "2 actions, 1 step" in note
    assert plan.configs[0].earlier_seconds == recorded_seconds
    assert len(list(second.cache.glob("ac/*/*"))) == 2
    assert (second.layout.work_folder("a") / "compile-s" / "package").read_text() == "compile s"
    assert (second.layout.work_folder("a") / ci_handover.STEPS).read_bytes() == b"a ledger"
    assert second.layout.container_marker_file("a").exists()
    assert not second.layout.safe_path("handover").exists()


def test_a_job_without_progress_ends_the_chain_and_leaves_the_folder(tmp_path: Path, folder: Path) -> None:
    Machine.stopped_after_an_action(tmp_path / "1", folder)
    before = (folder / handover.RECORD).read_text()
    second = Machine(tmp_path / "2", folder)
    second.begin()
    error, _ = stopped(machine=second)
    assert isinstance(error, NoProgress)
    assert "job 2 of the chain of a" in error.what
    assert (folder / handover.RECORD).read_text() == before


def test_a_job_on_the_host_says_that_the_one_before_was_in_another_folder(
    tmp_path: Path, folder: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    Machine.stopped_after_an_action(tmp_path / "1", folder)
    record = handover.read_handover_record(folder)
    assert record is not None
    assert record.root == ""  # in containers it is the same
    monkeypatch.setattr(handover, "read_handover_record", lambda _: dataclasses.replace(record, root="/elsewhere"))
    second = Machine(tmp_path / "2", folder)
    _, notes = second.begin()
    assert notes[0].startswith("the job before was in /elsewhere, this one in another folder: what names")
    error, _ = stopped(machine=second)
    assert isinstance(error, NoProgress)
    assert error.hint == "the job before was in /elsewhere, whose path its actions name: build there, too"


def test_what_a_killed_job_left_on_the_disk_is_progress_once_it_is_handed_on(tmp_path: Path, folder: Path) -> None:
    Machine.stopped_after_an_action(tmp_path / "1", folder)
    killed = Machine(tmp_path / "2", folder)
    killed.begin()
    killed.act(2)
    again = Machine(tmp_path / "2", folder)
    again.begin()
    assert isinstance(stopped(machine=again)[0], BudgetSpent)


def test_a_finished_step_is_progress(tmp_path: Path, folder: Path) -> None:
    machine = Machine(tmp_path / "1", folder)
    machine.begin()
    machine.finish("build p", "p")
    assert isinstance(stopped("build p", machine=machine)[0], BudgetSpent)


def test_a_finished_chain_hands_on_its_record_alone(tmp_path: Path, folder: Path) -> None:
    first = Machine.stopped_after_an_action(tmp_path / "1", folder)
    assert first.chain.already_finished_note() == ""
    second = Machine(tmp_path / "2", folder)
    second.begin()
    assert second.end("compile", state=ConfigState.DONE) == (None, ())
    assert [path.name for path in folder.iterdir()] == [handover.RECORD]
    third = Machine(tmp_path / "3", folder)
    assert third.chain.already_finished_note().startswith("a is already finished: 1 package after 2 jobs")
    record = handover.read_handover_record(folder)
    assert record is not None
    assert (record.state, record.packages) == (ChainState.FINISHED, (("p-1-0.conda", "5"),))


def test_a_finished_chain_of_other_sources_begins_anew(tmp_path: Path, folder: Path) -> None:
    first = Machine(tmp_path / "1", folder)
    first.begin()
    first.end(state=ConfigState.DONE)
    second = Machine(tmp_path / "2", folder)
    (second.feedstock.recipe / "meta.yaml").write_text("changed\n")
    assert second.chain.already_finished_note() == ""
    _, (note,) = second.begin()
    assert "not continued: its chain was finished, from other sources" in note


@pytest.mark.parametrize(
    ("more", "reason"),
    [({"key": "other"}, "another image"), ({"container": "none"}, "outside of one"), ({}, "other sources")],
)
def test_what_was_made_under_other_conditions_is_not_continued(
    tmp_path: Path, folder: Path, more: dict[str, Any], reason: str
) -> None:
    Machine.stopped_after_an_action(tmp_path / "1", folder)
    second = Machine(tmp_path / "2", folder)
    if not more:
        (second.feedstock.recipe / "meta.yaml").write_text("changed\n")
    _, (note,) = second.begin(**more)
    assert reason in note
    assert not second.cache.exists()


def test_the_chain_of_another_config_is_refused(tmp_path: Path, folder: Path) -> None:
    Machine.stopped_after_an_action(tmp_path / "1", folder)
    with pytest.raises(BrokenHandover, match="is the chain of a, not of b"):
        Machine(tmp_path / "2", folder, config="b")


def test_a_failed_build_hands_nothing_on(tmp_path: Path, folder: Path) -> None:
    machine = Machine(tmp_path / "1", folder)
    machine.begin()
    machine.act(1)
    assert machine.end(error=BuildFailed("a fault"), state=ConfigState.FAILED) == (None, ())
    assert not folder.exists()


def test_steps_that_leave_no_room_for_actions_are_not_handed_on(tmp_path: Path, folder: Path) -> None:
    machine = Machine(tmp_path / "1", folder)
    machine.begin()
    machine.act(1)
    machine.finish("build p", "p")
    (machine.layout.work_folder("a") / "build-p" / "large").write_bytes(bytes(BOUND))
    _, notes = stopped("build p", machine=machine)
    assert "finished steps have 1.0 MB, and are not handed on" in notes[0]
    record = handover.read_handover_record(folder)
    assert record is not None
    assert record.archive is not None
    assert record.archive.files == 1


def test_files_that_cannot_be_read_are_named_and_the_rest_is_handed_on(tmp_path: Path, folder: Path) -> None:
    machine = Machine(tmp_path / "1", folder)
    machine.begin()
    machine.act(1)
    machine.finish("build p", "p")
    for number in range(5):
        os.mkfifo(machine.layout.work_folder("a") / "build-p" / f"pipe{number}")
    error, notes = stopped("build p", machine=machine)
    assert isinstance(error, BudgetSpent)
    assert notes[0].startswith("5 files could not be read, and are not handed on: work/build-p/pipe0 (it is not")
    assert "and 2 more; a step that needs one runs again" in notes[0]
    assert "handed on in" in notes[1]
    assert "3 files" in notes[1]


def test_a_recipe_whose_compile_has_no_cache_is_known(tmp_path: Path, folder: Path) -> None:
    machine = Machine(tmp_path / "1", folder)
    assert not ci_handover.recipe_uses_compile_cache(machine.feedstock)
    (machine.feedstock.recipe / "build.sh").write_text('bazel build --disk_cache="$BAZEL_DISK_CACHE" //:all\n')
    assert ci_handover.recipe_uses_compile_cache(machine.feedstock)
