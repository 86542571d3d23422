"""The kinds of slim images, each described by a JSON file in ``kinds``."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import serialization

if TYPE_CHECKING:
    from collections.abc import Mapping

KINDS = Path(__file__).with_name("kinds")


@dataclass(frozen=True, slots=True, kw_only=True)
class ImageKind:
    """A kind of slim image.

    ``product`` are patterns of the packages that change with each release, ``left_out`` the packages that programs do
    not need, ``debian`` additional packages of the system, ``scripts`` kiln's scripts by their path in the image,
    ``folders`` mount points.
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


def read_image_kind(name: str) -> ImageKind:
    """Read a kind."""
    data = json.loads((KINDS / f"{name}.json").read_text(encoding="utf-8"))
    scripts = {path: str(KINDS / script) for path, script in data["scripts"].items()}
    return serialization.from_json_values(ImageKind, {**data, "name": name, "scripts": scripts})
