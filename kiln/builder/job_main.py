"""The process of a build or a rehearsal: reads its job, runs it, and writes the result last."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any

from kiln import files, interprocess_messages, masking, rattler_process, signals
from kiln.build.script_variables import config_caller_variable_names
from kiln.errors import DownloadFailed, KilnError, SolveFailed
from kiln.job.job_descriptions import BuildJob
from kiln.job.messages import StepReporter, error_as_json

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

    from kiln.model.rendered import RenderedConfig

RENDERED = (
    "meta.yaml",
    "recipe.yaml",
    "conda_build_config.yaml",
    "variants.yaml",
)  # their effect is in the rendered recipe
NOT_FOR_TESTS = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")  # set for this process; tests must not import kiln
GONE = "read the log; with --keep-failed, the folders in which the script runs are kept"


def main(job_file: str) -> None:
    """Run a job, write the result, and exit without py-rattler's tear-down (see kiln.__main__)."""
    job = BuildJob.parse(Path(job_file).read_text(encoding="utf-8"))
    signals.end_tree_on_signal(signal.SIGTERM)
    signals.die_with_parent(signal.SIGTERM, parent=job.parent)
    reporter = StepReporter()
    result: dict[str, Any] = {"packages": [], "error": None, "outdated": False}
    try:
        with rattler_process.override_limits(rattler_process.environment_limits(os.environ)):
            result |= _build_or_rehearse(job, reporter)
    except KilnError as error:
        if isinstance(error, (SolveFailed, DownloadFailed)):  # their reasons are in no program's output
            for line in error.why.splitlines():
                interprocess_messages.write_line(sys.stdout, line)
        result["error"] = error_as_json(error, step=reporter.failed)
    except OSError as error:
        if (refusal := files.os_error_as_kiln_error(error)) is None:
            raise
        result["error"] = error_as_json(refusal, step=reporter.failed)
    result["steps"] = [dataclasses.asdict(step) for step in reporter.steps]
    files.write_text(job.result, json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


def _build_or_rehearse(job: BuildJob, reporter: StepReporter) -> dict[str, Any]:
    """Return the result of a job: a config's build, preparation for debugging, or rehearsal."""
    if job.options.rehearsal:
        from kiln.builder.rehearsal import rehearse_config  # it imports this module, as the other one does

        return rehearse_config(job, reporter)
    from kiln.builder.config_build import run_build_job

    return run_build_job(job, reporter)


def secrets_of_scripts(rendered: RenderedConfig, more: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the secret variables of a config's scripts: the caller's, and ``more``."""
    return {**{name: os.environ[name] for name in config_caller_variable_names(rendered) if name in os.environ}, **more}


def mask_script_secrets(rendered: RenderedConfig, more: Mapping[str, str] = MappingProxyType({})) -> None:
    """Mask the secrets of this process's scripts."""
    masking.register_secrets(
        (
            *masking.secrets_of_environment(os.environ),
            *masking.secrets_of_script_variables(secrets_of_scripts(rendered, more)),
        )
    )


@contextlib.contextmanager
def remove_folders_on_failure(job: BuildJob, *folders: Path) -> Iterator[None]:
    """Remove folders when the block fails, unless failed builds are kept."""
    try:
        yield
    except KilnError as error:
        if not job.options.keep_failed:
            for folder in folders:
                files.remove(folder)
            if any(str(folder) in error.hint for folder in folders):
                error.hint = GONE  # instead of a removed path
        raise
