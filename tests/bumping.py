"""Feedstocks whose sources are files of this machine, to be bumped without a network."""

from __future__ import annotations

import contextlib
import hashlib
from typing import TYPE_CHECKING

from kiln.feedstock.bump import bump
from tests import builders

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from kiln.feedstock.bump.changes import BumpPlan
    from kiln.recipe.feedstock import Feedstock

OLD = hashlib.sha256(b"old").hexdigest()


def feedstock(root: Path, text: str, *, v1: bool = False, configs: Mapping[str, str] | None = None) -> Feedstock:
    """Return a feedstock of one recipe, in either format, with configs by their names."""
    return builders.feedstock(root, text, v1=v1, configs=configs)


def released(folder: Path, *names: str) -> dict[str, str]:
    """Write the files of a release, each with another content, and return their SHA-256 by name."""
    folder.mkdir(parents=True, exist_ok=True)
    hashes = {}
    for name in names:
        data = f"the release {name}".encode()
        (folder / name).write_bytes(data)
        hashes[name] = hashlib.sha256(data).hexdigest()
    return hashes


@contextlib.contextmanager
def ignored(_: str) -> Iterator[Callable[[int, int | None], None]]:
    """Ignore the progress of a download."""
    yield lambda _done, _size: None


def bumped(feedstock: Feedstock, version: str, env: Mapping[str, str] | None = None) -> BumpPlan:
    """Bump a feedstock without writing it."""
    return bump.prepare_version_bump(feedstock, version, env=env or {}, on_file=ignored)


def changed_lines(plan: BumpPlan) -> dict[int, str]:
    """Return the lines that a bump changes, by their numbers; the others are the same, byte for byte."""
    before, after = (text.splitlines(keepends=True) for text in (plan.text, plan.changed_text))
    assert len(before) == len(after)
    pairs = enumerate(zip(before, after, strict=True), 1)
    return {number: new.strip() for number, (old, new) in pairs if old != new}
