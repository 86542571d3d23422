"""Write the build job, with paths as the build process sees them."""

from __future__ import annotations

import os
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import emulation, expand, files, render
from kiln.executor import conda_build_setup_and_results, conda_forge_variables_and_paths
from kiln.job.job_descriptions import BuildJob
from kiln.model.build_results import TestVerdict
from kiln.model.rattler_build_settings import PackageSettings
from kiln.run.options import HOST
from kiln.serialization import to_json
from kiln.store import bazel_variables_of_compile_scripts, build_cache
from kiln.store.build_cache import InputHashes

if TYPE_CHECKING:
    from kiln.executor.build_process_outcome import Executor
    from kiln.job.job_context import JobContext
    from kiln.ledger import Ledger

RESULT = "result.json"  # of the build process, in the config's folder


def prepare_build_process_command(
    task: JobContext, executor: Executor, shared_packages: tuple[dict[str, Any], ...]
) -> tuple[str, ...]:
    """Write the input of the build process, and return its command line; ``shared_packages`` are another config's."""
    if task.uses_other_engine:
        return conda_build_setup_and_results.write_engine_script(task, executor)
    task.folder.mkdir(parents=True, exist_ok=True)
    executor.package_cache.mkdir(parents=True, exist_ok=True)
    file = task.folder / "job.json"
    files.write_text(file, make_build_job(task, executor, shared_packages).as_text())
    return executor.job_command(file)


def make_build_job(task: JobContext, executor: Executor, shared_packages: tuple[dict[str, Any], ...]) -> BuildJob:
    """Return the job of the build process, with paths as it sees them."""
    job, inside = task.job, executor.path_inside
    return BuildJob(
        root=inside(task.feedstock.root),
        recipe=inside(task.feedstock.recipe),
        config=job.config,
        options=job.options,
        folder=inside(task.folder),
        cache=inside(executor.package_cache),
        result=inside(task.folder / RESULT),
        extra={name: job.variables[name] for name in conda_forge_variables_and_paths.EXTRA if name in job.variables},
        compile=compile_step_variables(task, executor),
        shared_packages=shared_packages,
        channel=inside(task.layout.root),
        network=executor.on_host or task.has_network,
        build_platform=task.rendered.config.build_platform,
        emulated=emulation.can_run_platform(task.rendered.config.platform, in_container=not executor.on_host)
        and expand.runs_emulated_tests(task.feedstock.conda_forge_yml),
        packages=PackageSettings()
        if job.options.rehearsal
        else expand.package_settings(task.feedstock.conda_forge_yml),
        parent=os.getpid() if executor.on_host else None,
        python=Path(job.python) if job.python and (executor.on_host or job.python_home) else None,
        rehearsal_plan=job.rehearsal_plan,
        image=job.image,
        queue=None if executor.script_queue_folder is None else inside(executor.script_queue_folder),
    )


def compile_step_variables(task: JobContext, executor: Executor) -> dict[str, str]:
    """Return the variables of the compile step."""
    options = task.job.options
    return {
        bazel_variables_of_compile_scripts.DISK_CACHE: str(executor.compile_cache),
        bazel_variables_of_compile_scripts.CACHE_KEY: task.job.cache_key,
        bazel_variables_of_compile_scripts.CPUS: str(task.job.cores),
        bazel_variables_of_compile_scripts.MEMORY: str(task.job.compile_memory // 10**6),
        **({} if executor.distdir is None else {bazel_variables_of_compile_scripts.DISTDIR: str(executor.distdir)}),
        **({bazel_variables_of_compile_scripts.JOBS: str(options.remote_jobs)} if options.remote_jobs else {}),
        **({bazel_variables_of_compile_scripts.FALLBACK: "1"} if options.remote_fallback else {}),
    }


def packages_reused_from_other_configs(task: JobContext, ledger: Ledger) -> tuple[dict[str, Any], ...]:
    """Return the packages that another config has made, as JSON values; empty for a cold build with --rebuild.

    One whose tests were skipped is left out where they run now.
    """
    job = task.job
    if task.uses_other_engine or job.options.rehearsal or (job.options.rebuild and job.cold):
        return ()
    inputs = InputHashes(shared=job.shared, key=job.key)
    packages = build_cache.packages_made_by_other_configs(
        ledger, task.layout, render.close_static_pins(task.rendered).outputs, inputs, job.config
    )
    runs = expand.runs_emulated_tests(task.feedstock.conda_forge_yml) and emulation.can_run_platform(
        task.rendered.config.platform, in_container=job.container != HOST
    )
    return tuple(to_json(report) for report in packages if not (runs and report.tests.verdict is TestVerdict.SKIPPED))
