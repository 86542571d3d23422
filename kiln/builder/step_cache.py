"""Run each step once; reuse its result while its inputs and files are unchanged."""

from __future__ import annotations

import time
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.errors import BudgetSpent, UsageError
from kiln.job.budget_monitor import CONTINUE
from kiln.store.digests import json_digest

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping

    from kiln.job.messages import ReportedStep, StepReporter
    from kiln.ledger import Ledger


@dataclass(frozen=True, slots=True, kw_only=True)
class StepResult:
    """The result of a step: ``paths`` are files with their hashes, ``detail`` further JSON values.

    ``outdated`` when it is reused although its inputs have changed since.
    """

    paths: Mapping[Path, str]
    detail: Mapping[str, Any]
    seconds: float
    reused: bool
    outdated: bool = False


OUTDATED = "reused, though its inputs have changed since"


@dataclass(frozen=True, slots=True, kw_only=True)
class StepCache:
    """The cache of a config's steps, each of which runs through ``run_or_reuse``.

    The last results of the steps in ``settled`` are reused even if their inputs have changed; the results of those in
    ``again`` are dropped when the first of them is reached. No step runs once the file ``stop`` exists.
    """

    config: str
    ledger: Ledger
    console: StepReporter
    settled: tuple[str, ...] = ()
    again: tuple[str, ...] = ()
    began: float = field(default_factory=time.time)
    stop: Path | None = None

    def run_or_reuse(
        self,
        title: str,
        inputs: Mapping[str, Any],
        do: Callable[[ReportedStep], tuple[Iterable[Path], Mapping[str, Any]]],
        leaves: str = "",
    ) -> StepResult:
        """Run a step, or reuse its result if its ``inputs`` (JSON values) are unchanged.

        ``do`` returns the files that it made and further details, which are recorded when it returns. ``leaves`` is the
        name of one of the files, if known beforehand: a settled step must have it.

        Raises:
            UsageError: when a settled step was never finished.
            BudgetSpent: when the build is to stop, before or during the step.
        """
        key = json_digest({"title": title, **inputs})
        with self.console.step(title) as step:
            if title in self.again:
                self._forget_steps_to_repeat()
            result = (
                self._last_result_of_settled_step(title, key, leaves)
                if title in self.settled
                else self._reusable_result(key)
            )
            if result is not None:
                step.reused = True
                if result.outdated:
                    step.add_note(OUTDATED)
                return result
            self.require_budget_left()
            start = time.monotonic()
            paths_made, detail = do(step)
            paths = {path: files.sha256(path) for path in paths_made}
            seconds = time.monotonic() - start
            record = {"files": {str(path): hashed for path, hashed in paths.items()}, "detail": dict(detail)}
            self.ledger.store_step(key, config=self.config, title=title, seconds=seconds, detail=record)
            return StepResult(paths=paths, detail=detail, seconds=seconds, reused=False)

    def require_budget_left(self) -> None:
        """Raise BudgetSpent when the build is to stop, before or in a step."""
        if self.stop is not None and self.stop.exists():
            raise BudgetSpent("stopped by --budget", hint=CONTINUE)

    def unfinished_step_error(self, title: str) -> UsageError:
        """Return the error for starting after a step that was never finished, or whose files are gone."""
        return UsageError(
            f"cannot start at {self.again[0]!r}: the step {title!r} before it is not finished",
            why="no recorded attempt finished with the files that it would make now; a finished config keeps no steps",
            hint=f"--from-step {title!r}, or build without --from-step",
        )

    def _last_result_of_settled_step(self, title: str, key: str, leaves: str) -> StepResult:
        for finished in self.ledger.latest_steps(title, self.config):
            result = self._reusable_result(finished.key)
            if result is not None and (not leaves or leaves in {path.name for path in result.paths}):
                return replace(result, outdated=finished.key != key)
        raise self.unfinished_step_error(title)

    def _forget_steps_to_repeat(self) -> None:
        for title in self.again:
            for finished in self.ledger.latest_steps(title, self.config):
                if finished.finished < self.began:
                    self.ledger.delete_step(finished.key)

    def _reusable_result(self, key: str) -> StepResult | None:
        """Return an earlier run's result if all its files are unchanged."""
        finished = self.ledger.finished_step(key)
        if finished is None:
            return None
        try:
            paths = {Path(path): str(hashed) for path, hashed in finished.detail["files"].items()}
            detail = dict(finished.detail["detail"])
        except (LookupError, TypeError, ValueError, AttributeError):  # an unreadable record does not count
            return None
        if any(not path.is_file() or files.sha256(path) != hashed for path, hashed in paths.items()):
            self.ledger.delete_step(key)
            return None
        return StepResult(paths=paths, detail=detail, seconds=finished.seconds, reused=True)
