"""Migrations: variant files that change a specification while they are in force.

The rules are those of CFEP-9 as conda-smithy applies them (conda_smithy/variant_algebra.py): a migration either adds
or removes rows of a zipped group, or raises values to newer ones.
"""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.base.errors import VariantFault
from kiln.base.serialization import mapping_or_empty
from kiln.conda.specs import Version, version_or_none
from kiln.recipe.variants.files import VariantFile, as_list, load_variant_file, without_empty_values

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping, Sequence
    from pathlib import Path

    from kiln.base.yaml import Document
    from kiln.recipe.variants.files import Platform, Spec

MISFIT = "the migration does not fit the variants"


def migration_files_of_feedstock_and_pinning(local: Path, pinned: Path | None) -> tuple[Path, ...]:
    """Return the migration files that apply to a feedstock.

    ``local`` is the feedstock's folder of migrations, ``pinned`` the pinning's, if it has one: a feedstock's copy
    gives way to the pinning's file of the same name, time stamp and number, and is dropped without such a file, unless
    the copy says ``use_local`` or has no time stamp.
    """
    local_files = {path.name: path for path in sorted(local.glob("*.yaml"))} if local.is_dir() else {}
    if pinned is None or not pinned.is_dir():
        return tuple(local_files.values())
    paths = []
    for name, path in local_files.items():
        stamp, number, use_local = _migration_identity(path, f".ci_support/migrations/{name}")
        if use_local or stamp is None:
            paths.append(path)
            continue
        pinned_file = pinned / name
        if pinned_file.is_file() and (other := _migration_identity(pinned_file, str(pinned_file)))[0] == stamp:
            paths.append(pinned_file if other[1] == number else path)
    return tuple(paths)


def _migration_identity(path: Path, name: str) -> tuple[str | None, str, bool]:
    values = load_variant_file(path, name).values_ignoring_selectors()
    about = mapping_or_empty(values.get("__migrator"))
    stamp = values.get("migrator_ts")
    return stamp, str(about.get("migration_number", 1)), str(about.get("use_local", "false")).lower() == "true"


def apply_migrations(spec: Spec, migrations: Sequence[VariantFile], platform: Platform, known: frozenset[str]) -> Spec:
    """Return the specification after all migrations, the oldest first.

    Raises:
        VariantFault: a migration does not fit the specification.
    """
    changes = [(*_timestamp_and_values(migration, platform, known), migration) for migration in migrations]
    changes.sort(key=lambda change: (change[0], str(change[2].path)))
    for _, values, migration in changes:
        if values:
            try:
                spec = apply_migration(spec, values)
            except (KeyError, ValueError, IndexError, TypeError, AttributeError) as error:
                raise _misfit_error(error, spec, values, migration.document_for_platform(platform, known)) from error
    return spec


def _misfit_error(error: Exception, spec: Spec, values: Mapping[str, Any], document: Document) -> VariantFault:
    """Return the error of a migration, at its primary key or its first line, with the key that it lacks."""
    primary = mapping_or_empty(values.get("__migrator")).get("primary_key")
    at = document.place_of_key(*([str(primary)] if primary in values else []))
    missing = error.args[0] if isinstance(error, KeyError) and error.args else None
    if missing in _zip_group_of_key(str(primary), spec.get("zip_keys", [])) and missing not in values:
        why = f"it has no values of {missing}, which zip_keys join with its {primary}"
        hint = f"add {missing} to the migration, with a value for each of {primary}"
        return VariantFault(MISFIT, at=at, why=why, hint=hint)
    return VariantFault(MISFIT, at=at, why=f"{type(error).__name__}: {error}")


def _timestamp_and_values(
    migration: VariantFile, platform: Platform, known: frozenset[str]
) -> tuple[float, dict[str, Any]]:
    document = migration.document_for_platform(platform, known)
    values = without_empty_values(document.value)
    stamp = values.pop("migrator_ts", "-1.0")
    try:
        return float(stamp), values
    except (TypeError, ValueError) as error:
        at = document.place_of_key("migrator_ts")
        raise VariantFault(f"migrator_ts is {stamp!r}, which is not a number", at=at) from error


