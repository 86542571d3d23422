"""The tables in ``data/``: rows of facts, each with its source, matched by ranges of versions."""

from __future__ import annotations

import csv
from dataclasses import dataclass, field
from functools import cache, lru_cache
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.patterns import lazy_pattern

if TYPE_CHECKING:
    from collections.abc import Iterable


_NUMBERS = lazy_pattern(r"\d{1,9}(?:\.\d{1,9}){0,5}")
_NEWEST = float("inf")


@lru_cache(maxsize=4096)
def version_numbers(text: str) -> tuple[float, ...]:
    """Return ``12.5.1`` as its numbers.

    Raises:
        ValueError: when the text is not a version.
    """
    if not _NUMBERS.fullmatch(text):
        raise ValueError(f"{text!r} is not a version")
    return tuple(int(part) for part in text.split("."))


def is_version(text: str) -> bool:
    """Return whether a text is numbers with dots between them."""
    return _NUMBERS.fullmatch(text) is not None


def versions_agree(one: str, other: str) -> bool:
    """Return whether two versions are equal as far as both go: ``12.5`` and ``12.5.1``."""
    first, second = version_numbers(one), version_numbers(other)
    return first[: len(second)] == second[: len(first)]


def have_same_major(one: str, other: str) -> bool:
    """Return whether two versions have the same first number."""
    return version_numbers(one)[0] == version_numbers(other)[0]


def overlaps_range(version: str, first: str, last: str) -> bool:
    """Return whether a release of a version is from ``first`` to ``last``, where short ones include all releases."""
    parts, upper = version_numbers(version), version_numbers(last)
    return version_numbers(first) <= (*parts, _NEWEST) and parts[: len(upper)] <= upper


def is_at_least(version: str, bound: str) -> bool:
    """Return whether the newest release of a version is not older than a bound."""
    return (*version_numbers(version), _NEWEST) >= version_numbers(bound)


def is_below(version: str, bound: str) -> bool:
    """Return whether a version is older than a bound: ``10.9`` is older than ``11``, ``11`` and ``11.0`` are not."""
    upper = version_numbers(bound)
    return version_numbers(version)[: len(upper)] < upper


def can_be_within(version: str, oldest: str, below: str) -> bool:
    """Return whether a release of a version is at least ``oldest`` and older than ``below``, if that is not empty."""
    upper = version_numbers(below) if below else (_NEWEST,)
    parts = version_numbers(version)
    return is_at_least(version, oldest) and (*parts, *[0] * (len(upper) - len(parts))) < upper


def is_in_ranges(version: str, text: str) -> bool:
    """Return whether a version is in ranges in the notation of the tables: ``2.7 3.3-3.7``."""
    return any(overlaps_range(version, *_range_bounds(part)) for part in text.split())


def _range_bounds(part: str) -> tuple[str, str]:
    """Return the ends of ``3.3-3.7``; of a single version, the version twice."""
    first, _, last = part.partition("-")
    return first, last or first


def lowest_and_highest(text: str) -> tuple[str, str]:
    """Return the lowest and the highest version of ranges in the notation of the tables."""
    parts = text.split()
    return _range_bounds(parts[0])[0], _range_bounds(parts[-1])[1]


DATA = Path(__file__).parent / "data"


@dataclass(frozen=True, slots=True, kw_only=True)
class Row:
    """A row of a table: ``line`` counts from 1 in its file, ``cells`` are its columns in order, ``source`` the last."""

    table: str
    line: int
    cells: tuple[tuple[str, str], ...]
    _values: dict[str, str] = field(init=False, repr=False, compare=False)

    def __post_init__(self) -> None:
        object.__setattr__(self, "_values", dict(self.cells))

    def __getitem__(self, column: str) -> str:
        return self._values[column]

    @property
    def place(self) -> str:
        """The place of the row: ``tensorflow.csv:5``."""
        return f"{self.table}.csv:{self.line}"

    @property
    def text(self) -> str:
        """The row in short: ``tf 2.18.0, cuda 12.5``."""
        return ", ".join(f"{column} {value}" for column, value in self.cells if value and column != "source")


@cache
def table_rows(name: str) -> tuple[Row, ...]:
    """Return the rows of a table, in the file's order."""
    with (DATA / f"{name}.csv").open(encoding="utf-8", newline="") as file:
        reader = csv.DictReader(file)
        return tuple(Row(table=name, line=reader.line_num, cells=tuple(row.items())) for row in reader)


