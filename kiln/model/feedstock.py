"""A feedstock on disk."""

from __future__ import annotations

from dataclasses import dataclass
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from pathlib import Path


@dataclass(frozen=True, slots=True, kw_only=True)
class Feedstock:
    """The folders and files of one feedstock; ``root`` is absolute."""

    root: Path

    @property
    def recipe(self) -> Path:
        """The recipe folder."""
        return self.root / "recipe"

    @property
    def meta(self) -> Path:
        """The recipe file in conda-build's format (v0)."""
        return self.recipe / "meta.yaml"

    @property
    def recipe_v1(self) -> Path:
        """The recipe file in rattler-build's format (v1)."""
        return self.recipe / "recipe.yaml"

    @property
    def config_folder(self) -> Path:
        """The folder with one generated variant file per config."""
        return self.root / ".ci_support"

    @property
    def config_names(self) -> tuple[str, ...]:
        """The names of the configs in that folder, sorted."""
        return tuple(sorted(file.stem for file in self.config_folder.glob("*.yaml")))

    @property
    def conda_forge_yml(self) -> Path:
        """The file with conda-forge's settings."""
        return self.root / "conda-forge.yml"

    @property
    def artifacts(self) -> Path:
        """The folder of everything that is built."""
        return self.root / "build_artifacts"
