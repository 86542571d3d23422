"""The part of an index that most solves need: the newest version of everything, and what that itself needs."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

from kiln.matchspec import package_name, strict

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from rattler import PackageRecord

Records = dict[str, "Mapping[str, Any]"]


def newest(offered: Mapping[str, Mapping[str, Any]]) -> Records:
    """Return all builds of the newest version of each name, and older ones that these depend on.

    A client that finds no solution in this part asks for the whole, so it need not be complete, only useful; the idea
    and the name are conda-index's.
    """
    by_name: dict[str, Records] = {}
    for file, record in offered.items():
        by_name.setdefault(record["name"], {})[file] = record
    kept = {file: record for named in by_name.values() for file, record in _latest(named).items()}
    seen: set[str] = set()
    new: Records = kept
    while new:
        specs = {spec for record in new.values() for spec in record.get("depends", ())} - seen
        seen |= specs
        new = {
            file: record for spec in specs for file, record in _older(spec, by_name, kept).items() if file not in kept
        }
        kept = {**kept, **new}
    return {file: kept[file] for file in sorted(kept)}


def _latest(records: Records) -> Records:
    versions = {str(record["version"]) for record in records.values()}
    if len(versions) == 1:
        return records
    from rattler import Version

    latest = max(versions, key=Version)
    return {file: record for file, record in records.items() if record["version"] == latest}


def _older(spec: str, by_name: Mapping[str, Records], kept: Records) -> Records:
    """Return the newest builds that satisfy a spec, when none of those that are kept does."""
    named = by_name.get(package_name(spec), {})
    if not named or " " not in spec.strip():
        return {}
    if _matching(spec, (record for file, record in named.items() if file in kept)):
        return {}
    fitting = _matching(spec, named.values())
    return (
        _latest({file: record for file, record in named.items() if any(record is each for each in fitting)})
        if fitting
        else {}
    )


def _matching(spec: str, records: Iterable[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    from rattler import MatchSpec

    try:
        wanted = MatchSpec(strict(spec))
    except Exception:  # noqa: BLE001 - the library has no type for it; a dependency nobody can read matches nothing
        return []
    return [record for record in records if wanted.matches(_record(record))]


def _record(told: Mapping[str, Any]) -> PackageRecord:
    import rattler

    return rattler.PackageRecord(
        name=str(told["name"]),
        version=str(told["version"]),
        build=rattler.BuildString(str(told["build"])),
        build_number=int(told["build_number"]),
        subdir=str(told["subdir"]),
    )
