"""Collapse a platform's packages to its configs: which keys distinguish jobs, and which values each job has.

A key distinguishes jobs when it varies and every package uses it; the other used keys stay lists over which a job
loops. The rules are conda-smithy's (conda_smithy/configure_feedstock.py); here they work on the space's dimensions,
so the cost grows with the values and the configs, not with the product of all that varies.
"""

from __future__ import annotations

from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING, Any

from kiln.base.errors import VariantFault
from kiln.base.patterns import lazy_pattern
from kiln.conda.specs import Version
from kiln.recipe.variants.files import as_list

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence

    from kiln.recipe.v0.metadata import Metadata
    from kiln.recipe.v1.recipe import PackageAtVariant
    from kiln.recipe.variants.space import Space, Variant

    Config = dict[str, Any]
    Row = tuple[str, ...]
    # Each group of zipped keys, or single key, with its distinct rows in order.
    Columns = dict[tuple[str, ...], dict[Row, None]]

_MPI = ("mpich", "openmpi", "msmpi", "mpi_serial", "impi")
ALWAYS = frozenset(
    [
        "zip_keys", "pin_run_as_build", "MACOSX_DEPLOYMENT_TARGET", "MACOSX_SDK_VERSION", "macos_min_version",
        "macos_machine", "channel_sources", "channel_targets", "docker_image", "build_number_decrement",
    ]
)  # fmt: skip
_STDLIB, _TARGET, _SDK = "c_stdlib_version", "MACOSX_DEPLOYMENT_TARGET", "MACOSX_SDK_VERSION"
PYTHON_MIN = lazy_pattern(r".*\{\{ python_min \}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class PackageKeyUsage:
    """A package's part in the matrix: the part of the space that its job covers, and the keys that it uses."""

    part: Space
    variant: Variant
    dist: str
    feedstock: str
    noarch: bool
    used: frozenset[str]
    used_with_top: frozenset[str]

    @classmethod
    def from_metadata(cls, part: Space, package: Metadata) -> PackageKeyUsage:
        """Return the package of some metadata, without a reference to the metadata's values."""
        return cls(
            part=part,
            variant=package.variant,
            dist=package.dist,
            feedstock=str(package.section_value("extra", "feedstock-name") or package.name),
            noarch=bool(package.noarch),
            used=package.used_keys(),
            used_with_top=package.used_keys(top=True),
        )

    @classmethod
    def from_recipe_v1(cls, part: Space, package: PackageAtVariant) -> PackageKeyUsage:
        """The package of a recipe.yaml; a feedstock that extra does not name is ``None`` to conda-smithy there."""
        used = package.used - ({"target_platform"} if package.noarch else set())
        return cls(
            part=part,
            variant=part.first_variant(),
            dist=f"{package.name}-{package.version}",
            feedstock=str(package.sections["extra"].get("feedstock-name")),
            noarch=bool(package.noarch),
            used=used,
            used_with_top=used,
        )


@dataclass(frozen=True, kw_only=True)
class PlatformPackages:
    """A platform's packages, and the whole space."""

    space: Space
    packages: Sequence[PackageKeyUsage]
    recipe_text: str
    pins_numpy: bool = False


def job_variants(packages: PlatformPackages, *, labels: bool) -> tuple[list[Config], frozenset[str]]:
    """Return each job's values by key, unordered, and the keys that distinguish jobs.

    ``labels`` keeps the labels of GitHub's runners.
    """
    used = _used_keys(packages)
    top = frozenset.intersection(*{package.used_with_top for package in packages.packages})
    loops = top & packages.space.varying_keys
    if "target_platform" in used:
        loops |= {"target_platform"}
    only_top = (top & packages.space.varying_keys) - used
    keep = used | ALWAYS | top
    if not all(package.noarch for package in packages.packages):
        keep |= {"target_platform"}
    if labels:
        keep |= {"github_actions_labels"}
    all_columns = _columns_with_raised_macos(space_columns(packages.space), packages.space)
    used_columns = _columns_used_by_packages(packages, all_columns)
    values = _columns_of_kept_keys(all_columns, used_columns, keep, only_top)
    values = _columns_in_group_order(values, packages.space.frame.groups)
    settings = _settings_of_config_files(packages.space.frame.settings, keep, values, pins_numpy=packages.pins_numpy)
    existing = {tuple([package.variant.get(key) for key in sorted(loops)]) for package in packages.packages}
    return list(_split_into_configs(values, settings, loops, existing)), loops


def _used_keys(packages: PlatformPackages) -> frozenset[str]:
    used = frozenset[str]().union(*{package.used for package in packages.packages})
    if "mpi" in used:
        used |= set(_MPI)  # the choice of mpi determines their versions
    if any(PYTHON_MIN.match(line) for line in packages.recipe_text.splitlines()):
        used |= {"python_min"}
    return used


def space_columns(space: Space) -> Columns:
    """Return a space's dimensions as columns."""
    return {dimension.keys: dict.fromkeys(dimension.rows) for dimension in space.dimensions}


def _columns_used_by_packages(packages: PlatformPackages, all_columns: Columns) -> Columns:
    """Return the rows that some package's job covers, by those of the whole space."""
    parts = {id(package.part): package.part for package in packages.packages}.values()
    if _needs_raised_macos_versions(packages.space):
        used_columns: Columns = {}
        for part in parts:
            for keys, rows in _columns_with_raised_macos(space_columns(part), part).items():
                used_columns.setdefault(keys, {}).update(rows)
        return used_columns
    used_columns = {keys: rows for keys, rows in all_columns.items() if len(rows) == 1}
    for part in parts:
        for dimension in part.varying:
            used_columns.setdefault(dimension.keys, {}).update(dict.fromkeys(dimension.rows))
    return used_columns


def _needs_raised_macos_versions(space: Space) -> bool:
    target = space.dimension("target_platform")
    systems = () if target is None else target.values("target_platform")
    return any(subdir.startswith("osx") for subdir in systems) and space.dimension(_STDLIB) is not None


def _columns_with_raised_macos(given_columns: Columns, space: Space) -> Columns:
    """Return the columns with macOS's deployment target and SDK raised to the newest that any key requires."""
    if not _needs_raised_macos_versions(space):
        return given_columns
    involved = list({d.keys: d for key in (_STDLIB, _TARGET, _SDK) if (d := space.dimension(key))}.values())
    merged: Columns = {dimension.keys: {} for dimension in involved}
    for rows in product(*(dimension.rows for dimension in involved)):
        values = {k: v for d, row in zip(involved, rows, strict=True) for k, v in zip(d.keys, row, strict=True)}
        raised = values | _raised_macos_versions(values)
        for dimension in involved:
            merged[dimension.keys][tuple(raised[key] for key in dimension.keys)] = None
        for key in (_TARGET, _SDK):
            if key not in values:
                merged.setdefault((key,), {})[(raised[key],)] = None
    return given_columns | merged


def _raised_macos_versions(values: Mapping[str, str]) -> dict[str, str]:
    stdlib = values[_STDLIB]
    target, sdk = values.get(_TARGET, stdlib), values.get(_SDK, stdlib)
    try:
        newest = target if Version(stdlib) < Version(target) else stdlib
        sdk = newest if Version(sdk) < Version(newest) else sdk
    except ValueError as error:
        why = f"{_STDLIB}: {stdlib}, {_TARGET}: {target}, {_SDK}: {sdk}"
        raise VariantFault("macOS's versions must be single versions, not ranges", why=why) from error
    return {_STDLIB: newest, _TARGET: newest, _SDK: sdk}


def _columns_of_kept_keys(
    all_columns: Columns, used_columns: Columns, keep: frozenset[str], only_top: frozenset[str]
) -> Columns:
    """Return the kept keys with the rows that packages use, in the order of ``all_columns``."""
    kept_columns: Columns = {}
    for keys, rows in all_columns.items():
        kept_keys = tuple(key for key in keys if key in keep)
        if not kept_keys:
            continue
        used_rows = rows if len(keys) == 1 and keys[0] in only_top else used_columns.get(keys, {})
        wanted_rows = {_row_of_kept_keys(row, keys, kept_keys) for row in used_rows}
        unique_rows = dict.fromkeys(_row_of_kept_keys(row, keys, kept_keys) for row in rows)
        kept_columns[kept_keys] = {row: None for row in unique_rows if row in wanted_rows}
    return {keys: rows for keys, rows in kept_columns.items() if rows}


def _row_of_kept_keys(row: Row, keys: tuple[str, ...], kept_keys: tuple[str, ...]) -> Row:
    return row if keys == kept_keys else tuple(item for key, item in zip(keys, row, strict=True) if key in kept_keys)


def _columns_in_group_order(given_columns: Columns, groups: Iterable[tuple[str, ...]]) -> Columns:
    """Return the columns, zipped keys in their group's order."""
    order = {key: index for group in groups for index, key in enumerate(group)}
    return {
        keys if len(keys) == 1 else tuple(sorted(keys, key=lambda key: order.get(key, 0))): rows
        for keys, rows in given_columns.items()
    }


def _settings_of_config_files(
    settings: Mapping[str, Any], keep: frozenset[str], values: Columns, *, pins_numpy: bool
) -> Config:
    """Return the settings of every file: the remaining zipped groups, pins of used packages, other kept settings."""
    present = {key for keys in values for key in keys}
    zipped = sorted([list(keys) for keys in values if len(keys) > 1])
    settings_by_key: Config = {"zip_keys": zipped} if zipped else {}
    legacy = {"numpy": {"min_pin": "x.x", "max_pin": "x.x"}} if pins_numpy else {}
    pins = {**legacy, **(settings.get("pin_run_as_build") or {})}
    used = {
        package: dict(sorted(pins[package].items(), reverse=True)) if isinstance(pins[package], dict) else pins[package]
        for package in sorted(pins)
        if package.replace("-", "_") in present
    }
    if used:
        settings_by_key["pin_run_as_build"] = used
    for key in settings.keys() & keep - {"zip_keys", "pin_run_as_build"}:
        settings_by_key[key] = sorted(map(str, as_list(settings[key])))
    return settings_by_key


def _split_into_configs(
    values: Columns, settings: Config, loops: frozenset[str], existing: set[tuple[Any, ...]]
) -> Iterator[Config]:
    """Yield one configuration for each combination of the looping keys' values that some package has."""
    parts = [_rows_by_loop_values(keys, rows, loops) for keys, rows in values.items()]
    fixed = [part[0] for part in parts if len(part) == 1]
    varying = [part for part in parts if len(part) > 1]
    common = {**settings, **{key: value for part in fixed for key, value in part.items()}}
    order = sorted(loops)
    for combination in product(*varying):
        config = dict(common)
        for part in combination:
            config.update(part)
        value_sets = [set(config[key]) for key in order]
        if (
            all(len(items) == 1 for items in value_sets)
            and tuple(next(iter(items)) for items in value_sets) in existing
        ):
            yield config


def _rows_by_loop_values(keys: tuple[str, ...], rows: Iterable[Row], loops: frozenset[str]) -> list[Config]:
    """Return the rows of one column, split by the combinations of its looping keys."""
    separate: dict[Row, list[Row]] = {}
    for row in rows:
        separate.setdefault(tuple(item for key, item in zip(keys, row, strict=True) if key in loops), []).append(row)
    return [{key: [row[index] for row in sorted(part)] for index, key in enumerate(keys)} for part in separate.values()]
