"""``kiln build``: build configs, or rehearse them, over a chain of CI jobs, or with a shell for ``--debug``."""

from __future__ import annotations

import functools
import os
import sys
import time
from typing import TYPE_CHECKING, Any

from kiln.base.errors import AlreadyRunning, BuildFailed, KilnError, TestsFailed, UsageError
from kiln.cli.arguments import add_arguments
from kiln.cli.main import print_error
from kiln.cli.output import print_folded, print_line, print_unless_quiet

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kiln.build.job.job import RunOptions
    from kiln.recipe.feedstock import Feedstock
    from kiln.run.ci_handover import ContinuedBuild
    from kiln.run.plan import RunPlan
    from kiln.state.results import MatrixReport

__all__ = ["add_arguments", "run"]


NOT_RESUMABLE = (
    "the recipe does not use BAZEL_DISK_CACHE, so a next job begins an unfinished step anew: a step that alone takes "
    "longer than --budget is never finished"
)


def requested_job_chain(
    feedstock: Feedstock, options: argparse.Namespace, configs: Sequence[str]
) -> ContinuedBuild | None:
    """Return the chain of --handover, None without it."""
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
    from kiln.run.ci_handover import ContinuedBuild
    from kiln.state.store.layout import ArtifactLayout

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
        print_unless_quiet(options, *(f"note: {note}" for note in notes))
    seconds = None if options.budget is None else options.budget.seconds
    if seconds is not None and plan.seconds is not None and plan.seconds > seconds:
        from kiln.base.text import duration
        from kiln.run.ci_handover import recipe_uses_compile_cache

        took = f"note: took {duration(plan.seconds)} when it was last built, and --budget is {duration(seconds)}"
        print_unless_quiet(options, took, *([] if recipe_uses_compile_cache(feedstock) else [f"note: {NOT_RESUMABLE}"]))
    return plan


def hand_over_to_next_job(
    chain: ContinuedBuild, report: MatrixReport, errors: Mapping[str, KilnError], options: argparse.Namespace
) -> KilnError | None:
    """Hand on what was made, print notes, and return the error of a job that was stopped by its budget.

    After a notice no more is handed on than can be packed and uploaded before the machine's end.
    """
    if options.notice is not None:
        from kiln.base import files
        from kiln.build.job.messages import termination_time_in_notice, transferable_bytes

        end = termination_time_in_notice(files.text_or_empty(options.notice))
        chain.bound = chain.bound if end is None else min(chain.bound, transferable_bytes(end - time.time()))
    error, notes = chain.hand_over_to_next_job(report, errors)
    print_unless_quiet(options, *(f"note: {note}" for note in notes))
    return error


def run(options: argparse.Namespace, root: Path) -> int:
    """Build or rehearse the selected configs and print the report."""
    from kiln.recipe import feedstock as recipe_feedstock

    is_shell_requested = options.shell or os.environ.get("BUILD_WITH_CONDA_DEBUG") == "1"  # conda-forge's variable
    if is_shell_requested and not options.rehearsal:
        return run_debug_shell(options, recipe_feedstock.load(root))
    if options.rehearsal and options.shell:
        raise UsageError(
            "--debug and --rehearse exclude each other: a rehearsal does not compile", hint="remove one of them"
        )
    if options.rehearsal and options.from_step is not None:
        raise UsageError(
            "--from-step and --rehearse exclude each other: a rehearsal resumes automatically",
            hint="remove --from-step",
        )
    return build_configs(recipe_feedstock.load(root), options)


def build_configs(feedstock: Feedstock, options: argparse.Namespace) -> int:
    """Build or rehearse configs, and return the exit code."""
    from kiln.cli.main import failed_run_error, make_pasteable
    from kiln.cli.options import run_options, selected_configs
    from kiln.run.plan import plan_as_text, stated_time

    if options.changed and (options.all or options.failed):
        other = "--all" if options.all else "--failed"
        raise UsageError(f"--changed and {other} exclude each other", hint="remove one of them")
    if options.from_step is not None and options.rebuild:
        raise UsageError("--rebuild and --from-step exclude each other", hint="remove one of them")
    configs = selected_configs(feedstock, options)
    if not configs:
        older = f"differs from {options.since}; --since HEAD~1 compares with the commit before"
        print(f"nothing to build: no config {older if options.changed else 'failed in its last run'}", file=sys.stderr)
        return 0
    chain = requested_job_chain(feedstock, options, configs)
    if chain is not None and (line := chain.already_finished_note()):
        print_line(line)
        return 0
    request = run_options(feedstock, options, configs)
    plan = plan_run_and_print_notes(feedstock, request, options)
    if options.dry_run:
        print_folded(plan_as_text(plan, stated_time(feedstock, plan)))
        return 0
    plan = take_over_from_previous_job(chain, feedstock, plan, options)
    report, errors = build_showing_progress(feedstock, plan, options)
    if options.json:
        import json

        from kiln.run.report.page import report_as_json

        print(json.dumps(report_json_with_errors(report_as_json(report), errors), indent=2))
    elif options.verbosity != "quiet":
        from kiln.build.job.job import channel_sources
        from kiln.cli.output import terminal_width
        from kiln.feedstock import config_file
        from kiln.run.report.text import built_packages_text

        channels = channel_sources(config_file.read_config(feedstock, report.configs[-1].config))
        text = built_packages_text(report, terminal_width(sys.stdout), channels=channels)
        print(make_pasteable(text, feedstock.root), end="", flush=True)
    if chain is not None and (error := hand_over_to_next_job(chain, report, errors, options)):
        return print_error(error)
    code = print_advice_and_return_exit_code(report, errors)
    return code if code == 0 else print_error(failed_run_error(report, errors, options, exit_code=code))


