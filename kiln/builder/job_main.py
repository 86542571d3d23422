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

from kiln import files, json_messages, masking, rattler_process, signals
from kiln.build import callers_variables
from kiln.errors import DownloadFailed, KilnError, SolveFailed
from kiln.job.error_transfer import error_as_json
from kiln.job.job_descriptions import BuildJob
from kiln.job.messages import StepReporter
from kiln.ledger import record_json
from kiln.model.build_results import Artifact, PackageReport

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kiln.model.rendered import Output, Rendered
    from kiln.store.step_cache import StepResult

RENDERED = (
    "meta.yaml",
    "recipe.yaml",
    "conda_build_config.yaml",
    "variants.yaml",
)  # their effect is in the rendered recipe
NOT_FOR_TESTS = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")  # set for this process; tests must not import kiln
GONE = "read the log; with --keep-failed, the folders in which the script runs are kept"


def carry_out(job_file: str, do: Callable[[BuildJob, StepReporter], dict[str, Any]]) -> None:
    """Run a job, write the result, and exit without py-rattler's tear-down (see kiln.__main__)."""
    job = BuildJob.read(Path(job_file))
    signals.end_tree_on_signal(signal.SIGTERM)
    signals.die_with_parent(signal.SIGTERM, parent=job.parent)
    reporter = StepReporter()
    result: dict[str, Any] = {"packages": [], "error": None, "outdated": False}
    try:
        with rattler_process.limited(rattler_process.limits_of(os.environ)):
            result |= do(job, reporter)
    except KilnError as error:
        if isinstance(error, (SolveFailed, DownloadFailed)):  # their reasons are in no program's output
            for line in error.why.splitlines():
                json_messages.write(sys.stdout, line)
        result["error"] = error_as_json(error, step=reporter.failed)
    except OSError as error:
        if (refusal := files.refusal(error)) is None:
            raise
        result["error"] = error_as_json(refusal, step=reporter.failed)
    result["steps"] = [dataclasses.asdict(step) for step in reporter.steps]
    files.write_text(job.result, json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


def secrets_of_scripts(rendered: Rendered, more: Mapping[str, str] = MappingProxyType({})) -> dict[str, str]:
    """Return the secret variables of a config's scripts: the caller's, and ``more``."""
    return {**{name: os.environ[name] for name in callers_variables(rendered) if name in os.environ}, **more}


def mask_secrets(rendered: Rendered, more: Mapping[str, str] = MappingProxyType({})) -> None:
    """Mask the secrets of this process's scripts."""
    masking.protect(
        (*masking.secrets_of_variables(os.environ), *masking.script_secrets(secrets_of_scripts(rendered, more)))
    )


def for_tests(environment: Mapping[str, str]) -> dict[str, str]:
    """Return the environment of a package's tests, from this process's."""
    return {name: value for name, value in environment.items() if name not in NOT_FOR_TESTS}


@contextlib.contextmanager
def tidied(job: BuildJob, *folders: Path) -> Iterator[None]:
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


def package_as_json(output: Output, result: StepResult, test_result: StepResult, job: BuildJob) -> dict[str, Any]:
    """Return the report of one package, as JSON values."""
    return report_as_json(
        result, test_result, job, output.name, output.version, output.build_string, subdir=output.subdir
    )


def report_as_json(
    result: StepResult,
    test_result: StepResult,
    job: BuildJob,
    name: str,
    version: str,
    build_string: str,
    *,
    subdir: str,
) -> dict[str, Any]:
    """Return the report of a step's one file, as JSON values; its path is relative to the config's folder."""
    ((path, sha256),) = result.paths.items()
    artifact = Artifact(
        path=path.relative_to(job.folder),
        sha256=sha256,
        size=path.stat().st_size,
        config=job.config,
        name=name,
        version=version,
        build_string=build_string,
        subdir=subdir,
    )
    report = PackageReport(
        artifact=artifact,
        build_seconds=round(result.seconds, 3),
        reused=result.reused,
        tests=record_json.tests(test_result.detail),
    )
    return {**record_json.package_as_json(report), "repositories": list(result.detail.get("repositories", ()))}


def hashes(*results: StepResult) -> list[str]:
    """Return the hashes of the files of steps, sorted."""
    return sorted(sha256 for result in results for sha256 in result.paths.values())
