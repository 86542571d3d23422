"""What a build and a rehearsal of a cell have in common: a process that does its job, and writes the result last."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import os
import signal
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import command, files
from kiln.errors import KilnError
from kiln.ledger import records
from kiln.model.artifact import Artifact, PackageReport
from kiln.pipeline.failures import as_told
from kiln.pipeline.jobs import BuildJob
from kiln.pipeline.process import end_with_all_below
from kiln.pipeline.voice import Voice

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping

    from kiln.model.rendered import Output
    from kiln.pipeline.memo import Made

RENDERED = ("meta.yaml", "conda_build_config.yaml")  # they act through what was rendered from them
NOT_FOR_TESTS = ("PYTHONPATH", "PYTHONDONTWRITEBYTECODE")  # they lead this process to kiln, and would lead tests astray
GONE = "--failed --keep-failed runs it again and keeps what it leaves, CONFIG --debug opens a shell there"


def carry_out(job_file: str, do: Callable[[BuildJob, Voice], dict[str, Any]]) -> None:
    """Do a job, write the result, and leave past py-rattler's tear-down (see kiln.__main__)."""
    job = BuildJob.read(Path(job_file))
    end_with_all_below(signal.SIGTERM)
    command.die_with_parent(signal.SIGTERM, parent=job.parent)
    voice = Voice()
    result: dict[str, Any] = {"packages": [], "error": None, "outdated": False}
    try:
        result |= do(job, voice)
    except KilnError as error:
        result["error"] = as_told(error, step=voice.failed)
    result["steps"] = [dataclasses.asdict(step) for step in voice.steps]
    files.write_text(job.result, json.dumps(result))
    sys.stdout.flush()
    os._exit(0)


def for_tests(environment: Mapping[str, str]) -> dict[str, str]:
    """Return what the tests of a package see of this process's environment."""
    return {name: value for name, value in environment.items() if name not in NOT_FOR_TESTS}


@contextlib.contextmanager
def tidied(job: BuildJob, *folders: Path) -> Iterator[None]:
    """Remove folders when the block fails, unless what failed is to be kept."""
    try:
        yield
    except KilnError as error:
        if not job.keep_failed:
            for folder in folders:
                files.remove(folder)
            if any(str(folder) in error.hint for folder in folders):
                error.hint = GONE  # instead of where that was
        raise


def package_told(output: Output, made: Made, tested: Made, job: BuildJob) -> dict[str, Any]:
    """Say what became of one package."""
    return told(made, tested, job, output.name, output.version, output.build_string, subdir=output.subdir)


def told(
    made: Made, tested: Made, job: BuildJob, name: str, version: str, build_string: str, *, subdir: str
) -> dict[str, Any]:
    """Say what became of the one file that a step has left; its path is relative to the cell's folder."""
    ((path, sha256),) = made.paths.items()
    artifact = Artifact(
        path=path.relative_to(job.folder),
        sha256=sha256,
        size=path.stat().st_size,
        cell=job.config,
        name=name,
        version=version,
        build_string=build_string,
        subdir=subdir,
    )
    report = PackageReport(
        artifact=artifact,
        build_seconds=round(made.seconds, 3),
        reused=made.reused,
        tests=records.tests(tested.detail),
    )
    return records.package_as_json(report)


def hashes(*made: Made) -> list[str]:
    """Return the hashes of what steps left, in order."""
    return sorted(sha256 for each in made for sha256 in each.paths.values())
