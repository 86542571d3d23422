"""Build a package again from its record and compare byte for byte; collect what jobs of a CI have built."""

from __future__ import annotations

import dataclasses
import json
import time
from typing import TYPE_CHECKING, Any

from kiln.base import files, git
from kiln.base.errors import BrokenPackage, NotReproduced, ProvenanceBroken, ReleaseRefused, UsageError
from kiln.base.process_table import kill_orphans_in_folder
from kiln.build.job.collected import read_collected_results
from kiln.conda import package_reader
from kiln.run import runner
from kiln.run.config_process import ConfigBuild, config_build_error
from kiln.state.ledger import json_columns
from kiln.state.ledger.ledger import Ledger
from kiln.state.results import GOOD, ConfigState, MatrixReport
from kiln.state.store import cache, deliveries
from kiln.state.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from collections.abc import Mapping, Sequence
    from pathlib import Path

    from kiln.build.job.job import ConfigJob, HostMachine, RunOptions
    from kiln.recipe.feedstock import Feedstock
    from kiln.run.plan import RunPlan
    from kiln.state.store.cache import RemoteConfig


MOST = 20  # differences that are named
LARGEST = 1 << 20  # bytes of a file whose content is compared
LONGEST_LINE = 60  # characters of a line that are shown
_NAMES = ("content", "mode", "time", "kind")


def described_differences(one: Path, other: Path) -> list[str]:
    """Return which files of two packages are not the same, at most twenty, and the first place in each."""
    first, second = _member_attributes(one), _member_attributes(other)
    lines = [f"{name}: only in {'the first' if name in first else 'the second'}" for name in first.keys() ^ second]
    changed = [name for name in first.keys() & second.keys() if first[name] != second[name]]
    paths = sorted(changed)[:MOST]
    texts = [_small_file_contents(package, set(paths)) for package in (one, other)]
    for name in paths:
        place = described_content_difference(*(text.get(name) for text in texts))
        pairs = zip(_NAMES, first[name], second[name], strict=True)
        lines.append(f"{name}: {', '.join(attribute for attribute, one, two in pairs if one != two)}{place}")
    return sorted(lines)[:MOST] or ["only the compression: all files are identical"]


def described_content_difference(one: bytes | None, other: bytes | None) -> str:
    """Return in words where two contents begin to differ; empty where one is too large to compare."""
    if one is None or other is None or one == other:
        return ""
    try:
        lines = [data.decode().split("\n") for data in (one, other)]
    except UnicodeDecodeError:
        place = next((i for i, (a, b) in enumerate(zip(one, other, strict=False)) if a != b), min(len(one), len(other)))
        return f" (from byte {place:,}; {len(one):,} and {len(other):,} bytes)"
    pairs = enumerate(zip(*lines, strict=False), 1)
    number, pair = next(((number, pair) for number, pair in pairs if pair[0] != pair[1]), (0, ("", "")))
    if not number:
        return f" ({len(lines[0])} and {len(lines[1])} lines)"
    return f" (line {number}: {_line_excerpt(*pair)} and {_line_excerpt(*reversed(pair))})"


