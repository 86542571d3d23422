"""The folder .ci_support: its differences from a matrix, writing it, and the check before configs are built from it."""

from __future__ import annotations

from dataclasses import dataclass, replace
from typing import TYPE_CHECKING

from kiln import files, limits
from kiln.console.text import count_text
from kiln.errors import KilnError
from kiln.expand import ci_support_config_file, keys_needing_pinning, matrix, matrix_settings
from kiln.expand.ci_support_config_file import config_file_text
from kiln.variants.files import as_list, load_variant_file

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kiln.model.feedstock import Feedstock
    from kiln.model.matrix_config import BuildConfig


# Keys whose values conda-smithy computes from several files, or that are not values.
_COMPUTED = frozenset(
    [
        "docker_image",
        "zip_keys",
        "pin_run_as_build",
        "extend_keys",
        "MACOSX_DEPLOYMENT_TARGET",
        "MACOSX_SDK_VERSION",
        "c_stdlib_version",
        "target_platform",
        "cdt_name",
    ]
)


@dataclass(frozen=True, slots=True, kw_only=True)
class Drift:
    """The differences of .ci_support from the matrix: names of files to add, change and remove, and a unified diff."""

    missing: tuple[str, ...]
    changed: tuple[str, ...]
    stale: tuple[str, ...]
    lines: tuple[str, ...] = ()

    def __bool__(self) -> bool:
        return bool(self.missing or self.changed or self.stale)

    @property
    def summary(self) -> str:
        """The differences in one line: ``2 added, 1 changed, 3 removed``."""
        counts = (("added", self.missing), ("changed", self.changed), ("removed", self.stale))
        return ", ".join(f"{len(names)} {word}" for word, names in counts if names)


def ci_support_drift(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> Drift:
    """Return the differences of the files in .ci_support from those of the configs."""
    existing, generated = _texts_in_ci_support(feedstock), _generated_texts(configs)
    names = sorted(generated.keys() | existing.keys())
    pairs = ((f".ci_support/{name}", existing.get(name), generated.get(name)) for name in names)
    lines = tuple(line for pair in pairs for line in unified_diff_lines(*pair))
    return replace(_drift_of_texts(existing, generated), lines=lines)


def _drift_of_texts(existing: Mapping[str, str], generated: Mapping[str, str]) -> Drift:
    common = sorted(generated.keys() & existing.keys())
    return Drift(
        missing=tuple(sorted(generated.keys() - existing.keys())),
        changed=tuple(name for name in common if existing[name] != generated[name]),
        stale=tuple(sorted(existing.keys() - generated.keys())),
    )


def write_ci_support(feedstock: Feedstock, configs: Iterable[BuildConfig]) -> Drift:
    """Write exactly the configs' files to .ci_support, each atomically; return the changes."""
    for folder in (feedstock.config_folder, feedstock.root / ".github" / "workflows"):
        files.safe_path_inside(folder, feedstock.root)  # before anything is written
    recipe = feedstock.meta if feedstock.meta.is_file() else feedstock.recipe_v1
    limits.record_place(f"{recipe.parent.name}/{recipe.name}")  # its matrix is at fault if the time ends meanwhile
    with files.held_folder_lock(feedstock.root):
        generated = _generated_texts(configs)
        changes = _drift_of_texts(_texts_in_ci_support(feedstock), generated)
        for name in (*changes.missing, *changes.changed):
            files.write_text(feedstock.config_folder / name, generated[name])
        for name in changes.stale:
            files.remove(feedstock.config_folder / name)
    return changes


def _generated_texts(configs: Iterable[BuildConfig]) -> dict[str, str]:
    return {f"{config.name}.yaml": config_file_text(config) for config in configs}


def _texts_in_ci_support(feedstock: Feedstock) -> dict[str, str]:
    files = [path for path in feedstock.config_folder.glob("*.yaml") if path.is_file()]
    return {path.name: path.read_text(encoding="utf-8", errors="replace") for path in files}


def unified_diff_lines(name: str, before: str | None, after: str | None) -> Iterator[str]:
    """Yield the unified diff of a file's texts before and after; None is no file."""
    if before == after:
        return
    import difflib

    old, new = (name if text is not None else "/dev/null" for text in (before, after))
    first, second = ((text or "").splitlines() for text in (before, after))
    yield from difflib.unified_diff(first, second, old, new, n=1, lineterm="")


def matrix_difference(feedstock: Feedstock) -> str:
    """Return by how much .ci_support differs from the feedstock's matrix, empty when it is up to date.

    Of a feedstock that needs a pinning, whose newest version always differs, only the values of its own variant file
    are compared. It is also empty where the files are invalid, which the build reports, and when the time or the memory
    of the process that compares them is used up.
    """
    try:
        return limits.run_bounded(lambda: _compute_matrix_difference(feedstock))
    except (KilnError, MemoryError, limits.OutOfTime):
        return ""


def _compute_matrix_difference(feedstock: Feedstock) -> str:
    own_pinning = matrix_settings.exclusive_config_file(feedstock)
    if own_pinning is None and keys_needing_pinning.keys_without_value(feedstock):
        return _keys_with_changed_values(feedstock)
    return ci_support_drift(feedstock, matrix.configs(feedstock, own_pinning)).summary


def _keys_with_changed_values(feedstock: Feedstock) -> str:
    """Return the keys whose values in .ci_support are not among those of the feedstock's own variant file."""
    migrations = (feedstock.config_folder / "migrations").glob("*.yaml")
    skipped = _COMPUTED.union(*(load_variant_file(path, path.name).keys for path in migrations))
    names = feedstock.config_names
    configs = ci_support_config_file.read_configs(feedstock, names)
    values_of_variant_files = matrix.variant_file_values_getter(feedstock)
    changed: dict[str, int] = {}
    for config in configs:
        for key, values in values_of_variant_files(config.platform).items():
            existing = {value.lower() for value in config.variant.get(key, ())}  # truths have two spellings
            if key not in skipped and not existing <= {str(value).lower() for value in as_list(values)}:
                changed[key] = changed.get(key, 0) + 1
    return ", ".join(
        f"{key} in {count} of {count_text(len(configs), 'config')}" for key, count in sorted(changed.items())
    )
