"""``kiln build --budget --handover``: a build over a chain of jobs, each within the time that a CI service gives it."""

from __future__ import annotations

import time
from typing import TYPE_CHECKING

from kiln.cli.run_view_choice_and_printing import print_notes
from kiln.errors import KilnError, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence

    from kiln.model.feedstock import Feedstock
    from kiln.model.run import MatrixReport
    from kiln.run.ci_job_handover import ContinuedBuild
    from kiln.run.plan import RunPlan

NOT_RESUMABLE = (
    "the recipe does not use BAZEL_DISK_CACHE, so a next job begins an unfinished step anew: a step that alone takes "
    "longer than --budget is never finished"
)


def requested_job_chain(
    feedstock: Feedstock, options: argparse.Namespace, configs: Sequence[str]
) -> ContinuedBuild | None:
    """Return the chain of --handover, None without it.

    Raises:
        UsageError: when these options exclude others, or more than one config is selected.
    """
    for flag, excluded in (
        ("--rehearse", options.rehearsal),
        (f"--engine {options.engine}", options.engine != "rattler-build"),
    ):
        if excluded and (options.budget or options.handover or options.notice):
            raise UsageError(
                f"--budget, --notice and --handover exclude {flag}",
                why="only a build by kiln's own engine can be stopped and continued",
                hint=f"remove {flag}",
            )
    if options.handover is None:
        return None
    if len(configs) != 1 or options.rebuild or options.from_step is not None:
        raise UsageError(
            "--handover is for one config, and excludes --rebuild and --from-step",
            why=f"{len(configs)} configs are selected" if len(configs) != 1 else "it continues what was built before",
            hint="name one CONFIG, and give each its own folder",
        )
    from kiln.run.ci_job_handover import ContinuedBuild
    from kiln.store.layout import ArtifactLayout

    layout = ArtifactLayout.for_feedstock(feedstock, compile_cache=options.compile_cache)
    return ContinuedBuild.from_handover_folder(
        feedstock, layout, configs[0], options.handover, bound=options.handover_size
    )


def take_over_from_previous_job(
    chain: ContinuedBuild | None, feedstock: Feedstock, plan: RunPlan, options: argparse.Namespace
) -> RunPlan:
    """Take over what a job before has made, and return the plan with the chain's time; print notes."""
    if chain is not None:
        plan, notes = chain.restore_handed_over_files(plan)
        print_notes(notes)
    seconds = None if options.budget is None else options.budget.seconds
    if seconds is not None and plan.seconds is not None and plan.seconds > seconds:
        from kiln.console.text import duration
        from kiln.run.ci_job_handover import recipe_uses_compile_cache

        print_notes([f"took {duration(plan.seconds)} when it was last built, and --budget is {duration(seconds)}"])
        if not recipe_uses_compile_cache(feedstock):
            print_notes([NOT_RESUMABLE])
    return plan


def hand_over_to_next_job(
    chain: ContinuedBuild, report: MatrixReport, errors: Mapping[str, KilnError], options: argparse.Namespace
) -> KilnError | None:
    """Hand on what was made, print notes, and return the error of a job that was stopped by its budget.

    After a notice no more is handed on than can be packed and uploaded before the machine's end.
    """
    if options.notice is not None:
        from kiln import files
        from kiln.job.budget_monitor import termination_time_in_notice, transferable_bytes

        end = termination_time_in_notice(files.text_or_empty(options.notice))
        chain.bound = chain.bound if end is None else min(chain.bound, transferable_bytes(end - time.time()))
    error, notes = chain.hand_over_to_next_job(report, errors)
    print_notes(notes)
    return error
