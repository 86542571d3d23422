"""Collect what the jobs of a CI have built, each on a machine of its own, for one release.

A folder has a job's ``report.json``, as ``kiln report --json`` prints it, and its packages below their subdirs. Neither
is trusted: packages must have the hashes of the report, and a release judges them as any others.
"""

from __future__ import annotations

import dataclasses
import time
from typing import TYPE_CHECKING

from kiln.errors import BrokenPackage, ReleaseRefused, UsageError
from kiln.fleet import collect
from kiln.ledger import Ledger, run_record_json_columns
from kiln.model.run import GOOD, ConfigState, MatrixReport
from kiln.store import build_cache, configs_built_on_workers, delivery_check
from kiln.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from collections.abc import Sequence
    from pathlib import Path

    from kiln.model.feedstock import Feedstock
    from kiln.store.configs_built_on_workers import RemoteConfig

REPORT = "report.json"


def import_ci_job_results(feedstock: Feedstock, folders: Sequence[Path]) -> tuple[tuple[str, int], ...]:
    """Put the packages of jobs into the channel, and their configs into the ledger; return configs and their packages.

    Raises:
        BrokenPackage: a report is invalid.
        HashMismatch: a package is missing, or not the one of its report.
        ReleaseRefused: a config is not finished, or jobs built different commits.
        UnknownConfig: the feedstock has no such config.
        UsageError: a folder has no report.
    """
    reports = [(folder, read_job_report(folder / REPORT)) for given in folders for folder in _job_folders(given)]
    commits = {report.commit for _, report in reports}
    if len(commits) > 1:
        raise ReleaseRefused(
            "the jobs built different commits",
            why=", ".join(sorted(commit or "unknown" for commit in commits)),
            hint="collect the jobs of one run",
        )
    names = [report.configs[0].config for _, report in reports]
    remotes = {
        entry.config: entry
        for entry in configs_built_on_workers.remote_configs(feedstock, names, options=("a CI job",))
    }
    layout = ArtifactLayout.for_feedstock(feedstock)
    build_cache.index_channel(layout)
    try:
        return tuple(
            _store_job_results(feedstock, folder, report, remotes[report.configs[0].config])
            for folder, report in reports
        )
    finally:  # one index of all, since each takes longer with the packages before
        build_cache.index_channel(layout)


def _job_folders(folder: Path) -> list[Path]:
    """Return the folder of a job, or those of several jobs in it."""
    if (folder / REPORT).is_file():
        return [folder]
    jobs = sorted(path.parent for path in folder.glob(f"*/{REPORT}"))
    if not jobs:
        raise UsageError(f"no {REPORT} in {folder}, nor in a folder of it", hint="save that of kiln report --json")
    return jobs


def read_job_report(path: Path) -> MatrixReport:
    """Return the report of a job.

    Raises:
        BrokenPackage: it is invalid, or not of one config.
        ReleaseRefused: the config is not finished, or was rehearsed.
    """
    try:
        data = delivery_check.read_report(path)
        for config in data["configs"]:
            config.pop("error", None)  # what `kiln build --json` adds
        report = run_record_json_columns.record_from_json(MatrixReport, data)
        (config_run,) = report.configs
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenPackage(
            f"{path} is not the report of one config", why=f"{type(error).__name__}: {error}"
        ) from error
    if report.rehearsal or config_run.state not in GOOD:
        state = "rehearsed" if report.rehearsal else config_run.state.value
        raise ReleaseRefused(f"{config_run.config} is {state}, says {path}", hint="collect finished builds alone")
    return report


def _store_job_results(
    feedstock: Feedstock, folder: Path, report: MatrixReport, remote: RemoteConfig
) -> tuple[str, int]:
    (config,) = report.configs
    collected = collect.read_collected_results(folder, worker=str(folder), config=config.config, packages_in="")
    added = configs_built_on_workers.add_collected_packages(feedstock, remote, collected.packages, index=False)
    entry = dataclasses.replace(config, state=ConfigState.DONE, packages=added, log=None)
    with Ledger(ArtifactLayout.for_feedstock(feedstock).ledger) as ledger:
        number = ledger.begin_run(dataclasses.replace(report, configs=(entry,), started=report.started or time.time()))
        ledger.end_run(number)
    return config.config, len(added)