def apply_migration(spec: Spec, change: Mapping[str, Any]) -> Spec:
    """Return the specification after one migration."""
    about = change.get("__migrator", {})
    operation = about.get("operation")
    if operation == "key_add":
        return _spec_with_rows_added(spec, change, about)
    if operation == "key_remove":
        return _spec_with_rows_removed(spec, change, about)
    if operation:
        raise ValueError(f"unknown operation {operation!r}")
    return _spec_with_values_raised(spec, change, about)


def _comparison_rank(value: Any, ordering: Sequence[str] | None) -> Any:
    """Return the key by which a value is compared: its place in the ordering, its version, or itself."""
    if ordering is not None:
        return ordering.index(value)
    if isinstance(value, str):
        value = value.replace(" ", ".").replace("*", "1")
        return version_or_none(value) or value
    return value


def _newer_values(left: Sequence[str], right: Sequence[str], ordering: Sequence[str] | None) -> list[str]:
    """Return the newer value at each position; with an ordering, the newest distinct values instead."""
    if ordering is None:
        newer = [
            left_value if not _is_older_value(left_value, right_value) else right_value
            for left_value, right_value in zip(left, right, strict=False)
        ]
        return [*newer, *left[len(newer) :], *right[len(newer) :]]
    ranks = sorted({_comparison_rank(value, ordering) for value in (*left, *right)})
    longer = max(len(left), len(right))
    if len(ranks) < longer:
        if len(ranks) == 1:
            return [left[0]] * longer
        raise ValueError("duplicate values make the ordering ambiguous")
    return [ordering[rank] for rank in ranks[-longer:]]


def _is_older_value(left: Any, right: Any) -> bool:
    one, other = _comparison_rank(left, None), _comparison_rank(right, None)
    if isinstance(one, Version) is not isinstance(other, Version):
        return False
    return bool(one < other)


def _zip_group_of_key(key: str, groups: Sequence[Sequence[str]]) -> list[str]:
    return next((list(group) for group in reversed(groups) if key in group), [key])


def _spec_with_rows_added(spec: Spec, change: Mapping[str, Any], about: Mapping[str, Any]) -> Spec:
    """Add the migration's rows to the primary key's group."""
    primary = about["primary_key"]
    if primary not in change:
        return spec
    if primary not in spec:
        raise KeyError(f"{primary}, the migration's primary key, has no value")
    ordering = about.get("ordering", {})
    groups = [list(group) for group in spec.get("zip_keys", [])]
    group, fresh = _extended_zip_group(primary, groups, about.get("additional_zip_keys", []))
    result = {**spec, **({"zip_keys": groups} if groups else {})}
    for index in range(len(change[primary])):
        length = len(as_list(result[primary]))
        columns = [_broadcast_to_length(result[key], length if key in fresh else None) for key in group]
        rows = list(zip(*columns, strict=False))
        row = tuple(change[key][index] for key in group)
        if row not in rows:
            place = group.index(primary)
            ranked = sorted(
                sorted({*rows, row}), key=lambda candidate: _comparison_rank(candidate[place], ordering.get(primary))
            )
            result |= {key: list(column) for key, column in zip(group, zip(*ranked, strict=True), strict=True)}
    for key in set(ordering) - fresh - {primary}:
        result[key] = _newer_values(as_list(spec[key]), as_list(change[key]), ordering[key])
    return result


def _extended_zip_group(primary: str, groups: list[list[str]], extra: Sequence[str]) -> tuple[list[str], set[str]]:
    """Return the primary key's group with the migration's additional keys, and the set of those that are new to it."""
    for group in groups if extra else []:
        if primary in group:
            fresh = [key for key in extra if key not in group]
            group.extend(fresh)
            return list(group), set(fresh)
    if extra:
        groups.append([primary, *extra])
        return groups[-1], set(extra)
    return _zip_group_of_key(primary, groups), set()


def _broadcast_to_length(values: Any, length: int | None) -> list[Any]:
    items = as_list(values)
    if length is None:
        return items
    if len(items) == length and len(set(items)) > 1:
        return items
    if len(set(items)) != 1:
        raise ValueError(f"{items} cannot be spread over {length} rows")
    return [items[0]] * length


