"""From a platform's packages to its cells: which keys become jobs of their own, and which values each job has.

A key makes jobs where every package uses it and it varies; the other used keys stay lists that a job loops over. The
rules are conda-smithy's (conda_smithy/configure_feedstock.py); here they work on the space's dimensions, so that the
cost grows with the values and the cells, not with the product of everything that varies.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from itertools import product
from typing import TYPE_CHECKING

from kiln.errors import VariantFault
from kiln.variants.files import as_list
from kiln.versions import Version

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping, Sequence
    from typing import Any

    from kiln.recipe.metadata import Metadata
    from kiln.variants.space import Space, Variant

    Config = dict[str, Any]
    Row = tuple[str, ...]
    # Every group of zipped keys, or single key, with its distinct rows in order.
    Columns = dict[tuple[str, ...], dict[Row, None]]

_MPI = ("mpich", "openmpi", "msmpi", "mpi_serial", "impi")
_ALWAYS = frozenset(
    [
        "zip_keys",
        "pin_run_as_build",
        "MACOSX_DEPLOYMENT_TARGET",
        "MACOSX_SDK_VERSION",
        "macos_min_version",
        "macos_machine",
        "channel_sources",
        "channel_targets",
        "docker_image",
        "build_number_decrement",
    ]
)
_STDLIB, _TARGET, _SDK = "c_stdlib_version", "MACOSX_DEPLOYMENT_TARGET", "MACOSX_SDK_VERSION"
_PYTHON_MIN = re.compile(r".*\{\{ python_min \}\}")


@dataclass(frozen=True, slots=True, kw_only=True)
class Package:
    """What the matrix needs to know of a package: the part of the space that its job covers, and the keys it uses."""

    part: Space
    variant: Variant
    dist: str
    feedstock: str
    noarch: bool
    used: frozenset[str]
    used_with_top: frozenset[str]

    @classmethod
    def of(cls, part: Space, package: Metadata) -> Package:
        """The package of some metadata, whose values need not be kept."""
        return cls(
            part=part,
            variant=package.variant,
            dist=package.dist,
            feedstock=str(package.value("extra", "feedstock-name") or package.name),
            noarch=bool(package.noarch),
            used=package.used(),
            used_with_top=package.used(top=True),
        )


@dataclass(frozen=True, kw_only=True)
class Packages:
    """A platform's packages, and the whole space."""

    space: Space
    packages: Sequence[Package]
    recipe_text: str
    pins_numpy: bool = False


def configs(found: Packages, *, labels: bool) -> tuple[list[Config], frozenset[str]]:
    """Every job's values by key, unordered, and the keys that distinguish jobs.

    ``labels`` keeps the labels of GitHub's runners.
    """
    used = _used(found)
    top = frozenset.intersection(*{package.used_with_top for package in found.packages})
    loops = top & found.space.loops
    if "target_platform" in used:
        loops |= {"target_platform"}
    only_top = (top & found.space.loops) - used
    keep = used | _ALWAYS | top
    if not all(package.noarch for package in found.packages):
        keep |= {"target_platform"}
    if labels:
        keep |= {"github_actions_labels"}
    given = _merged(columns(found.space), found.space)
    taken = _taken(found)
    values = _chosen(given, taken, keep, only_top)
    values = _grouped(values, found.space.frame.groups)
    rest = _settings(found.space.frame.settings, keep, values, pins_numpy=found.pins_numpy)
    there = {tuple([package.variant.get(key) for key in sorted(loops)]) for package in found.packages}
    return list(_split(values, rest, loops, there)), loops


def _used(found: Packages) -> frozenset[str]:
    used = frozenset[str]().union(*{package.used for package in found.packages})
    if "mpi" in used:
        used |= set(_MPI)  # their versions come with the choice of mpi
    if any(_PYTHON_MIN.match(line) for line in found.recipe_text.splitlines()):
        used |= {"python_min"}
    return used


def columns(space: Space) -> Columns:
    """A space's dimensions as columns."""
    return {dimension.keys: dict.fromkeys(dimension.rows) for dimension in space.dimensions}


def _taken(found: Packages) -> Columns:
    """The rows that any package's job covers."""
    parts = {id(package.part): package.part for package in found.packages}.values()
    whole = _merged(columns(found.space), found.space)
    if _raises(found.space):
        taken: Columns = {}
        for part in parts:
            for keys, rows in _merged(columns(part), part).items():
                taken.setdefault(keys, {}).update(rows)
        return taken
    taken = {keys: rows for keys, rows in whole.items() if len(rows) == 1}
    for part in parts:
        for dimension in part.varying:
            taken.setdefault(dimension.keys, {}).update(dict.fromkeys(dimension.rows))
    return taken


def _raises(space: Space) -> bool:
    """Whether macOS's versions are to be raised."""
    target = space.dimension("target_platform")
    systems = () if target is None else target.values("target_platform")
    return any(subdir.startswith("osx") for subdir in systems) and space.dimension(_STDLIB) is not None


