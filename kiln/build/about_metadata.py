"""Add to a package's metadata the entries that conda-build writes and rattler-build does not."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import TYPE_CHECKING, Any

from kiln.conda_package import reader
from kiln.matchspec import legacy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


# Entries with the kernel and the processor of the build machine, which make no difference to the package's files.
_MACHINE = re.compile(rb"^ *- __(?:linux|archspec)=.*\n", re.MULTILINE)


_TIMESTAMP = re.compile(rb"^( *timestamp: ).*$", re.MULTILINE)


def stamp(package: Path, target: Path, *, index: Mapping[str, Any], epoch: int | None = None) -> None:
    """Write ``package`` to ``target`` with ``index`` merged into its index.json and specs in conda-build's form.

    ``epoch`` is the timestamp to record, in seconds; without it, the engine's own clock stays. The same build on
    another machine with the same timestamp gives the same bytes.
    """
    timestamp = {} if epoch is None else {"timestamp": 1000 * epoch}

    def edit(name: str, data: bytes) -> bytes:
        match name:
            case "index.json":
                return _json(_index(json.loads(data) | dict(index) | timestamp))
            case "run_exports.json":
                return _json({kind: [legacy(spec) for spec in specs] for kind, specs in json.loads(data).items()})
            case "recipe/rendered_recipe.yaml":
                return _recipe(data, epoch)
            case _:
                return data

    reader.rewrite_info(package, target, edit, mtime=epoch)


def _recipe(data: bytes, epoch: int | None) -> bytes:
    recipe = _MACHINE.sub(b"", data)
    if epoch is None:
        return recipe
    moment = dt.datetime.fromtimestamp(epoch, tz=dt.timezone.utc)
    return _TIMESTAMP.sub(rb"\g<1>" + f"{moment:%Y-%m-%dT%H:%M:%SZ}".encode(), recipe)


def _index(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {key: [legacy(spec) for spec in fields.get(key, [])] for key in ("depends", "constrains")}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()
