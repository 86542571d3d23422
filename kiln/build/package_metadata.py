"""Add to a package's metadata the entries that conda-build writes and rattler-build does not."""

from __future__ import annotations

import datetime as dt
import fnmatch
import json
import re
from typing import TYPE_CHECKING, Any

from kiln.build import solved_pins
from kiln.compression import FAST
from kiln.conda_package import reader
from kiln.matchspec import legacy

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping, Sequence
    from pathlib import Path

    from kiln.model.rendered import Pin


# Entries with the kernel and the processor of the build machine, which make no difference to the package's files.
_MACHINE = re.compile(rb"^ *- __(?:linux|archspec)=.*\n", re.MULTILINE)


_TIMESTAMP = re.compile(rb"^( *timestamp: ).*$", re.MULTILINE)


def stamp(
    package: Path,
    target: Path,
    *,
    index: Mapping[str, Any],
    edits: Mapping[str, Any] | None = None,
    pins: Sequence[tuple[str, Pin]] = (),
    epoch: int | None = None,
    level: int = FAST,
) -> None:
    """Write ``package`` to ``target`` with ``index`` merged into its index.json and specs in conda-build's form.

    ``edits`` are those of `kiln.build.metadata_edits`. ``pins``, by field of the output, get the
    bounds of the versions that the engine has solved. ``epoch`` is the timestamp to record, in
    seconds; without it, the engine's own clock stays. The same build on another machine with the same timestamp gives
    the same bytes. ``level`` is zstd's, for a package that gets a timestamp.
    """
    timestamp = {} if epoch is None else {"timestamp": 1000 * epoch}
    changes = edits or {}
    solved = solved_pins.solved_packages(package) if pins else {}

    def specs(field: str, texts: Iterable[str]) -> list[str]:
        own = [pin for name, pin in pins if name == field]
        return solved_pins.closed([legacy(text) for text in texts], own, solved)

    def index_of(data: bytes) -> bytes:
        fields = json.loads(data) | dict(index) | timestamp
        sections = solved_pins.SECTIONS.items()
        return _json(fields | {key: specs(field, fields.get(key, [])) for field, key in sections})

    def exports_of(data: bytes) -> bytes:
        return _json({kind: specs(f"run_exports/{kind}", texts) for kind, texts in json.loads(data).items()})

    edits_by_name: Mapping[str, Callable[[bytes], bytes]] = {
        "about.json": lambda data: _json(_about(json.loads(data), changes)),
        "hash_input.json": lambda data: _json(changes["hash_input"]) if "hash_input" in changes else data,
        "index.json": index_of,
        "paths.json": lambda data: _paths(data, changes.get("no_link", ())),
        "run_exports.json": exports_of,
        "recipe/rendered_recipe.yaml": lambda data: _recipe(data, epoch),
    }

    def edit(name: str, data: bytes) -> bytes | None:
        if changes.get("without_recipe") and name.startswith("recipe/"):
            return None
        return edits_by_name[name](data) if name in edits_by_name else data

    reader.rewrite_info(package, target, edit, mtime=epoch, level=level)


def _about(about: dict[str, Any], changes: Mapping[str, Any]) -> dict[str, Any]:
    """Return about.json with the recipe's own values; the engine's ``extra`` counts before the recipe's."""
    extra = {**changes.get("extra", {}), **about.get("extra", {})}
    return {**about, **changes.get("about", {}), **({"extra": extra} if extra else {})}


def _paths(data: bytes, no_link: Iterable[str]) -> bytes:
    """Return paths.json in which the files of these globs are marked as never to be linked."""
    patterns = tuple(no_link)
    if not patterns:
        return data
    paths = json.loads(data)
    for entry in paths["paths"]:
        if any(fnmatch.fnmatchcase(entry["_path"], pattern) for pattern in patterns):
            entry["no_link"] = True
    return _json(paths)


def _recipe(data: bytes, epoch: int | None) -> bytes:
    recipe = _MACHINE.sub(b"", data)
    if epoch is None:
        return recipe
    moment = dt.datetime.fromtimestamp(epoch, tz=dt.timezone.utc)
    return _TIMESTAMP.sub(rb"\g<1>" + f"{moment:%Y-%m-%dT%H:%M:%SZ}".encode(), recipe)


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()
