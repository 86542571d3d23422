"""Known causes of a failed compile, found by the words of compilers and of Bazel; a table with an example a row."""

from __future__ import annotations

import functools
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import errors

if TYPE_CHECKING:
    from kiln.errors import KilnError

TABLE = Path(__file__).with_name("diagnoses.json")


@dataclass(frozen=True, slots=True, kw_only=True)
class Cause:
    """A known cause: its words, the error that tells it, what to try.

    ``examples`` are texts as they are met, and ``source`` says where.
    """

    cause: str
    words: re.Pattern[str]
    error: type[KilnError]
    hint: str
    examples: tuple[str, ...]
    source: str


@functools.cache
def rows() -> tuple[Cause, ...]:
    """Return the table of known causes, in the order in which they are looked for."""
    return tuple(
        Cause(
            cause=row["cause"],
            words=re.compile("|".join(row["words"]), re.IGNORECASE),
            error=getattr(errors, row["error"]),
            hint=row["hint"],
            examples=tuple(row["examples"]),
            source=row["source"],
        )
        for row in json.loads(TABLE.read_text(encoding="utf-8"))
    )


def diagnose(text: str) -> Cause | None:
    """Return the first known cause whose words stand in what a compile said."""
    return next((row for row in rows() if row.words.search(text)), None)
