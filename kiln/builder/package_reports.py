"""Reports of a build's packages, as JSON values of the process's result."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.ledger import run_record_json_columns
from kiln.model.build_results import Artifact, PackageReport, TestReport
from kiln.serialization import to_json

if TYPE_CHECKING:
    from kiln.builder.step_cache import StepResult
    from kiln.job.job_descriptions import BuildJob
    from kiln.model.rendered import Output


def package_report_json(output: Output, result: StepResult, test_result: StepResult, job: BuildJob) -> dict[str, Any]:
    """Return the report of one package, as JSON values."""
    identity = {"name": output.name, "version": output.version, "build_string": output.build_string}
    return file_report_json(result, test_result, job, **identity, subdir=output.subdir)


def file_report_json(result: StepResult, test_result: StepResult, job: BuildJob, **identity: str) -> dict[str, Any]:
    """Return the report of a step's one file, as JSON values; its path is relative to the config's folder.

    ``identity`` are the name, the version, the build string and the subdir of an `Artifact`.
    """
    ((path, sha256),) = result.paths.items()
    artifact = Artifact(
        path=path.relative_to(job.folder),
        sha256=sha256,
        size=path.stat().st_size,
        config=job.config,
        **identity,
    )
    report = PackageReport(
        artifact=artifact,
        build_seconds=round(result.seconds, 3),
        reused=result.reused,
        tests=run_record_json_columns.record_from_json(TestReport, test_result.detail),
    )
    return {**to_json(report), "repositories": list(result.detail.get("repositories", ()))}


def step_file_hashes(*results: StepResult) -> list[str]:
    """Return the hashes of the files of steps, sorted."""
    return sorted(sha256 for result in results for sha256 in result.paths.values())
