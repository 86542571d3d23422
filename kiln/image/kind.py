"""The kinds of image that kiln makes from conda packages, each a file of data in ``kinds``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = Path(__file__).with_name("kinds")


@dataclass(frozen=True, slots=True, kw_only=True)
class Kind:
    """What makes an image of packages one of its kind.

    ``product`` are patterns of the packages that change with each release, ``left_out`` packages that programs do not
    need, ``debian`` packages of the system besides its smallest, ``scripts`` programs of ours by their place in the
    image, ``folders`` what is there for mounts.
    """

    name: str
    summary: str
    specs: tuple[str, ...]
    product: tuple[str, ...]
    left_out: tuple[str, ...]
    debian: tuple[str, ...]
    entrypoint: tuple[str, ...]
    environment: Mapping[str, str]
    folder: str
    ports: tuple[int, ...]
    scripts: Mapping[str, Path]
    folders: tuple[str, ...]
    health: tuple[str, ...]


def names() -> tuple[str, ...]:
    """The names of all kinds."""
    return tuple(sorted(path.stem for path in KINDS.glob("*.json")))


def load(name: str) -> Kind:
    """Read a kind."""
    said = json.loads((KINDS / f"{name}.json").read_text(encoding="utf-8"))
    return Kind(
        name=name,
        summary=said["summary"],
        specs=tuple(said["specs"]),
        product=tuple(said["product"]),
        left_out=tuple(said["left_out"]),
        debian=tuple(said["debian"]),
        entrypoint=tuple(said["entrypoint"]),
        environment=said["environment"],
        folder=said["folder"],
        ports=tuple(said["ports"]),
        scripts={place: KINDS / script for place, script in said["scripts"].items()},
        folders=tuple(said["folders"]),
        health=tuple(said["health"]),
    )