def _merged(found: Columns, space: Space) -> Columns:
    """The columns with macOS's deployment target and SDK raised to the newest that any key asks for."""
    if not _raises(space):
        return found
    involved = list({d.keys: d for key in (_STDLIB, _TARGET, _SDK) if (d := space.dimension(key))}.values())
    merged: Columns = {dimension.keys: {} for dimension in involved}
    for rows in product(*(dimension.rows for dimension in involved)):
        values = {k: v for d, row in zip(involved, rows, strict=True) for k, v in zip(d.keys, row, strict=True)}
        raised = values | _raised(values)
        for dimension in involved:
            merged[dimension.keys][tuple(raised[key] for key in dimension.keys)] = None
        for key in (_TARGET, _SDK):
            if key not in values:
                merged.setdefault((key,), {})[(raised[key],)] = None
    return found | merged


def _raised(values: Mapping[str, str]) -> dict[str, str]:
    stdlib = values[_STDLIB]
    target, sdk = values.get(_TARGET, stdlib), values.get(_SDK, stdlib)
    try:
        newest = target if Version(stdlib) < Version(target) else stdlib
        sdk = newest if Version(sdk) < Version(newest) else sdk
    except ValueError as error:
        why = f"{_STDLIB}: {stdlib}, {_TARGET}: {target}, {_SDK}: {sdk}"
        raise VariantFault("macOS's versions must be single versions, not ranges", why=why) from error
    return {_STDLIB: newest, _TARGET: newest, _SDK: sdk}


def _chosen(given: Columns, taken: Columns, keep: frozenset[str], only_top: frozenset[str]) -> Columns:
    """The kept keys with the rows that packages take, in the order in which they were given."""
    found: Columns = {}
    for keys, rows in given.items():
        kept = tuple(key for key in keys if key in keep)
        if not kept:
            continue
        theirs = rows if len(keys) == 1 and keys[0] in only_top else taken.get(keys, {})
        wanted = {_picked(row, keys, kept) for row in theirs}
        picked = dict.fromkeys(_picked(row, keys, kept) for row in rows)
        found[kept] = {row: None for row in picked if row in wanted}
    return {keys: rows for keys, rows in found.items() if rows}


def _picked(row: Row, keys: tuple[str, ...], kept: tuple[str, ...]) -> Row:
    return row if keys == kept else tuple(item for key, item in zip(keys, row, strict=True) if key in kept)


def _grouped(found: Columns, groups: Iterable[tuple[str, ...]]) -> Columns:
    """The columns, zipped keys in their group's order."""
    order = {key: index for group in groups for index, key in enumerate(group)}
    return {
        keys if len(keys) == 1 else tuple(sorted(keys, key=lambda key: order.get(key, 0))): rows
        for keys, rows in found.items()
    }


def _settings(settings: Mapping[str, Any], keep: frozenset[str], values: Columns, *, pins_numpy: bool) -> Config:
    """What stands in every file: the zipped groups that are left, pins of used packages, other kept settings."""
    present = {key for keys in values for key in keys}
    zipped = sorted([list(keys) for keys in values if len(keys) > 1])
    found: Config = {"zip_keys": zipped} if zipped else {}
    legacy = {"numpy": {"min_pin": "x.x", "max_pin": "x.x"}} if pins_numpy else {}
    pins = {**legacy, **(settings.get("pin_run_as_build") or {})}
    used = {
        package: dict(sorted(pins[package].items(), reverse=True)) if isinstance(pins[package], dict) else pins[package]
        for package in sorted(pins)
        if package.replace("-", "_") in present
    }
    if used:
        found["pin_run_as_build"] = used
    for key in settings.keys() & keep - {"zip_keys", "pin_run_as_build"}:
        found[key] = sorted(map(str, as_list(settings[key])))
    return found


def _split(values: Columns, rest: Config, loops: frozenset[str], there: set[tuple[Any, ...]]) -> Iterator[Config]:
    """One configuration for each combination of the looping keys' values for which there is a package."""
    parts = [_parts(keys, rows, loops) for keys, rows in values.items()]
    fixed = [part[0] for part in parts if len(part) == 1]
    varying = [part for part in parts if len(part) > 1]
    common = {**rest, **{key: value for part in fixed for key, value in part.items()}}
    order = sorted(loops)
    for combination in product(*varying):
        config = dict(common)
        for part in combination:
            config.update(part)
        chosen = [set(config[key]) for key in order]
        if all(len(items) == 1 for items in chosen) and tuple(next(iter(items)) for items in chosen) in there:
            yield config


def _parts(keys: tuple[str, ...], rows: Iterable[Row], loops: frozenset[str]) -> list[Config]:
    """The rows of one column, apart for each combination of its looping keys."""
    separate: dict[Row, list[Row]] = {}
    for row in rows:
        separate.setdefault(tuple(item for key, item in zip(keys, row, strict=True) if key in loops), []).append(row)
    return [{key: [row[index] for row in sorted(part)] for index, key in enumerate(keys)} for part in separate.values()]
