"""What conda-build writes into a package's metadata and rattler-build does not."""

from __future__ import annotations

import json
from typing import TYPE_CHECKING, Any

from kiln import archive
from kiln.matchspec import legacy

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path


def stamp(package: Path, target: Path, *, index: Mapping[str, Any]) -> None:
    """Write ``package`` to ``target`` with ``index`` laid over its index.json and specs in conda-build's form."""

    def edit(name: str, data: bytes) -> bytes:
        match name:
            case "index.json":
                return _json(_index(json.loads(data) | dict(index)))
            case "run_exports.json":
                return _json({kind: [legacy(spec) for spec in specs] for kind, specs in json.loads(data).items()})
            case _:
                return data

    archive.rewrite_info(package, target, edit)


def _index(fields: dict[str, Any]) -> dict[str, Any]:
    return fields | {key: [legacy(spec) for spec in fields.get(key, [])] for key in ("depends", "constrains")}


def _json(value: Mapping[str, Any]) -> bytes:
    return json.dumps(value, indent=2, sort_keys=True).encode()
