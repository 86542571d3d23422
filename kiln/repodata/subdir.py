"""The index of one subdir as a value: packages put in, taken out, and told otherwise than they say of themselves."""

from __future__ import annotations

import dataclasses
import json
from dataclasses import dataclass, field
from typing import TYPE_CHECKING, Any

from kiln.errors import BrokenIndex

if TYPE_CHECKING:
    from collections.abc import Iterable, Mapping

    from kiln.repodata.entry import Entry

KINDS = ("packages", "packages.conda")  # the older format of packages, and today's


@dataclass(frozen=True, slots=True, kw_only=True)
class Subdir:
    """All packages of a subdir: ``records`` as the packages say themselves, by file name.

    ``patches`` are fields laid over a record, ``removed`` are files that the index no longer offers. Both are what a
    channel's ``patch_instructions.json`` says (conda-index documents the form), so any later index keeps them.
    """

    name: str
    records: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    run_exports: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    patches: Mapping[str, Mapping[str, Any]] = field(default_factory=dict)
    removed: frozenset[str] = frozenset()

    def with_packages(self, entries: Iterable[Entry]) -> Subdir:
        """Return this index with packages put in."""
        new = [entry for entry in entries if entry.subdir == self.name]
        return dataclasses.replace(
            self,
            records={**self.records, **{entry.file: entry.record for entry in new}},
            run_exports={**self.run_exports, **{entry.file: {"run_exports": entry.run_exports} for entry in new}},
        )

    def without(self, names: Iterable[str]) -> Subdir:
        """Return this index as if packages had never been in it."""
        gone = set(names)
        return dataclasses.replace(
            self,
            records={file: record for file, record in self.records.items() if file not in gone},
            run_exports={file: told for file, told in self.run_exports.items() if file not in gone},
            patches={file: told for file, told in self.patches.items() if file not in gone},
            removed=self.removed - gone,
        )

    def withdrawn(self, names: Iterable[str]) -> Subdir:
        """Return this index with packages no longer offered; it goes on knowing them."""
        return dataclasses.replace(self, removed=self.removed | set(names))

    def patched(self, file: str, fields: Mapping[str, Any]) -> Subdir:
        """Return this index with fields of one package's record told otherwise."""
        return dataclasses.replace(self, patches={**self.patches, file: {**self.patches.get(file, {}), **fields}})

    @property
    def offered(self) -> dict[str, dict[str, Any]]:
        """The records that clients see, in the order of their names."""
        return {
            file: {**self.records[file], **self.patches.get(file, {})}
            for file in sorted(self.records)
            if file not in self.removed
        }


def parsed(name: str, base: bytes, exports: bytes | None, instructions: bytes | None) -> Subdir:
    """Return the index that a channel's own files hold.

    Raises:
        BrokenIndex: when one of them is not what it should be.
    """
    try:
        told, changes = json.loads(base), json.loads(instructions or b"{}")
        exported = json.loads(exports or b"{}")
        return Subdir(
            name=name,
            records=_both(told),
            run_exports=_both(exported),
            patches=_both(changes),
            removed=frozenset(changes.get("remove", [])),
        )
    except (ValueError, AttributeError, TypeError) as error:
        raise BrokenIndex(f"the index of {name} in the channel cannot be read", why=str(error)) from error


def adopted(name: str, repodata: bytes) -> Subdir:
    """Return the index of a channel that something else has indexed; what is exported is not told there."""
    return parsed(name, repodata, None, None)


def _both(told: Mapping[str, Any]) -> dict[str, Mapping[str, Any]]:
    found = {file: record for kind in KINDS for file, record in told.get(kind, {}).items()}
    if wrong := [file for file, record in found.items() if not isinstance(record, dict)]:
        raise TypeError(f"what it tells of {wrong[0]} is no object")
    return found
