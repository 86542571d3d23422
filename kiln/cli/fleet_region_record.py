"""The region and cloud of a run, kept in its folder: it is resumed and torn down there, whatever is set later.

Asked in another region, a provider lists none of the run's workers, which would count as gone.
"""

from __future__ import annotations

import json
from typing import TYPE_CHECKING

from kiln.errors import UsageError

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

FILE = "region.json"
# Variables of the environment that say which part of which cloud is asked.
NAMES = {"aws": ("AWS_REGION",), "openstack": ("OS_AUTH_URL", "OS_CLOUD", "OS_REGION_NAME")}
AWS = "AWS_REGION"


def named(provider: str, environment: Mapping[str, str], aws_region: str = "") -> dict[str, str]:
    """Return the region and cloud that are named now; ``aws_region`` is that of the playbooks' variables."""
    names = {name: environment[name] for name in NAMES.get(provider, ()) if environment.get(name)}
    return {**names, AWS: aws_region} if aws_region and provider == "aws" else names


def keep(folder: Path, provider: str, place: Mapping[str, str], *, default: str) -> None:
    """Store where a run begins; ``default`` is AWS's region when none is named."""
    from kiln import files

    if provider in NAMES:
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        place = {AWS: default, **place} if provider == "aws" else place
        files.write_text(folder / FILE, json.dumps({"provider": provider, "place": dict(place)}))


def run_variables(folder: Path, run: str, provider: str, place: Mapping[str, str]) -> dict[str, str]:
    """Return the variables of the environment for the playbooks of a run; those of an earlier kiln are unknown.

    Raises:
        UsageError: when ``place``, which is named now, is another one than that in which the run began.
    """
    from kiln.fleet.playbook_runner import read_json

    data = read_json(folder / FILE)
    stored = data.get("place") if data.get("provider") == provider else None
    if not isinstance(stored, dict):
        return {}
    known = {name: str(text) for name, text in stored.items() if name in NAMES.get(provider, ())}
    for name, text in place.items():
        if known.get(name, text) != text:
            raise UsageError(
                f"the fleet run {run} is in {known[name]}, and {name} is {text}",
                why="its workers would not be found there, and count as gone",
                hint=f"set {name}={known[name]}, then run this command again",
            )
    return known
