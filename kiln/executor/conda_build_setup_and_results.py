"""Prepare a config's build by conda-build or mambabuild, and collect its packages."""

from __future__ import annotations

import os
from contextlib import suppress
from typing import TYPE_CHECKING, Any

from kiln import channel_url_credentials, expand, files
from kiln.build import conda_build_command
from kiln.conda_package import reader
from kiln.errors import BrokenPackage, KilnError
from kiln.executor import conda_forge_variables_and_paths
from kiln.job.required_channels_and_network import channel_sources
from kiln.job.untrusted_build_results import open_file_beneath
from kiln.model.build_results import Artifact, PackageReport, TestReport, TestVerdict
from kiln.name_rules import existing_subdirs
from kiln.serialization import to_json
from kiln.variants.cuda_version import cuda_arch_of_config, cuda_version_of_config

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.executor.build_process_outcome import Executor
    from kiln.job.job_context import JobContext

NOTE = "tested by the engine, as part of the build"
UNTESTED = "not tested: it is cross-compiled"
FETCHED = "fetched"  # the config's own package cache
SHARED = "conda"  # packages fetched by any config, in the shared cache
END_OF_LOG = 65_536  # bytes
STAMP = "2026-01-31 23:59:59 "  # the prefix of a log's line
KINDS = (".conda", ".tar.bz2")
RECORD = "urls.txt"  # conda takes only a folder that has this file for a package cache
INDEXES = "cache"  # where conda keeps the indexes of channels, in its first package cache


def write_engine_script(task: JobContext, executor: Executor) -> tuple[str, ...]:
    """Write the script that runs a job's engine, with its input files, into a fresh folder; return its command line.

    For a job with ``debug``, an output's pattern or an empty text, the script prepares that output and opens a shell
    instead.
    """
    feedstock, rendered, folder, cache = task.feedstock, task.rendered, task.folder, executor.package_cache
    inside, config = executor.path_inside, rendered.config.name
    files.remove(folder)
    conda = expand.conda_settings(feedstock.conda_forge_yml)
    call = conda_build_command.CondaBuildCall(
        engine=task.job.options.engine,
        recipe=inside(feedstock.recipe),
        variant_file=inside(feedstock.config_folder / f"{config}.yaml"),
        clobber_file=inside(folder / f"clobber_{config}.yaml"),
        condarc=inside(folder / "condarc"),
        croot=inside(folder / "croot"),
        fetched=inside(folder / FETCHED),
        cache=inside(cache / SHARED),
        channels=channel_url_credentials.add_credentials_to_urls(channel_sources(rendered.config)),
        channel_priority=conda.channel_priority,
        settings=conda.conda_build,
        solver=conda.solver,
        cuda=cuda_version_of_config(rendered.config),
        cuda_arch=cuda_arch_of_config(rendered.config),
        extra={name: task.job.variables.get(name, "") for name in conda_forge_variables_and_paths.EXTRA},
        cross=rendered.config.is_cross,
        subdir=rendered.config.build_platform,
    )
    create_package_caches(folder, cache)
    files.write_text(folder / f"clobber_{config}.yaml", conda_build_command.clobber_file_text(rendered))
    files.write_text(folder / "condarc", conda_build_command.condarc_content(call), mode=0o600)
    files.write_text(folder / "build.sh", conda_build_command.engine_bash_script(call, debug=task.job.options.debug))
    return ("bash", str(inside(folder / "build.sh")))


def create_package_caches(folder: Path, cache: Path) -> None:
    """Make the config's folder with a separate package cache, whose channel indexes are shared by all configs.

    conda-build puts the packages that it made into the first cache to test them, and first removes packages of the
    same name from every cache: in a shared one these may be another config's, under test at the moment.
    """
    indexes = cache / SHARED / INDEXES
    indexes.mkdir(parents=True, exist_ok=True)
    (cache / SHARED / RECORD).touch()
    (folder / FETCHED).mkdir(parents=True)
    (folder / FETCHED / INDEXES).symlink_to(os.path.relpath(indexes, folder / FETCHED))


def move_fetched_packages_to_shared_cache(folder: Path, cache: Path) -> None:
    """Move the packages that the engine fetched to the shared cache; its own packages stay with the config.

    Only on the host, where builds may write there anyway. A package is complete once conda has written its record, and
    an existing folder is not replaced.
    """
    own_names = {file.name.removesuffix(".conda") for file in (folder / "croot").glob("*/*.conda")}
    for record in sorted((folder / FETCHED).glob("*/info/repodata_record.json")):
        package = record.parents[1]
        if package.name in own_names:
            continue
        with suppress(OSError):  # when another config was first
            package.rename(cache / SHARED / package.name)
            for file in (package.with_name(package.name + kind) for kind in KINDS):
                if file.is_file():
                    file.rename(cache / SHARED / file.name)


def error_from_build_log(engine: str, exit_code: int, tail: str, log: Path) -> KilnError:
    """Return the error of an engine, from the end of the config's log, or from ``tail`` without a log."""
    return conda_build_command.error_from_engine_output(engine, exit_code, _log_tail(log) or tail)


def _log_tail(log: Path) -> str:
    """Return the end of a config's log, without the times; empty without a log."""
    with suppress(OSError), log.open("rb") as file:
        file.seek(max(0, log.stat().st_size - END_OF_LOG))
        lines = file.read().decode(errors="replace").splitlines()[1:]
        return "\n".join(line[len(STAMP) :] for line in lines)
    return ""


def failure_reason_lines(error: KilnError | None, log: Path) -> list[str]:
    """Return the reason of an engine's failure as lines for the end of its log, unless they are there already.

    After a traceback, which is long, they are repeated.
    """
    if error is None or conda_build_command.TRACEBACK not in _log_tail(log):
        return []
    return [line.strip(" |") for line in error.why.splitlines()]


def built_package_reports(folder: Path, config: str, *, tested: bool = True) -> list[dict[str, Any]]:
    """Return the engine's finished packages, as JSON values; those with failed tests are in another folder."""
    croot = folder / "croot"
    packages = [file for subdir in existing_subdirs(croot) for file in sorted((croot / subdir).glob("*.conda"))]
    for file in packages:
        open_file_beneath(folder, str(file.relative_to(folder))).close()  # refuses links, and pipes without a writer
    return [to_json(_package_report(file, folder, config, tested=tested)) for file in packages]


def _package_report(file: Path, folder: Path, config: str, *, tested: bool) -> PackageReport:
    index = reader.read_info_json_object(file, "index.json")
    if not all(isinstance(index.get(key), str) for key in ("name", "version", "build")):
        raise BrokenPackage(
            f"{file} has no complete metadata", why="its info/index.json lacks a name, version or build"
        )
    artifact = Artifact(
        path=file.relative_to(folder),
        sha256=files.sha256(file),
        size=file.stat().st_size,
        config=config,
        name=index["name"],
        version=index["version"],
        build_string=index["build"],
        subdir=file.parent.name,
    )
    verdict, note = (TestVerdict.PASSED, NOTE) if tested else (TestVerdict.SKIPPED, UNTESTED)
    tests = TestReport(package=index["name"], verdict=verdict, notes=(note,))
    return PackageReport(artifact=artifact, build_seconds=0.0, reused=False, tests=tests)
