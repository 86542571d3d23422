"""The feedstocks of the fixtures, and small generated ones."""

from __future__ import annotations

import json
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.recipe import feedstock

if TYPE_CHECKING:
    from collections.abc import Mapping

    from kiln.recipe.feedstock import Feedstock

FIXTURES = Path(__file__).parent / "fixtures"
PINNING = FIXTURES / "pinning" / "conda_build_config.yaml"
NAMES = sorted(path.name for path in (FIXTURES / "feedstocks").iterdir())
LINUX_ONLY = "provider:\n  osx_64: null\n  win_64: null\n"


def expected(name: str) -> dict[str, Any]:
    """Return the reference tools' results for a fixture."""
    results: dict[str, Any] = json.loads((FIXTURES / "feedstocks" / name / "expected.json").read_text())
    return results


def copied(name: str, folder: Path) -> Feedstock:
    """Return a fixture, copied to where it may be written."""
    shutil.copytree(FIXTURES / "feedstocks" / name, folder / name)
    return feedstock.load(folder / name)


def written(
    folder: Path, meta: str, variants: str = "", forge: str = LINUX_ONLY, files: Mapping[str, str] | None = None
) -> Feedstock:
    """Return a feedstock of one recipe, its variants, its settings, and other files by their paths in the feedstock."""
    texts = {"recipe/meta.yaml": meta, "recipe/conda_build_config.yaml": variants, "conda-forge.yml": forge}
    for name, text in {**texts, **(files or {})}.items():
        path = folder / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(text)
    return feedstock.load(folder)