@cache
def tensorflow_row(version: str) -> Row | None:
    """Return the row of upstream's tests of a release of TensorFlow; a patch release has that of its minor release."""
    minor = version_numbers(version)[:2]
    return next((row for row in table_rows("tensorflow") if version_numbers(row["tf"])[: len(minor)] == minor), None)


@cache
def third_party_build_rows(version: str) -> tuple[Row, ...]:
    """Return the rows of the known builds of a release of TensorFlow by others than upstream."""
    return tuple(row for row in table_rows("built") if row["tf"] and versions_agree(row["tf"], version))


@cache
def requirement_rows(package: str, version: str) -> tuple[Row, ...]:
    """Return what the releases of TensorFlow that a version stands for require of a package, the newest first."""
    rows = [row for row in table_rows("requirement") if row["package"] == package]
    return tuple(reversed(rows_including(rows, version)))


@cache
def serving_row(version: str) -> Row | None:
    """Return the row of a release of TensorFlow Serving."""
    return newest_row_including("serving", version)


@cache
def cuda_compiler_row(cuda: str) -> Row | None:
    """Return the row of CUDA's compiler: its capabilities and host compilers."""
    return newest_row_including("cuda_compiler", cuda)


def cuda_rows_for_capability(capability: int) -> tuple[Row, ...]:
    """Return the rows of the CUDAs that compile for a compute capability, 70 for 7.0."""
    return tuple(row for row in table_rows("cuda_compiler") if str(capability) in row["capabilities"].split())


@cache
def oldest_cuda_row_for_capability(capability: int) -> Row | None:
    """Return the oldest CUDA in the tables that compiles for a compute capability, 70 for 7.0."""
    return min(cuda_rows_for_capability(capability), key=lambda row: version_numbers(row["first"]), default=None)


@cache
def is_tegra(capability: int) -> bool:
    """Return whether a compute capability, 87 for 8.7, is that of a Tegra, as in Jetson."""
    rows = table_rows("gpu")
    return any(row["arch"] == "tegra" and row["capability"].replace(".", "") == str(capability) for row in rows)


@cache
def last_jetpack_row_for_capability(capability: str) -> Row | None:
    """Return the last JetPack for the Jetsons of a compute capability; None for those that get newer ones."""
    return next((row for row in table_rows("jetson") if row["capability"] == capability), None)


@cache
def last_driver_row_for_capability(capability: str) -> Row | None:
    """Return the last branch of drivers that serves a compute capability; None for those still served."""
    return next(iter(rows_including(table_rows("driver_gpu"), capability)), None)


@cache
def oldest_driver_row_for_cuda(cuda: str) -> Row | None:
    """Return the row of the oldest driver that came with a release of CUDA: that of its first release."""
    rows = rows_including(table_rows("cuda_driver"), cuda)
    return min(rows, key=lambda row: version_numbers(row["first"]), default=None)


@cache
def minor_compatibility_driver_row(cuda: str) -> Row | None:
    """Return the oldest driver that runs any release of CUDA's major version; None before CUDA 11."""
    return next((row for row in table_rows("cuda_minor") if versions_agree(row["cuda"], cuda)), None)


@cache
def cudnn_rows_for_cuda(version: str, cuda: str) -> tuple[Row, ...]:
    """Return the rows of NVIDIA's matrix for a cuDNN with a CUDA."""
    return tuple(
        row
        for row in rows_including(table_rows("cudnn"), version)
        if overlaps_range(cuda, row["cuda_first"], row["cuda_last"])
    )


@cache
def cuda_minor_versions() -> tuple[str, ...]:
    """Return every ``x.y`` of CUDA that there is a driver for, newest first."""
    short = (".".join(row["first"].split(".")[:2]) for row in table_rows("cuda_driver"))
    return tuple(dict.fromkeys(short))


def rows_including(rows: Iterable[Row], version: str) -> tuple[Row, ...]:
    """Return the rows whose ``first`` to ``last`` include a release of a version."""
    return tuple(row for row in rows if overlaps_range(version, row["first"], row["last"]))


def newest_row_including(table: str, version: str) -> Row | None:
    """Return the row of a table that begins last, of those that include a release of a version."""
    rows = rows_including(table_rows(table), version)
    return max(rows, key=lambda row: version_numbers(row["first"]), default=None)
