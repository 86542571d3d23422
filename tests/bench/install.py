"""The cost of a solve in a large channel: the solve, the whole command, and the explanation of a failed solve."""

from __future__ import annotations

import subprocess
import sys
from typing import TYPE_CHECKING

from kiln.base.errors import SolveFailed
from kiln.conda import solve as conda_solve
from kiln.conda.diagnosis import TargetMachine
from kiln.conda.install import InstallRequest, plan_install
from tests.bench.timing import ROOT, folder_of_builds, seconds
from tests.solving import machine, record, rendered, stand_ins, write

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path

    from tests.bench.timing import Row

LARGE = 5_000


def rows() -> list[Row]:
    """``tensorflow`` in a channel of thousands of packages; each the best of three."""
    with folder_of_builds() as folder:
        return solves(write(folder / "channel", packages()))


def packages() -> list[dict[str, object]]:
    """This feedstock's packages, what they need, and others to make up the number."""
    own = rendered()
    result = [*own, *stand_ins(own)]
    others = (record(f"p{n}", "1", depends=("python >=3.10", f"p{n // 2} >=1")) for n in range(LARGE - len(result)))
    return [*result, *others]


def solves(place: Path) -> list[Row]:
    """Return a solve, the whole command, and a refusal with its reason."""
    url = place.as_uri()
    asked = InstallRequest(
        prefix=place / "prefix",
        specs=("tensorflow-gpu",),
        channels=(url,),
        machine=TargetMachine(virtual_packages=machine("11.8")),
    )

    def solve() -> None:
        conda_solve.solve([url], ["tensorflow"], virtual_packages=machine("12.9"))

    def command() -> None:
        words = ("install", "tensorflow", "--from", url, "--prefix", str(place / "prefix"), "--dry-run")
        subprocess.run((sys.executable, "-m", "kiln", *words), cwd=ROOT, capture_output=True, check=True)

    def refuse() -> None:
        try:
            plan_install(asked)
        except SolveFailed:
            return
        raise AssertionError("a driver for CUDA 11 got tensorflow-gpu")

    what = f"channel of {LARGE:,} packages"
    return [
        (f"{what}: tensorflow solved", f"{best(solve):.2f} s", "1 s"),
        (f"{what}: kiln install --dry-run, from start to end", f"{best(command):.2f} s", ""),
        (f"{what}: tensorflow-gpu refused, with the reason", f"{best(refuse):.2f} s", ""),
    ]


def best(work: Callable[[], None]) -> float:
    """Seconds of the fastest of three."""
    return min(seconds(work) for _ in range(3))
