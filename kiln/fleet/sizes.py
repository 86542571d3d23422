"""The size of each config, from fleet-sizes.yml of the feedstock.

The file is a list of entries, each with the variant values that it is for and the sizes that it sets:

    - match: {cuda_compiler_version: "12.*"}
      cores: 32
      memory: 64
      time_limit: 8h

Later entries prevail over earlier ones. A value of ``match`` may have ``*``; an entry without it is for all configs.
"""

from __future__ import annotations

import dataclasses
import math
from fnmatch import fnmatchcase
from typing import TYPE_CHECKING, Any

from kiln import yamltext
from kiln.errors import MalformedYaml, UsageError
from kiln.model.fleet import JobSize
from kiln.model.source_position import Place

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

FILE = "fleet-sizes.yml"
NUMBERS = ("cores", "memory", "disk", "gpus")
KEYS = ("match", *NUMBERS, "time_limit")
LARGEST = 1e6  # of any number


@dataclasses.dataclass(frozen=True, slots=True, kw_only=True)
class Entry:
    """An entry of the file: the sizes of the configs whose variants match."""

    match: Mapping[str, str]
    values: Mapping[str, float]

    def is_for(self, variant: Mapping[str, Sequence[str]]) -> bool:
        """Return whether each key of ``match`` has a value in the variant that matches."""
        return all(
            any(fnmatchcase(value, pattern) for value in variant.get(key, ())) for key, pattern in self.match.items()
        )


def read(folder: Path, seconds: Callable[[str], float]) -> tuple[Entry, ...]:
    """Read the file of a feedstock, if it has one; ``seconds`` parses a time.

    Raises:
        MalformedYaml: when it is invalid; the message names the line.
    """
    path = folder / FILE
    if not path.exists():
        return ()
    document = yamltext.parse(yamltext.read_text(path, FILE), FILE, yamltext.Scalars.PLACED)
    value = document.value
    if not isinstance(value, list) or not all(isinstance(entry, dict) for entry in value):
        raise MalformedYaml("the file of sizes is a list of entries with sizes", at=document.place(), hint=_example())
    return tuple(_entry(entry, seconds) for entry in value)


def _example() -> str:
    return '- {match: {cuda_compiler_version: "12.*"}, cores: 32, memory: 64, time_limit: 8h}'


def _entry(data: Mapping[Any, Any], seconds: Callable[[str], float]) -> Entry:
    values: dict[str, float] = {}
    for key, value in data.items():
        if key not in KEYS:
            raise MalformedYaml(f"unknown key {str(key)!r} of a size", at=_place(key), hint=f"one of {', '.join(KEYS)}")
        if key in NUMBERS:
            values[str(key)] = _number(str(key), value)
        elif key == "time_limit":
            values[str(key)] = _time(value, seconds)
    match = data.get("match", {})
    if not isinstance(match, dict) or not all(isinstance(value, str) for value in match.values()):
        raise MalformedYaml("match maps variant keys to values", at=_place(next(iter(data))), hint=_example())
    return Entry(match={str(key): str(value) for key, value in match.items()}, values=values)


def _place(text: Any) -> Place:
    return Place(file=FILE, line=getattr(text, "line", 0), column=getattr(text, "column", 0))


def _number(key: str, text: Any) -> float:
    try:
        number = float(text)
    except (TypeError, ValueError):
        number = math.nan
    whole = key in {"memory", "disk"} or number == round(number if math.isfinite(number) else 0.5)
    if not 0 <= number <= LARGEST or not whole:
        raise MalformedYaml(f"invalid {key} {str(text)!r}", at=_place(text), hint="a number such as 32")
    return number


def _time(text: Any, seconds: Callable[[str], float]) -> float:
    try:
        time = seconds(str(text))
    except UsageError as error:
        raise MalformedYaml(error.what, at=_place(text), hint=error.hint) from error
    if time <= 0:
        raise MalformedYaml(f"invalid time limit {str(text)!r}", at=_place(text), hint="more than nothing, such as 8h")
    return time


def size_of(entries: Sequence[Entry], variant: Mapping[str, Sequence[str]]) -> JobSize:
    """Return the size of a config."""
    values: dict[str, float] = {}
    for entry in entries:
        if entry.is_for(variant):
            values |= entry.values
    return JobSize(
        cores=int(values.get("cores", 0)),
        memory=values.get("memory", 0.0),
        disk=values.get("disk", 0.0),
        gpus=int(values.get("gpus", 0)),
        time_limit=values.get("time_limit"),
    )
