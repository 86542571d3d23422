"""The time until commands answer."""

from __future__ import annotations

import shutil
import sys
from functools import partial
from typing import TYPE_CHECKING

from tests.bench.timing import ROOT, median, run

if TYPE_CHECKING:
    from tests.bench.timing import Row


def rows() -> list[Row]:
    """Time commands, each in a process of its own."""
    kiln = (sys.executable, "-m", "kiln", "-C", str(ROOT))
    configs = sorted(file.stem for file in (ROOT / ".ci_support").glob("*.yaml"))
    python = shutil.which("python3") or sys.executable
    commands = {
        "build-locally.py --help": ((python, str(ROOT / "build-locally.py"), "--help"), "0.3 s"),
        "kiln matrix": ((*kiln, "matrix"), "0.3 s"),
        f"kiln render, {len(configs)} configs": ((*kiln, "render", "--json", *configs), "1 s"),
    }
    return [(name, f"{median(partial(run, *argv)):.2f} s", limit) for name, (argv, limit) in commands.items()]
