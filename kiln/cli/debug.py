"""``kiln build --debug``: a shell where an output's build script runs."""

from __future__ import annotations

import dataclasses
import os
import sys
from typing import TYPE_CHECKING

from kiln.cli import build, config_selection
from kiln.cli.environment_filters import variables_of_names
from kiln.cli.run_options_from_arguments import run_options
from kiln.cli.run_view_choice_and_printing import print_line
from kiln.errors import UsageError

if TYPE_CHECKING:
    import argparse

    from kiln.model.feedstock import Feedstock

TERMINAL_VARIABLES = ("TERM", "COLORTERM", "LINES", "COLUMNS")


def run_debug_shell(options: argparse.Namespace, feedstock: Feedstock) -> int:
    """Prepare an output's build and open the shell; return the shell's exit code.

    Raises:
        UsageError: if the options select more or less than one config.
    """
    from kiln import signals
    from kiln.run.debug import open_debug_shell as open_shell
    from kiln.run.plan import plan_as_text

    configs = config_selection.selected_configs(feedstock, options)
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
    plan = build.plan_run_and_print_notes(feedstock, request, options)
    if options.dry_run:
        print(plan_as_text(plan))
        return 0
    terminal = variables_of_names(os.environ, TERMINAL_VARIABLES)
    with signals.termination_as_interrupt():
        return open_shell(plan, terminal=terminal if sys.stdin.isatty() else None, show=print_line)