def _spec_with_rows_removed(spec: Spec, change: Mapping[str, Any], about: Mapping[str, Any]) -> Spec:
    """Remove a value of the primary key, and the rows of its group that have it."""
    primary = about["primary_key"]
    if primary not in change or primary not in spec:
        return spec
    (removed_value,) = change[primary]
    before = as_list(spec[primary])
    if removed_value not in before:
        return spec
    ordering = about.get("ordering", {}).get(primary)
    remaining = sorted(
        {value for value in before if value != removed_value}, key=lambda value: _comparison_rank(value, ordering)
    )
    # conda-smithy aligns the group's other keys with the sorted, distinct values that the removal leaves.
    positions = [before.index(value) for value in remaining]
    result = {**spec, primary: remaining}
    for key in _zip_group_of_key(primary, spec.get("zip_keys", [])):
        if key != primary:
            result[key] = [as_list(spec[key])[position] for position in positions]
    return result


def _spec_with_values_raised(spec: Spec, change: Mapping[str, Any], about: Mapping[str, Any]) -> Spec:
    """Raise the keys of both sides to the newer values, and add the keys that only the migration has."""
    ordering = about.get("ordering", {})
    joint = [key for key in spec if key in change]
    special = _merged_special_keys(spec, change, joint)
    groups = [*spec.get("zip_keys", []), *change.get("zip_keys", [])]
    raised_values: dict[str, Any] = {}
    handled: set[str] = set()
    for primary in as_list(about.get("primary_key")):
        if primary in change:
            handled |= _raise_zip_group_values(primary, spec, change, groups, ordering.get(primary), raised_values)
    for key in joint:
        if key not in handled and key not in special and key not in raised_values:
            raised_values[key] = _newer_values(as_list(spec[key]), as_list(change[key]), ordering.get(key))
    only = {key: value for key, value in change.items() if key not in spec and key != "__migrator"}
    return {**spec, **only, **raised_values, **special}


def _merged_special_keys(spec: Spec, change: Mapping[str, Any], joint: Sequence[str]) -> dict[str, Any]:
    special: dict[str, Any] = {}
    if "pin_run_as_build" in joint:
        special["pin_run_as_build"] = {**spec["pin_run_as_build"], **change["pin_run_as_build"]}
    if "zip_keys" in joint:
        special["zip_keys"] = _merged_zip_groups(spec["zip_keys"], change["zip_keys"])
    return special


def _merged_zip_groups(left: Iterable[Sequence[str]], right: Iterable[Sequence[str]]) -> list[list[str]]:
    """Return both sides' groups; a left group gives way to the longest right group that contains it."""
    left_groups, right_groups = {frozenset(group) for group in left}, {frozenset(group) for group in right}
    merged = []
    for wide in sorted(right_groups, key=lambda group: -len(group)):
        for narrow in sorted(left_groups, key=lambda group: -len(group)):
            if narrow <= wide:
                left_groups.remove(narrow)
                right_groups.remove(wide)
                merged.append(wide)
                break
    groups = [sorted(group) for group in (*merged, *left_groups, *right_groups)]
    return sorted(groups, key=lambda group: (len(group), str(group)))


def _raise_zip_group_values(
    primary: str,
    spec: Spec,
    change: Mapping[str, Any],
    groups: Sequence[Sequence[str]],
    ordering: Sequence[str] | None,
    raised_values: dict[str, Any],
) -> set[str]:
    """Raise a primary key, and take its group's values from the same rows; return the group's keys."""
    left, right = as_list(spec[primary]), as_list(change[primary])
    raised_values[primary] = _newer_values(left, right, ordering)
    group = next((set(group) for group in groups if primary in group), set())
    indexes = [index for index, value in enumerate((*left, *right)) if value in raised_values[primary]]
    for key in group - {primary}:
        values = [*as_list(spec[key]), *as_list(change[key])]
        raised_values[key] = [values[index] for index in indexes if index < len(values)]
    return group