def report_json_with_errors(data: dict[str, Any], errors: Mapping[str, KilnError]) -> dict[str, Any]:
    """Return a report's JSON with the whole error of each config, such as the solver's explanation; None without."""
    for config in data["configs"]:
        error = errors.get(config["config"])
        config["error"] = error and {
            "type": type(error).__name__,
            "exit_code": error.exit_code,
            "what": error.what,
            "why": error.why,
            "hint": error.hint,
        }
    return data


def plan_run_and_print_notes(feedstock: Feedstock, request: RunOptions, options: argparse.Namespace) -> RunPlan:
    """Return the plan of a run, and print its notes."""
    from kiln.cli.main import make_pasteable
    from kiln.cli.options import host_machine_from_options
    from kiln.run import runner

    show = functools.partial(print_unless_quiet, options)
    plan = runner.plan_run(feedstock, request, host_machine_from_options(options), on_line=show)
    show(*(f"note: {make_pasteable(note, feedstock.root)}" for note in plan.notes))
    return plan


def build_showing_progress(
    feedstock: Feedstock, plan: RunPlan, options: argparse.Namespace
) -> tuple[MatrixReport, Mapping[str, KilnError]]:
    """Execute a plan, and show its progress on standard error; write JUnit's XML, also when the run is interrupted."""
    from kiln.base import process_table
    from kiln.cli import main
    from kiln.cli.output import append_job_summary, run_view_for_stream
    from kiln.cli.runs import recorded_run, write_junit
    from kiln.feedstock import config_file
    from kiln.recipe.variants.space import config_labels
    from kiln.run import runner

    configs = [entry.config for entry in plan.configs]
    variants = {config.name: config.variant for config in config_file.read_configs(feedstock, configs)}
    observer = run_view_for_stream(
        sys.stderr, os.environ, config_labels(configs, variants), verbosity=options.verbosity
    )
    try:
        with process_table.termination_as_interrupt(), observer:
            report, errors = runner.build_planned_configs(plan, observer)
    except KeyboardInterrupt:
        if options.junit:
            write_junit(recorded_run(feedstock, None), options.junit)
        raise
    for error in errors.values():
        main.make_hints_pasteable(error, feedstock.root)
    append_job_summary(report, variants, os.environ)
    if options.junit:
        write_junit(report, options.junit)
    return report, errors


def print_advice_and_return_exit_code(report: MatrixReport, errors: Mapping[str, KilnError]) -> int:
    """Print what to try; return 0, the exit code common to all failures, or BuildFailed's."""
    from kiln.state.results import GOOD

    logs = {entry.config: entry.log for entry in report.configs}
    for config, error in errors.items():
        lines = failure_advice(error, logs.get(config))
        if lines and not isinstance(error, AlreadyRunning):
            print("\n".join((config, *lines)), file=sys.stderr)
    failures = [entry for entry in report.configs if entry.state not in GOOD]
    codes = {errors[entry.config].exit_code if entry.config in errors else BuildFailed.exit_code for entry in failures}
    codes = codes - {AlreadyRunning.exit_code} or codes
    return 0 if not codes else codes.pop() if len(codes) == 1 else BuildFailed.exit_code


def failure_advice(error: KilnError, log: Path | None) -> list[str]:
    """Return what to try: the error's hint, and the doctor's causes of the messages at the end of the log.

    Of failures of builds only the one that the error names: a log has many that did no harm.
    """
    from kiln.compat import causes

    logged = causes.failures_at_log_end(log) if log and isinstance(error, (BuildFailed, TestsFailed)) else ()
    matches = [
        match for match in logged if not match.headline or match.headline in error.what or match.cure == error.hint
    ]
    lines = [line for match in matches[-3:] for line in (f"  cause: {match.cause}", f"  try: {match.cure}")]
    hint = f"  try: {error.hint}"
    return lines if hint in lines or not error.hint else [hint, *lines]


TERMINAL_VARIABLES = ("TERM", "COLORTERM", "LINES", "COLUMNS")


def run_debug_shell(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Prepare an output's build and open the shell; return the shell's exit code."""
    import dataclasses

    from kiln.base import process_table
    from kiln.cli import options as cli_options
    from kiln.cli.options import run_options, variables_of_names
    from kiln.run.config_process import open_debug_shell as open_shell
    from kiln.run.plan import plan_as_text

    configs = cli_options.selected_configs(feedstock, options)
    if len(configs) != 1:
        raise UsageError(f"--debug requires exactly one config, {len(configs)} are selected", hint="name one CONFIG")
    pattern = options.output_id or os.environ.get("BUILD_OUTPUT_ID", "")
    request = run_options(feedstock, options, configs)
    variables = {"BUILD_WITH_CONDA_DEBUG": "1", **({"BUILD_OUTPUT_ID": pattern} if pattern else {})}
    request = dataclasses.replace(
        request,
        build=dataclasses.replace(request.build, debug=pattern),
        caller_variables={**request.caller_variables, **variables},
    )
    plan = plan_run_and_print_notes(feedstock, request, options)
    if options.dry_run:
        print(plan_as_text(plan))
        return 0
    terminal = variables_of_names(os.environ, TERMINAL_VARIABLES)
    with process_table.termination_as_interrupt():
        return open_shell(plan, terminal=terminal if sys.stdin.isatty() else None, show=print_line)
