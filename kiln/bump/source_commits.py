"""Sources at a commit: that of the new version, by the tags of their repositories."""

from __future__ import annotations

import re
from typing import TYPE_CHECKING

from kiln.bump.literals import place
from kiln.bump.upstream import references, version_pattern
from kiln.errors import DownloadFailed, RecipeFault

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.bump.changed_source_hashes import Download
    from kiln.bump.literals import Literal
    from kiln.bump.plan import BumpPlan

_TAG = "refs/tags/"


def commits(plan: BumpPlan, folder: Path, *, env: Mapping[str, str]) -> tuple[dict[Literal, str], tuple[str, ...]]:
    """Return the commits of a new version by their literals, and the names of sources that stay at theirs.

    ``folder`` is the recipe's, which paths are relative to; ``env`` is git's environment.

    Raises:
        MissingTool: git is missing.
        DownloadFailed: a repository cannot be reached, or has no tag of the new version.
        RecipeFault: there is no other source, and no tag of the old version is at the commit.
    """
    values: dict[Literal, str] = {}
    unchanged = []
    for pin in plan.pins:
        commit = _commit(pin, plan, folder, env)
        if commit:
            values |= {literal: commit[: len(literal.text)] for literal, _ in pin.hashes}
        else:
            unchanged.append(pin.name)
    if unchanged and not (values or plan.downloads):
        at = place(plan.file, plan.text, plan.pins[0].hashes[0][0].start)
        why = f"no tag of version {plan.old} is at the commit {plan.pins[0].revision}"
        hint = "change the revision by hand, or write a tag with {{ version }}"
        raise RecipeFault("no source depends on the version", at=at, why=why, hint=hint)
    return values, tuple(unchanged)


def _commit(pin: Download, plan: BumpPlan, folder: Path, env: Mapping[str, str]) -> str:
    """Return the commit of the tag that is named like the old version's; empty if no tag of that is at the commit."""
    names = references(pin.git, (f"{_TAG}*",), folder, env=env)
    tags = {name: names.get(f"{name}^{{}}", commit) for name, commit in names.items() if not name.endswith("^{}")}
    for name, commit in tags.items():
        match = version_pattern(plan.old).search(name, len(_TAG))
        if match is None or not commit.startswith(pin.revision):
            continue
        separators = set(re.findall("[._-]", match[0])) or {"."}
        new = f"{name[: match.start()]}{plan.new.replace('.', separators.pop())}{name[match.end() :]}"
        if new in tags:
            return tags[new]
        what = f"{pin.git} has no tag {new.removeprefix(_TAG)}"
        why = f"the recipe has the commit of {name.removeprefix(_TAG)}"
        raise DownloadFailed(what, why=why, hint="check the version, and upstream's tags")
    return ""
