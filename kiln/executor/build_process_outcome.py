"""The parts that both executors of a config's programs share: the outcome of a build process, and its failure."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeAlias

from kiln.build import rattler_build_failure_kinds
from kiln.errors import KilnError, program_output_with_margin
from kiln.executor import conda_build_setup_and_results
from kiln.job.messages import MARK

if TYPE_CHECKING:
    from kiln.executor.container import ContainerExecutor
    from kiln.executor.host import HostExecutor
    from kiln.job.job_context import JobContext

    # Paths of ``packages`` and ``queue`` are as this process sees them, those of all else as the programs do.
    Executor: TypeAlias = ContainerExecutor | HostExecutor


@dataclass(frozen=True, slots=True, kw_only=True)
class ProcessOutcome:
    """The outcome of a build process: ``error`` is None when it wrote its result, ``peak_memory`` is in bytes.

    ``starved`` when the kernel killed processes of it because memory ran out.
    """

    error: KilnError | None
    peak_memory: int | None
    starved: bool


def job_message_prefix(task: JobContext) -> str:
    """Return the first character of the build process's messages; empty for another engine, which sends none."""
    return "" if task.uses_other_engine else MARK


def build_process_error(task: JobContext, name: str, exit_code: int, tail: str) -> KilnError:
    """Return the error of a build process that ended without a result: on a full disk, for example.

    For another engine it is that engine's own error.
    """
    if task.uses_other_engine and exit_code > 0:
        return conda_build_setup_and_results.error_from_build_log(
            task.job.options.engine, exit_code, tail, Path(task.job.log)
        )
    kind = rattler_build_failure_kinds.classify_failure("", tail)
    return kind.error(
        f"{name} ended with exit code {exit_code}", why=f"it said\n{program_output_with_margin(tail)}", hint=kind.hint
    )
