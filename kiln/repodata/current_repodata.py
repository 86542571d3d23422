"""The part of an index that most solves need: the newest versions, and their requirements."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.matchspec_notation import package_name, strict_rattler_spec
from kiln.versions import Version

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rattler import PackageRecord

Records = dict[str, "Mapping[str, Any]"]


def newest_records_and_dependencies(offered: Mapping[str, Mapping[str, Any]]) -> Records:
    """Return all builds of the newest version of each name, and older ones that these depend on.

    A client that finds no solution in this part reads the whole, so it need not be complete, only useful; the idea and
    the name are conda-index's.
    """
    by_name: dict[str, Records] = {}
    for file, record in offered.items():
        by_name.setdefault(record["name"], {})[file] = record
    selection = {
        file: record for builds in by_name.values() for file, record in _records_of_latest_version(builds).items()
    }
    done: set[str] = set()
    new: Records = selection
    while new:
        specs = {spec for record in new.values() for spec in record.get("depends", ())} - done
        done |= specs
        new = {
            file: record
            for spec in specs
            for file, record in _older_builds_for_spec(spec, by_name, selection).items()
            if file not in selection
        }
        selection = {**selection, **new}
    return dict(sorted(selection.items()))


def _records_of_latest_version(records: Records) -> Records:
    versions = {str(record["version"]) for record in records.values()}
    if len(versions) <= 1:
        return records
    latest = max(versions, key=Version)
    return {file: record for file, record in records.items() if record["version"] == latest}


def _older_builds_for_spec(spec: str, by_name: Mapping[str, Records], selection: Records) -> Records:
    """Return the newest builds that satisfy a spec, when none in the selection does."""
    builds = by_name.get(package_name(spec), {})
    if " " not in spec.strip() or builds.keys() <= selection.keys():  # most names have one version, which is selected
        return {}
    if _records_matching_spec(spec, {file: record for file, record in builds.items() if file in selection}):
        return {}
    return _records_of_latest_version(_records_matching_spec(spec, builds))


def _records_matching_spec(spec: str, records: Records) -> Records:
    from rattler import MatchSpec

    try:
        match_spec = MatchSpec(strict_rattler_spec(spec))
    except Exception:  # noqa: BLE001 - the library has no type for it; an invalid dependency matches nothing
        return {}
    return {file: record for file, record in records.items() if match_spec.matches(_rattler_record(record))}


def _rattler_record(values: Mapping[str, Any]) -> PackageRecord:
    import rattler

    return rattler.PackageRecord(
        name=str(values["name"]),
        version=str(values["version"]),
        build=rattler.BuildString(str(values["build"])),
        build_number=int(values["build_number"]),
        subdir=str(values["subdir"]),
    )
