"""A thousand feedstocks made to exhaust whoever reads them: each is refused or done, in bounded time and memory.

``kiln rerender`` and ``kiln render`` read them in turn; figures are those of the command with all its processes.
``KILN_HOSTILE`` in the environment is how many, a thousand without it; what fails is kept in the temporary folder.
"""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
from collections import Counter
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import KilnError
from tests.bench.timing import ROOT
from tests.hostile import CONFIG, numbered

if TYPE_CHECKING:
    from tests.bench.timing import Row

SECONDS, MEGABYTES = 10, 500
COUNT = int(os.environ.get("KILN_HOSTILE", "1000"))


@dataclass(frozen=True, slots=True, kw_only=True)
class Reading:
    """The result of one command: its exit code, output, seconds of processor time and megabytes."""

    family: str = ""
    code: int
    said: str
    seconds: float
    megabytes: float


# Run by a process of its own: a child counts the memory that its parent had, and the program here holds large files.
MEASURE = """
import os, sys
quiet = [(os.POSIX_SPAWN_OPEN, 1, os.devnull, os.O_WRONLY, 0)]
child = os.posix_spawn(sys.argv[1], sys.argv[1:], os.environ, file_actions=quiet)
_, status, usage = os.wait4(child, 0)
print(os.waitstatus_to_exitcode(status), usage.ru_utime + usage.ru_stime, usage.ru_maxrss / 1024)
"""


def read(root: Path, *words: str) -> Reading:
    """Run a kiln command on a feedstock, and return what it used: the most that one of its processes held."""
    argv = (sys.executable, "-c", MEASURE, sys.executable, "-m", "kiln", "-C", str(root), *words)
    ended = subprocess.run(argv, cwd=ROOT, capture_output=True, text=True, check=True)
    code, seconds, megabytes = ended.stdout.split()
    return Reading(code=int(code), said=ended.stderr[:2_000], seconds=float(seconds), megabytes=float(megabytes))


def one(number: int) -> Reading:
    """Read one feedstock, by the one command or the other."""
    hostile = numbered(number)
    words = ("render", "--json", CONFIG) if number % 2 else ("rerender",)
    with tempfile.TemporaryDirectory(prefix="kiln-hostile-") as folder:
        root = hostile.write(Path(folder)).root
        reading = read(root, *words)
        if fails(reading):
            shutil.copytree(root, f"{folder}-fault")
        return replace(reading, family=hostile.family)


def rows() -> list[Row]:
    """Read them all, as many at once as there are cores, and show what each family needed at most."""
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        item = list(pool.map(one, range(COUNT)))
    families: dict[str, list[Reading]] = {}
    for reading in item:
        families.setdefault(reading.family, []).append(reading)
    codes = ", ".join(
        f"{number} x {code}" for code, number in sorted(Counter(reading.code for reading in item).items())
    )
    return [
        *((f"hostile: {family}, {len(mine)}", *_most(mine)) for family, mine in sorted(families.items())),
        (f"hostile: all {len(item)}; exit codes: {codes}", *_most(item)),
        ("hostile: over the limits, or with a traceback", str(sum(map(fails, item))), "0"),
    ]


def fails(reading: Reading) -> bool:
    """Return whether a reading violated the bounds."""
    own = reading.code in {0, *(kind.exit_code for kind in KilnError.__subclasses__())}
    return not own or "Traceback" in reading.said or reading.seconds > SECONDS or reading.megabytes > MEGABYTES


def _most(mine: list[Reading]) -> tuple[str, str]:
    seconds, megabytes = max(r.seconds for r in mine), max(r.megabytes for r in mine)
    return f"{seconds:.1f} s, {megabytes:.0f} MB", f"{SECONDS} s, {MEGABYTES} MB"