def _line_excerpt(line: str, other: str) -> str:
    """Return a line from a little before where it differs from another one."""
    place = next((i for i, (a, b) in enumerate(zip(line, other, strict=False)) if a != b), 0)
    start = max(0, place - LONGEST_LINE // 2)
    return ascii(("..." if start else "") + line[start : start + LONGEST_LINE])


def _member_attributes(package: Path) -> dict[str, tuple[Any, ...]]:
    with package_reader.open_package_members(package) as members:
        return {
            member.name: (
                files.open_file_sha256(content) if content else member.linkname,
                member.mode,
                member.mtime,
                member.type,
            )
            for member, content in members
        }


def _small_file_contents(package: Path, names: set[str]) -> dict[str, bytes]:
    if not names:
        return {}
    with package_reader.open_package_members(package) as members:
        return {
            member.name: content.read()
            for member, content in members
            if member.name in names and content and member.size <= LARGEST
        }


def feedstock_folder_in_placeholders(package: Path) -> str:
    """Return the feedstock's folder that a package was built in, by its placeholders; empty where it has none."""
    paths = package_reader.read_info_json_object(package, "paths.json").get("paths")
    for item in paths if isinstance(paths, list) else ():
        placeholder = item.get("prefix_placeholder") if isinstance(item, dict) else None
        if isinstance(placeholder, str) and "/build_artifacts/" in placeholder:
            return placeholder.partition("/build_artifacts/")[0]
    return ""


REPORT = "report.json"


def import_ci_job_results(feedstock: Feedstock, folders: Sequence[Path]) -> tuple[tuple[str, int, bool], ...]:
    """Put the packages of jobs into the channel, and their configs into the ledger.

    Return each config with the number of its packages, and whether the job has its log.

    Raises:
        BrokenPackage: a report is invalid, or a package is missing.
        HashMismatch: a package is not the one of its report.
        ReleaseRefused: a config is not finished, or jobs built different commits.
        UnknownConfig: the feedstock has no such config.
        UsageError: a folder has no report.
    """
    reports = [(folder, _read_job_report(folder / REPORT)) for given in folders for folder in _job_folders(given)]
    commits = {report.commit for _, report in reports}
    if len(commits) > 1:
        raise ReleaseRefused(
            "the jobs built different commits",
            why=", ".join(sorted(commit or "unknown" for commit in commits)),
            hint="collect the jobs of one run",
        )
    names = [report.configs[0].config for _, report in reports]
    remotes = {entry.config: entry for entry in cache.remote_configs(feedstock, names, options=("a CI job",))}
    layout = ArtifactLayout.for_feedstock(feedstock)
    cache.index_channel(layout)
    try:
        return tuple(
            _store_job_results(feedstock, folder, report, remotes[report.configs[0].config])
            for folder, report in reports
        )
    finally:  # one index of all, since each takes longer with the packages before
        cache.index_channel(layout)


def _job_folders(folder: Path) -> list[Path]:
    """Return the folder of a job, or those of several jobs in it."""
    if (folder / REPORT).is_file():
        return [folder]
    jobs = sorted(path.parent for path in folder.glob(f"*/{REPORT}"))
    if not jobs:
        raise UsageError(f"no {REPORT} in {folder}, nor in a folder of it", hint="save that of kiln report --json")
    return jobs


def _read_job_report(path: Path) -> MatrixReport:
    try:
        data = deliveries.read_report(path)
        data.pop("phases", None)  # a sum of what the steps have
        for config in data["configs"]:
            config.pop("error", None)  # what `kiln build --json` adds
        report = json_columns.record_from_json(MatrixReport, data)
    except (OSError, ValueError, LookupError, TypeError, AttributeError, RecursionError) as error:
        raise BrokenPackage(
            f"{path} is not the report of one config", why=f"{type(error).__name__}: {error}"
        ) from error
    if len(report.configs) != 1:
        hint = "build each config by a command of its own: kiln build CONFIG"
        raise BrokenPackage(f"{path} is not the report of one config", why=f"it has {len(report.configs)}", hint=hint)
    (config_run,) = report.configs
    if report.rehearsal or config_run.state not in GOOD:
        state = "rehearsed" if report.rehearsal else config_run.state.value
        raise ReleaseRefused(f"{config_run.config} is {state}, says {path}", hint="collect finished builds alone")
    return report


def _store_job_results(
    feedstock: Feedstock, folder: Path, report: MatrixReport, remote: RemoteConfig
) -> tuple[str, int, bool]:
    (config,) = report.configs
    collected = read_collected_results(folder, worker=str(folder), config=config.config, packages_in="")
    added = cache.add_collected_packages(feedstock, remote, collected.packages, index=False)
    layout = ArtifactLayout.for_feedstock(feedstock)
    entry = dataclasses.replace(config, state=ConfigState.DONE, packages=added, log=None)
    with Ledger(layout.ledger) as ledger:
        number = ledger.begin_run(dataclasses.replace(report, configs=(entry,), started=report.started or time.time()))
        if collected.log is not None:
            log = layout.log_file(number, config.config)
            log.parent.mkdir(parents=True, exist_ok=True)
            files.copy(collected.log, log)
            ledger.update_config(number, dataclasses.replace(entry, log=log))
        ledger.end_run(number, at=report.finished)
    return config.config, len(added), collected.log is not None


NEEDED = frozenset({"config", "container", "engine", "file", "image", "recipe", "sha256"})
OPTIONAL = frozenset({"image", "commit", "remote"})


def recorded_build_variables(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables of a build that are in its record."""
    values = {
        "sha": record.get("commit"),
        "remote_url": record.get("remote"),
        "flow_run_id": record.get("extra", {}).get("flow_run_id"),
        "SOURCE_DATE_EPOCH": record.get("epoch"),
    }
    return {name: str(value) for name, value in values.items() if value is not None}


def recorded_image_name(record: Mapping[str, Any]) -> str | None:
    """Return the name of the image that a package was built in; the config's own when the run had several."""
    images = record.get("image") or ""
    return images.split("@")[0] if images and ", " not in images else None


def require_same_recipe(feedstock: Feedstock, record: Mapping[str, Any]) -> None:
    """Refuse to build from another recipe than the record's.

    Raises:
        ProvenanceBroken: with the commit to check out, or the missing fields.
    """
    if missing_keys := sorted(NEEDED - record.keys()):
        raise ProvenanceBroken(f"the record lacks {', '.join(missing_keys)}", why="a rebuild needs these fields")
    texts = {key: record.get(key) for key in (*NEEDED, "commit", "remote")}
    wrong = [key for key, value in texts.items() if not isinstance(value, str) and (value or key not in OPTIONAL)]
    if wrong or not isinstance(record.get("extra", {}), dict):
        raise ProvenanceBroken(f"the record is invalid: {', '.join(wrong) or 'extra'} has an invalid value")
    if cache.recipe_digest(feedstock) == record["recipe"]:
        return
    commit = git.base_commit(record.get("commit"))
    raise ProvenanceBroken(
        f"the recipe in {feedstock.root} is not the one that {record['file']} was built from",
        why=f"its files have another hash than {record['recipe'][:16]}...",
        hint=f"git checkout {commit}" if commit else "restore the recipe as it was; its commit was not recorded",
    )


def rebuild_and_compare(
    feedstock: Feedstock, options: RunOptions, machine: HostMachine, package: Path, *, image: str | None
) -> Path:
    """Build a package's config again, without publishing it, and compare.

    ``options`` name the config of the record, its engine, container and image, ``image`` is that with its digest.
    Return the package if the second one is identical; the second one is removed.

    Raises:
        NotReproduced: with the differences; the second package is kept.
        ProvenanceBroken: when the image's name has another digest now.
    """
    planned = runner.plan_run(feedstock, options, machine)
    if image is not None and planned.image != image:
        raise ProvenanceBroken(f"the image is {planned.image} now, and was {image}", hint="fetch the former image")
    build = ConfigBuild.from_job(_rebuild_job(planned), planned.process_environment)
    folder = build.task.folder
    with cache.hold_lock(build.task.lock_file, while_true=lambda: False):
        kill_orphans_in_folder(folder)
        files.remove(folder)
        rebuilt = _rebuilt_package(build, package.name)
        if files.sha256(rebuilt) == files.sha256(package):
            files.remove(folder)
            return package
        copy = build.task.layout.safe_path("rebuilt", package.name)
        files.link_or_copy(rebuilt, copy)
        files.remove(folder)
    lines = "".join(f"\n    {line}" for line in described_differences(package, copy))
    hint = f"the second package is kept: {copy}"
    place = feedstock_folder_in_placeholders(package)
    if place and place != str(feedstock.root):
        hint += f"; the first one was built in {place}, which is in its files: build there too (--into {place})"
    raise NotReproduced(f"{package.name} was not reproduced", why=f"these differ:{lines}", hint=hint)


def _rebuild_job(planned: RunPlan) -> ConfigJob:
    """Return the one job of a plan, with a separate log, and without reused packages.

    A cold build makes every package itself; under another key it finds no compile in a cache.
    """
    ((config, job),) = planned.jobs_of.items()
    log = str(planned.layout.safe_path("logs", f"rebuild-{config}.log"))
    return dataclasses.replace(
        job,
        log=log,
        options=dataclasses.replace(job.options, rebuild=True),
        cold=True,
        cache_key=f"{job.cache_key}-rebuild",
    )


def _rebuilt_package(build: ConfigBuild, name: str) -> Path:
    result, outcome = build.run_build_process()
    error = config_build_error(result, outcome, build.task.job)
    if error is not None:
        raise error
    for package in result["packages"]:
        place = build.task.folder / str(package["artifact"]["path"])
        if place.name == name:
            return place
    raise NotReproduced(
        f"the config {build.task.job.config} no longer makes {name}", why=f"it made {json.dumps(result)}"
    )
