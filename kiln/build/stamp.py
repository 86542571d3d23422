"""What conda-build writes into a package's metadata and rattler-build does not."""

from __future__ import annotations

import datetime as dt
import json
import re
from typing import TYPE_CHECKING, Any

from kiln import archive
from kiln.matchspec import legacy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


# What tells the kernel and the processor that a package was built on, and makes no difference to what is in it.
_MACHINE = re.compile(rb"^ *- __(?:linux|archspec)=.*\n", re.MULTILINE)


_TIMESTAMP = re.compile(rb"^( *timestamp: ).*$", re.MULTILINE)


def stamp(package: Path, target: Path, *, index: Mapping[str, Any], epoch: int | None = None) -> None:
    """Write ``package`` to ``target`` with ``index`` laid over its index.json and specs in conda-build's form.

    ``epoch`` is when the package is said to be made, in seconds; without it, the engine's own clock stays. The same
    build on another machine as of the same moment gives the same bytes.
    """
    told = {} if epoch is None else {"timestamp": 1000 * epoch}

    def edit(name: str, data: bytes) -> bytes:
        match name:
            case "index.json":
                return _json(_index(json.loads(data) | dict(index) | told))
            case "run_exports.json":
                return _json({kind: [legacy(spec) for spec in specs] for kind, specs in json.loads(data).items()})
            case "recipe/rendered_recipe.yaml":
                return _recipe(data, epoch)
            case _:
                return data

    archive.rewrite_info(package, target, edit, mtime=epoch)


def _recipe(data: bytes, epoch: int | None) -> bytes:
    found = _MACHINE.sub(b"", data)
    if epoch is None:
        return found
    moment = dt.datetime.fromtimestamp(epoch, tz=dt.timezone.utc)
    return _TIMESTAMP.sub(rb"\g<1>" + f"{moment:%Y-%m-%dT%H:%M:%SZ}".encode(), found)


def _index(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {key: [legacy(spec) for spec in fields.get(key, [])] for key in ("depends", "constrains")}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()
