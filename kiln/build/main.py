"""The process of a build or a rehearsal: reads its job, runs it, and writes the result last."""

from __future__ import annotations

import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files, process_table, serialization
from kiln.base.errors import DownloadFailed, KilnError, SolveFailed
from kiln.build.bazel.events import secret_variable_names
from kiln.build.job.job import BuildJob
from kiln.build.job.messages import StepReporter, error_as_json
from kiln.conda.rattler import limits

if TYPE_CHECKING:
    from collections.abc import Mapping


def main(job_file: str) -> None:
    """Run a job, write the result, and exit without py-rattler's tear-down (see kiln.__main__)."""
    job = BuildJob.parse(Path(job_file).read_text(encoding="utf-8"))
    process_table.end_tree_on_signal(signal.SIGTERM)
    process_table.die_with_parent(signal.SIGTERM, parent=job.parent)
    # Taken out of the environment, which every process of this one sees: for the compile alone.
    compile_secrets = {name: os.environ.pop(name) for name in secret_variable_names(os.environ)}
    reporter = StepReporter()
    result: dict[str, Any] = {"packages": [], "error": None, "outdated": False}
    try:
        with limits.override_limits(limits.environment_limits(os.environ)):
            result |= _build_or_rehearse(job, reporter, compile_secrets)
    except KilnError as error:
        if isinstance(error, (SolveFailed, DownloadFailed)):  # their reasons are in no program's output
            for line in error.why.splitlines():
                serialization.write_line(sys.stdout, line)
        result["error"] = error_as_json(error, step=reporter.failed)
    except OSError as error:
        if (refusal := files.os_error_as_kiln_error(error)) is None:
            raise
        result["error"] = error_as_json(refusal, step=reporter.failed)
    result["steps"] = [dataclasses.asdict(step) for step in reporter.steps]
    files.write_text(job.result, json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


def _build_or_rehearse(job: BuildJob, reporter: StepReporter, compile_secrets: Mapping[str, str]) -> dict[str, Any]:
    """Return the result of a job: a config's build, preparation for debugging, or rehearsal."""
    if job.options.rehearsal:
        from kiln.build.rehearsal.rehearse import rehearse_config  # it imports this module, as the other one does

        return rehearse_config(job, reporter, os.environ)
    from kiln.build.config_build import ConfigBuilder

    builder = ConfigBuilder.from_job(job, reporter, os.environ, compile_secrets)
    return builder.run() if job.options.debug is None else {"debug": builder.prepare_for_debugging(job.options.debug)}
