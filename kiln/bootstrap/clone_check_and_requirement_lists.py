"""The clone that kiln runs from, and what of it an installation by pip has too."""

from __future__ import annotations

from pathlib import Path

from kiln.errors import MissingTool

PACKAGE = Path(__file__).parents[1]


def requirements_file(name: str) -> Path:
    """Return a hash-locked list of packages: the clone's, or the copy in kiln's wheel."""
    path = PACKAGE.parent / "requirements" / name
    return path if path.is_file() else PACKAGE / "requirements" / name


def require_clone(what: str, root: Path = PACKAGE.parent) -> None:
    """Check that kiln runs from a clone, whose playbooks and lists of packages ``what`` needs.

    Raises:
        MissingTool: pip has installed it.
    """
    if not all((root / name).exists() for name in ("build-locally.py", "requirements/run.txt", "ansible")):
        raise MissingTool(
            f"{what} needs a clone of kiln's repository, and this kiln is in {root}",
            why="its playbooks and the files that it sends to workers are not part of the installed package",
            hint="in a clone: python build-locally.py --help, then .venv/bin/kiln -C FEEDSTOCK ...",
        )
