"""A package built again from its record, in the place and the image of the first time, and compared byte for byte."""

from __future__ import annotations

import dataclasses
import hashlib
import json
from typing import TYPE_CHECKING, Any

from kiln import archive, files, pipeline
from kiln.errors import NotReproduced, ProvenanceBroken
from kiln.pipeline import done
from kiln.pipeline.cell import CellBuild, error_of
from kiln.pipeline.process import end_orphans

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.model.feedstock import Feedstock
    from kiln.pipeline.jobs import CellJob
    from kiln.pipeline.plan import RunPlan
    from kiln.pipeline.wishes import Wishes

NEEDED = frozenset({"cell", "container", "engine", "file", "image", "recipe", "sha256"})


def given_by(record: Mapping[str, Any]) -> dict[str, str]:
    """Return the variables that a build had, as far as its record tells them and its packages do."""
    told = {
        "sha": record.get("commit"),
        "remote_url": record.get("remote"),
        "flow_run_id": record.get("extra", {}).get("flow_run_id"),
        "SOURCE_DATE_EPOCH": record.get("epoch"),
    }
    return {name: str(value) for name, value in told.items() if value is not None}


def image_of(record: Mapping[str, Any]) -> str | None:
    """Return the name of the image that a package was built in; the cell's own when the run had several."""
    told = record.get("image") or ""
    return told.split("@")[0] if told and ", " not in told else None


def require_same_recipe(feedstock: Feedstock, record: Mapping[str, Any]) -> None:
    """Refuse to build from another recipe than the record's.

    Raises:
        ProvenanceBroken: telling which commit to have, or what the record lacks.
    """
    if missing := sorted(NEEDED - record.keys()):
        raise ProvenanceBroken(f"the record does not tell {', '.join(missing)}", why="a build needs that")
    if done.recipe_digest(feedstock) == record["recipe"]:
        return
    commit = record.get("commit")
    raise ProvenanceBroken(
        f"the recipe in {feedstock.root} is not the one that {record['file']} was built from",
        why=f"its files have another hash than {record['recipe'][:16]}...",
        hint=f"git checkout {commit}" if commit else "have the recipe as it was; its commit was not recorded",
    )


def rebuild(
    feedstock: Feedstock, wishes: Wishes, machine: pipeline.Machine, package: Path, *, image: str | None
) -> Path:
    """Build a package's cell again, put nothing into the channel, and compare.

    ``wishes`` name the cell of the record, its engine, container and image, ``image`` is that
    with its digest. Returns the package, once it was seen to be the same; that of the second
    build is removed.

    Raises:
        NotReproduced: telling what differs; the second package is kept.
        ProvenanceBroken: when the image of that name is another one now.
    """
    planned = pipeline.plan(feedstock, wishes, machine)
    if image is not None and planned.image != image:
        raise ProvenanceBroken(f"the image is {planned.image} now, and was {image}", hint="have that image here")
    build = CellBuild.of(job_of(planned, feedstock))
    folder = build.task.folder
    with done.waiting(build.task.lock, while_true=lambda: False):
        end_orphans(folder)
        files.remove(folder)
        made = _made(build, package.name)
        if files.sha256(made) == files.sha256(package):
            files.remove(folder)
            return package
        kept = feedstock.artifacts / "rebuilt" / package.name
        files.link_or_copy(made, kept)
        files.remove(folder)
    told = "".join(f"\n    {line}" for line in differences(package, kept))
    raise NotReproduced(
        f"{package.name} came out otherwise", why=f"these differ:{told}", hint=f"the second package is kept: {kept}"
    )


def job_of(planned: RunPlan, feedstock: Feedstock) -> CellJob:
    """Return the one job of a plan, with a log of its own, and nothing taken that was made before.

    As the leader of its group a cell makes every package itself; under another key it finds no compile in a cache.
    """
    ((config, job),) = planned.jobs_of.items()
    log = str(feedstock.artifacts / "logs" / f"rebuild-{config}.log")
    return dataclasses.replace(job, log=log, rebuild=True, leader=True, cache_key=f"{job.cache_key}-rebuild")


def _made(build: CellBuild, name: str) -> Path:
    """Build the cell and return the package of a name."""
    result, outcome = build.made()
    error = error_of(result, outcome, build.task.job)
    if error is not None:
        raise error
    for told in result["packages"]:
        place = build.task.folder / str(told["artifact"]["path"])
        if place.name == name:
            return place
    raise NotReproduced(
        f"the cell {build.task.job.config} makes no {name} any more", why=f"it made {json.dumps(result)}"
    )


def differences(one: Path, other: Path) -> list[str]:
    """Return which files of two packages are not the same, at most twenty."""
    left, right = _contents(one), _contents(other)
    found = [f"{name}: only in one of them" for name in sorted(left.keys() ^ right.keys())]
    found += [
        f"{name}: {_how(left[name], right[name])}"
        for name in sorted(left.keys() & right.keys())
        if left[name] != right[name]
    ]
    return found[:20] or ["nothing inside: only how it is packed"]


def _how(one: tuple[Any, ...], other: tuple[Any, ...]) -> str:
    names = ("content", "mode", "time", "kind")
    return ", ".join(name for name, left, right in zip(names, one, other, strict=True) if left != right)


def _contents(package: Path) -> dict[str, tuple[Any, ...]]:
    with archive.reading(package) as members:
        return {
            member.name: (
                hashlib.sha256(content.read()).hexdigest() if content else member.linkname,
                member.mode,
                member.mtime,
                member.type,
            )
            for member, content in members
        }
