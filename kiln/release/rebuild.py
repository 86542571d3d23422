"""Build a package again from its record, in the same folder and image, and compare byte for byte."""

from __future__ import annotations

import dataclasses
import json
from typing import TYPE_CHECKING, Any

from kiln import files, git
from kiln.errors import NotReproduced, ProvenanceBroken
from kiln.process_table import kill_orphans_in_folder
from kiln.release.package_byte_differences import described_differences, feedstock_folder_in_placeholders
from kiln.run import feedstock_run
from kiln.run.config_build_process_main import ConfigBuild, config_build_error
from kiln.store import build_cache

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.job.host_environment_and_python import HostMachine
    from kiln.job.job_descriptions import ConfigJob
    from kiln.model.feedstock import Feedstock
    from kiln.run.options import RunOptions
    from kiln.run.plan import RunPlan

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
    if build_cache.recipe_digest(feedstock) == record["recipe"]:
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
    planned = feedstock_run.plan_run(feedstock, options, machine)
    if image is not None and planned.image != image:
        raise ProvenanceBroken(f"the image is {planned.image} now, and was {image}", hint="fetch the former image")
    build = ConfigBuild.from_job(rebuild_job(planned))
    folder = build.task.folder
    with build_cache.hold_lock(build.task.lock_file, while_true=lambda: False):
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


def rebuild_job(planned: RunPlan) -> ConfigJob:
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
    """Build the config and return the package of a name."""
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
