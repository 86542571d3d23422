"""The folder .ci_support: its differences from a matrix, and writing it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kiln import files
from kiln.expand.config_file import text

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kiln.model.build_config import BuildConfig
    from kiln.model.feedstock import Feedstock


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The differences of .ci_support from the matrix: names of files to add, change and remove, and a unified diff."""

    missing: tuple[str, ...]
    changed: tuple[str, ...]
    stale: tuple[str, ...]
    lines: tuple[str, ...]

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed or self.stale)

    @property
    def summary(self) -> str:
        """The differences in one line: ``2 added, 1 changed, 3 removed``."""
        counts = (("added", self.missing), ("changed", self.changed), ("removed", self.stale))
        return ", ".join(f"{len(names)} {word}" for word, names in counts if names)


def drift(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> Drift:
    """Return the differences of the files in .ci_support from those of the configs."""
    existing, generated = _existing(feedstock), _generated(configs)
    names = sorted(generated.keys() | existing.keys())
    lines = tuple(line for name in names for line in _difference(name, existing, generated))
    return replace(_changes(existing, generated), lines=lines)


def _changes(existing: Mapping[str, str], generated: Mapping[str, str]) -> Drift:
    common = sorted(generated.keys() & existing.keys())
    return Drift(
        missing=tuple(sorted(generated.keys() - existing.keys())),
        changed=tuple(name for name in common if existing[name] != generated[name]),
        stale=tuple(sorted(existing.keys() - generated.keys())),
        lines=(),
    )


def write(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> Drift:
    """Write exactly the configs' files to .ci_support, each atomically; return the changes."""
    for folder in (feedstock.configs, feedstock.root / ".github" / "workflows"):  # checked before anything is written
        files.safe_path_inside(folder, feedstock.root)
    with files.folder_locked(feedstock.root):
        return _write(feedstock, _generated(configs))


def _write(feedstock: Feedstock, generated: Mapping[str, str]) -> Drift:
    changes = _changes(_existing(feedstock), generated)
    for name in (*changes.missing, *changes.changed):
        files.write_text(feedstock.configs / name, generated[name])
    for name in changes.stale:
        files.remove(feedstock.configs / name)
    return changes


def _generated(configs: Iterable[BuildConfig]) -> dict[str, str]:
    return {f"{config.name}.yaml": text(config) for config in configs}


def _existing(feedstock: Feedstock) -> dict[str, str]:
    files = [path for path in feedstock.configs.glob("*.yaml") if path.is_file()]
    return {path.name: path.read_text(encoding="utf-8", errors="replace") for path in files}


def _difference(name: str, existing: Mapping[str, str], generated: Mapping[str, str]) -> Iterator[str]:
    if existing.get(name) == generated.get(name):
        return
    import difflib

    before, after = (texts.get(name, "").splitlines() for texts in (existing, generated))
    old = f".ci_support/{name}" if name in existing else "/dev/null"
    new = f".ci_support/{name}" if name in generated else "/dev/null"
    yield from difflib.unified_diff(before, after, old, new, n=1, lineterm="")
