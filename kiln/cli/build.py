"""``kiln build``: build configs, or rehearse them."""

from __future__ import annotations

import os
import sys
from typing import TYPE_CHECKING, Any

from kiln.cli import print_error
from kiln.cli.build_arguments import add_arguments
from kiln.cli.run_view_choice_and_printing import print_folded, print_line, print_notes
from kiln.errors import AlreadyRunning, BuildFailed, KilnError, TestsFailed, UsageError

if TYPE_CHECKING:
    import argparse
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.feedstock import Feedstock
    from kiln.model.run import MatrixReport
    from kiln.run.options import RunOptions
    from kiln.run.plan import RunPlan

__all__ = ["add_arguments", "run"]


def run(options: argparse.Namespace, root: Path) -> int:
    """Build or rehearse the selected configs and print the report."""
    from kiln import feedstock_folder_check
    from kiln.cli import debug

    is_shell_requested = options.shell or os.environ.get("BUILD_WITH_CONDA_DEBUG") == "1"  # conda-forge's variable
    if is_shell_requested and not options.rehearsal:
        return debug.run_debug_shell(options, feedstock_folder_check.load(root))
    if options.rehearsal and options.shell:
        raise UsageError(
            "--debug and --rehearse exclude each other: a rehearsal does not compile", hint="remove one of them"
        )
    if options.rehearsal and options.from_step is not None:
        raise UsageError(
            "--from-step and --rehearse exclude each other: a rehearsal resumes automatically",
            hint="remove --from-step",
        )
    return build_configs(feedstock_folder_check.load(root), options)


def build_configs(feedstock: Feedstock, options: argparse.Namespace) -> int:
    """Build or rehearse configs, and return the exit code."""
    from kiln.cli import build_continued_over_ci_jobs
    from kiln.cli.config_selection import selected_configs
    from kiln.cli.failed_run_error_text import failed_run_error
    from kiln.cli.run_options_from_arguments import run_options
    from kiln.run.plan import plan_as_text

    if options.from_step is not None and options.rebuild:
        raise UsageError("--rebuild and --from-step exclude each other", hint="remove one of them")
    configs = selected_configs(feedstock, options)
    if not configs:
        print("nothing to build: no config failed in the last run", file=sys.stderr)
        return 0
    chain = build_continued_over_ci_jobs.requested_job_chain(feedstock, options, configs)
    if chain is not None and (line := chain.already_finished_note()):
        print_line(line)
        return 0
    request = run_options(feedstock, options, configs)
    plan = plan_run_and_print_notes(feedstock, request, options)
    if options.dry_run:
        print_folded(plan_as_text(plan))
        return 0
    plan = build_continued_over_ci_jobs.take_over_from_previous_job(chain, feedstock, plan, options)
    report, errors = build_showing_progress(feedstock, plan, options)
    if options.json:
        import json

        from kiln.report.run_report_as_json import report_as_json

        print(json.dumps(report_json_with_errors(report_as_json(report), errors), indent=2))
    elif options.verbosity != "quiet":
        from kiln.cli.run_view_choice_and_printing import terminal_width
        from kiln.report.built_packages_text import built_packages_text

        print(built_packages_text(report, terminal_width(sys.stdout)), end="", flush=True)
    if chain is not None and (
        error := build_continued_over_ci_jobs.hand_over_to_next_job(chain, report, errors, options)
    ):
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
    from kiln.cli.commands_in_hints import make_pasteable
    from kiln.cli.environment_filters import host_machine_from_options
    from kiln.run import feedstock_run

    plan = feedstock_run.plan_run(feedstock, request, host_machine_from_options(options), on_line=print_line)
    if options.verbosity != "quiet":
        print_notes(make_pasteable(note, feedstock.root) for note in plan.notes)
    return plan


def build_showing_progress(
    feedstock: Feedstock, plan: RunPlan, options: argparse.Namespace
) -> tuple[MatrixReport, Mapping[str, KilnError]]:
    """Execute a plan, and show its progress on standard error; write JUnit's XML, also when the run is interrupted."""
    from kiln import expand, signals
    from kiln.cli import commands_in_hints
    from kiln.cli.report import recorded_run, write_junit
    from kiln.cli.run_view_choice_and_printing import append_job_summary, run_view_for_stream
    from kiln.run import feedstock_run
    from kiln.variants.varying_keys import config_labels

    configs = [entry.config for entry in plan.configs]
    variants = {config.name: config.variant for config in expand.read_configs(feedstock, configs)}
    observer = run_view_for_stream(
        sys.stderr, os.environ, config_labels(configs, variants), verbosity=options.verbosity
    )
    try:
        with signals.termination_as_interrupt(), observer:
            report, errors = feedstock_run.build_planned_configs(plan, observer)
    except KeyboardInterrupt:
        if options.junit:
            write_junit(recorded_run(feedstock, None), options.junit)
        raise
    for error in errors.values():
        commands_in_hints.make_hints_pasteable(error, feedstock.root)
    append_job_summary(report, variants, os.environ)
    if options.junit:
        write_junit(report, options.junit)
    return report, errors


def print_advice_and_return_exit_code(report: MatrixReport, errors: Mapping[str, KilnError]) -> int:
    """Print what to try; return 0, the exit code common to all failures, or BuildFailed's."""
    from kiln.model.run import GOOD

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
    """Return what to try: the error's hint, and the doctor's causes of the messages at the end of the log."""
    from kiln.compat import failure_patterns

    matches = (
        failure_patterns.failures_at_log_end(log)
        if log is not None and isinstance(error, (BuildFailed, TestsFailed))
        else ()
    )
    causes = [line for match in matches[-3:] for line in (f"  cause: {match.cause}", f"  try: {match.cure}")]
    hint = f"  try: {error.hint}"
    return causes if hint in causes or not error.hint else [hint, *causes]
