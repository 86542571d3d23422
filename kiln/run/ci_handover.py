"""Continue one config's build over a chain of jobs: take over what the job before has made, and hand on the rest."""

from __future__ import annotations

import dataclasses
import shutil
import time
from dataclasses import dataclass, field
from typing import TYPE_CHECKING

from kiln.base import files
from kiln.base.errors import BrokenHandover, BudgetSpent, KilnError, NoProgress
from kiln.base.text import count_text, duration, first_of
from kiln.build.job.job import HOST
from kiln.state.results import ConfigState, MatrixReport
from kiln.state.store import cache, handover
from kiln.state.store.compile_cache import cache_entries, cached_action_count
from kiln.state.store.handover import ChainLink, ChainState, HandoverArchive, HandoverRecord

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock
    from kiln.run.plan import RunPlan
    from kiln.state.store.layout import ArtifactLayout

STEPS = "steps.sqlite"  # the ledger of a config's steps, in its work folder
CACHE_VARIABLE = b"BAZEL_DISK_CACHE"  # the variable by which a recipe's compile step keeps its actions
LARGEST_SCRIPT = 1 << 20  # bytes
SHOWN = 3  # names in a note


@dataclass(slots=True, kw_only=True)
class ContinuedBuild:
    """A config's build in this job: ``record`` is what the jobs before have handed on, if any.

    ``bound`` limits the bytes that are unpacked, and packed. ``key`` is the name of the compile cache.
    """

    feedstock: Feedstock
    layout: ArtifactLayout
    folder: Path
    config: str
    bound: int
    record: HandoverRecord | None
    key: str = ""
    began: float = field(default_factory=time.time)
    actions: int = 0
    steps: tuple[str, ...] = ()

    @classmethod
    def from_handover_folder(
        cls, feedstock: Feedstock, layout: ArtifactLayout, config: str, folder: Path, *, bound: int
    ) -> ContinuedBuild:
        """Read the record of a folder.

        Raises:
            BrokenHandover: it is invalid, or of another config.
        """
        record = handover.read_handover_record(folder)
        if record is not None and record.config != config:
            raise BrokenHandover(
                f"{folder} is the chain of {record.config}, not of {config}",
                hint="give each config a folder of its own",
            )
        return cls(feedstock=feedstock, layout=layout, folder=folder, config=config, bound=bound, record=record)

    def already_finished_note(self) -> str:
        """Return a line about a chain that an earlier job has finished from the same sources; empty for another."""
        record = self.record
        if record is None or record.state is not ChainState.FINISHED or record.sources != self.input_files_digest:
            return ""
        return (
            f"{self.config} is already finished: {count_text(len(record.packages), 'package')} after "
            f"{count_text(len(record.links), 'job')} and {duration(record.total_seconds)}"
        )

    @property
    def input_files_digest(self) -> str:
        """A hash of the feedstock's files that decide the config's packages."""
        return cache.recipe_and_config_digest(self.feedstock, self.config)

    def restore_handed_over_files(self, plan: RunPlan) -> tuple[RunPlan, tuple[str, ...]]:
        """Put what was handed on into the caches; return the plan with the chain's time, and notes.

        Raises:
            BrokenHandover: the archive is invalid.
            AlreadyRunning: when another process builds the config.
        """
        self.key = plan.jobs_of[self.config].cache_key
        notes: list[str] = []
        with files.held_lock_file(self.layout.lock_file(self.config)):
            if self.record is not None and (reason := self._reason_not_to_continue(self.record, plan)):
                notes.append(f"{self.folder} is not continued: {reason}")
                self.record = None
            elif self.record is not None and self.record.archive is not None:
                notes += self._unpack_handover_archive(self.record, plan)
            self.actions = cached_action_count(self._compile_cache_folder)
        if self.record is None:
            return plan, tuple(notes)
        if self.record.links:  # what is only on this disk, by a job that was killed, is not handed on yet
            self.actions, self.steps = self.record.links[-1].actions, self.record.links[-1].steps
        configs = tuple(
            dataclasses.replace(config, earlier_seconds=self.record.total_seconds)
            if config.state is ConfigState.WAITING
            else config
            for config in plan.configs
        )
        return dataclasses.replace(plan, configs=configs), tuple(notes)

    def _reason_not_to_continue(self, record: HandoverRecord, plan: RunPlan) -> str:
        if record.state is ChainState.FINISHED:
            return "its chain was finished, from other sources"
        if record.sources != self.input_files_digest:
            return "it was made from other sources"
        if record.cache_key != self.key:
            return "it was made with another image, or with other compilers"
        if record.in_container != (plan.container != HOST):
            return "it was made in a container, or outside of one, unlike this job"
        return ""

    def _unpack_handover_archive(self, record: HandoverRecord, plan: RunPlan) -> list[str]:
        """Unpack the archive; entries and folders that are here already stay, since they are newer."""
        assert record.archive is not None, "checked by the caller"
        part = self.layout.safe_path("handover")
        files.remove(part)
        try:
            rejected = handover.unpack_archive(self.folder, record.archive, part, bound=self.bound)
            self.layout.compile_caches.create_folder(self.key)
            for name, source in cache_entries(part / handover.CACHE):
                _move_file_if_absent(source, self._compile_cache_folder / name)
            work = self.layout.work_folder(self.config)
            if (part / handover.WORK / STEPS).exists() and not (work / STEPS).exists():
                files.remove(work)
                work.parent.mkdir(parents=True, exist_ok=True)
                (part / handover.WORK).rename(work)
                if plan.container != HOST:
                    files.create_empty_file(self.layout.container_marker_file(self.config))
        finally:
            files.remove(part)
        link = record.links[-1] if record.links else None
        summary = (
            "" if link is None else f": {count_text(link.actions, 'action')}, {count_text(len(link.steps), 'step')}"
        )
        notes = [f"{self._other_folder(record)}, this one in another folder: what names that folder is made again"]
        notes = notes if self._other_folder(record) else []
        notes += [
            f"continued after {count_text(len(record.links), 'job')} and {duration(record.total_seconds)}{summary}"
        ]
        if rejected:
            notes.append(f"{count_text(rejected, 'file')} of the cache had other contents, and were dropped")
        return notes

    @property
    def _compile_cache_folder(self) -> Path:
        return self.layout.compile_caches.folder(self.key)

    def _other_folder(self, record: HandoverRecord | None) -> str:
        """Return where the job before was, if that was another folder on a machine; empty where it does not matter."""
        here = {"", str(self.feedstock.root.absolute())}
        return "" if record is None or record.root in here else f"the job before was in {record.root}"

    def hand_over_to_next_job(
        self, report: MatrixReport, errors: Mapping[str, KilnError]
    ) -> tuple[KilnError | None, tuple[str, ...]]:
        """Hand on what was made, when the build is finished or was stopped by its budget.

        Return the error of a job that was stopped, or made no progress, None for others; and notes.
        """
        (config,) = report.configs
        finished = (step.title for step in config.steps if not step.failed and step.title != "render")
        steps = tuple(dict.fromkeys(finished))
        if config.state in {ConfigState.DONE, ConfigState.CACHED}:
            packages = tuple((package.artifact.path.name, package.artifact.sha256) for package in config.packages)
            self._write_handover_record(ChainState.FINISHED, report, steps, packages=packages)
            return None, ()
        if not isinstance(errors.get(self.config), BudgetSpent):
            return None, ()
        number = 1 + (len(self.record.links) if self.record else 0)
        with files.held_lock_file(self.layout.lock_file(self.config)):
            actions = cached_action_count(self._compile_cache_folder)
            if actions <= self.actions and set(steps) <= set(self.steps):
                return NoProgress(
                    f"job {number} of the chain of {self.config} has finished no action and no step",
                    why=f"there were {count_text(actions, 'action')} before it and after; a single action, or a step "
                    "that cannot be continued, takes longer than --budget",
                    hint=f"{elsewhere}, whose path its actions name: build there, too"
                    if (elsewhere := self._other_folder(self.record))
                    else "give each job more time or more cores, or build on a machine without the limit",
                ), ()
            entries, notes = self._files_to_hand_over(steps)
            archive, unreadable = handover.pack_archive(self.folder, entries)
            self._write_handover_record(ChainState.UNFINISHED, report, steps, archive=archive)
        amount = f"{count_text(archive.files, 'file')}, {files.human_readable_size(archive.size)}"
        if unreadable:
            examples = first_of((f"{name} ({reason})" for name, reason in unreadable), SHOWN)
            what = f"{count_text(len(unreadable), 'file')} could not be read, and are not handed on"
            notes = (*notes, f"{what}: {examples}; a step that needs one runs again")
        notes = (*notes, f"handed on in {self.folder}: {amount}")
        return BudgetSpent(
            f"{self.config} is not finished after job {number}: {count_text(actions - self.actions, 'action')} more, "
            f"{count_text(actions, 'action')} in all; finished steps: {', '.join(steps) or 'none'}",
            hint=f"run the same command in a next job, with {self.folder} as it is now",
        ), notes

    def _files_to_hand_over(self, steps: Iterable[str]) -> tuple[list[tuple[str, Path]], tuple[str, ...]]:
        """Return the files to hand on, by their names in the archive, and notes.

        The actions of Bazel come first: with them, the steps are soon made again.
        """
        work = self.layout.work_folder(self.config)
        tops = {"channel", *(title.replace(" ", "-") for title in steps)}
        results = list(handover.work_folder_entries(work, tops))
        results += [
            (f"{handover.WORK}{path.name}", path) for path in sorted(work.glob(f"{STEPS}*")) if not path.is_symlink()
        ]
        size = handover.total_size(results)
        notes: tuple[str, ...] = ()
        if size > self.bound // 2:
            notes = (f"finished steps have {files.human_readable_size(size)}, and are not handed on",)
            results, size = [], 0
        actions, left_out = handover.newest_cache_entries(self._compile_cache_folder, self.bound - size)
        if left_out:
            bound = files.human_readable_size(self.bound)
            notes = (*notes, f"{left_out} files of the cache are not handed on: --handover-size is {bound}")
        return [*results, *actions], notes

    def _write_handover_record(
        self,
        state: ChainState,
        report: MatrixReport,
        steps: tuple[str, ...],
        *,
        archive: HandoverArchive | None = None,
        packages: tuple[tuple[str, str], ...] = (),
    ) -> None:
        """Replace the record, with this job as the last of the chain."""
        link = ChainLink(
            seconds=round(time.time() - self.began, 3),
            actions=cached_action_count(self._compile_cache_folder),
            steps=steps,
        )
        self.folder.mkdir(parents=True, exist_ok=True)
        record = HandoverRecord(
            version=handover.VERSION,
            config=self.config,
            sources=self.input_files_digest,
            cache_key=self.key,
            in_container=report.container != HOST,
            state=state,
            links=(*(self.record.links if self.record else ()), link),
            archive=archive,
            packages=packages,
            root=str(self.feedstock.root.absolute()) if report.container == HOST else "",
        )
        handover.write_handover_record(self.folder, record)


def recipe_uses_compile_cache(feedstock: Feedstock) -> bool:
    """Return whether a recipe's compile keeps its finished actions in the cache of the contract."""
    recipes = (path for path in feedstock.recipe.rglob("*") if path.is_file() and path.stat().st_size < LARGEST_SCRIPT)
    return any(CACHE_VARIABLE in path.read_bytes() for path in recipes)


def _move_file_if_absent(source: Path, target: Path) -> None:
    """Move a file to a path that may be on another disk, in one step; a file that is there stays."""
    if target.exists():
        return
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        source.rename(target)
    except OSError:  # another disk
        part = target.with_name(f".{target.name}.part")
        shutil.copy2(source, part)
        part.rename(target)
