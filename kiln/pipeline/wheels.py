"""The wheels that a compile ends in: each kept under the tag that its binaries keep, and tried out with pip."""

from __future__ import annotations

import dataclasses
import os
import re
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.check import wheel_promise, wheel_trial
from kiln.check.wheel import Wheel, require_python
from kiln.ledger import records
from kiln.model.artifact import TestReport, Verdict
from kiln.pipeline import compiling
from kiln.pipeline.building import hashes, tidied, told

if TYPE_CHECKING:
    from collections.abc import Iterable

    from kiln.model.cell import Cell
    from kiln.pipeline.bench import Bench
    from kiln.pipeline.memo import Made, Memo
    from kiln.pipeline.voice import Told


@dataclass(frozen=True, slots=True, kw_only=True)
class Wheels:
    """The wheels of one cell."""

    cell: Cell
    bench: Bench
    memo: Memo[Told]

    def of(self, compiled: Made | None) -> list[dict[str, Any]]:
        """Keep and try out what a compile has left, and say what became of it as JSON values."""
        return [] if compiled is None else [self._one(path, compiled) for path in left_by(compiled)]

    def _one(self, path: Path, compiled: Made) -> dict[str, Any]:
        made = self._keep(path, compiled)
        (kept,) = made.paths
        tested = self._test(Wheel.of(kept), made)
        wheel = Wheel.of(kept)
        group = compiling.group_of(self.cell)
        return told(made, tested, self.bench.job, wheel.name, wheel.version, wheel.tags, subdir=f"wheels/{group}")

    def _keep(self, path: Path, compiled: Made) -> Made:
        """Check what a wheel's name says, and keep it under the tag that its binaries keep."""

        def do(shown: Told) -> tuple[Iterable[Path], dict[str, Any]]:
            found = Wheel.of(path)
            require_python(found, self.python)
            tag = wheel_promise.promise(found) if wheel_promise.can_audit() else None
            kept = wheel_promise.placed(found, self.bench.job.folder / "wheels", tag)
            shown.note(f"{kept.name} keeps {tag}" if tag else f"{kept.name}: no binaries, or no auditwheel here")
            return [kept], {}

        inputs = {"compiled": hashes(compiled), "name": path.name, "python": self.python}
        return self.memo.once(f"wheel {Wheel.of(path).name}", inputs, do)

    def _test(self, wheel: Wheel, made: Made) -> Made:
        """Install a wheel into a fresh venv of its Python."""

        def do(shown: Told) -> tuple[Iterable[Path], dict[str, Any]]:
            report = self._tried_out(wheel, shown)
            return made.paths, records.tests_as_json(dataclasses.replace(report, log=None))

        inputs = {"wheel": hashes(made), "network": self.bench.job.network}
        return self.memo.once(f"test wheel {wheel.name}", inputs, do)

    def _tried_out(self, wheel: Wheel, shown: Told) -> TestReport:
        """Return the report of a wheel's test; there is none without an interpreter of its Python."""
        job = self.bench.job
        prefix = Path((job.folder / "compile" / "prefix").read_text().strip())
        found = wheel_trial.interpreter(wheel, interpreters(prefix, self.python), environment=os.environ)
        if found is None:
            note = f"not tried out: no interpreter for {wheel.python} is here"
            return TestReport(package=wheel.path.name, verdict=Verdict.NONE, notes=(note,))
        step = wheel_trial.plan(wheel.path, python=found, folder=job.folder / "venv", network=job.network)
        with tidied(job, step.folder):
            return wheel_trial.execute(
                step,
                environment=os.environ,
                apart=lambda: self.bench.scripts_apart(f"test {wheel.name}"),
                log=job.folder / f"test-{wheel.path.name}.log",
                on_line=shown.line,
            )

    @property
    def python(self) -> str | None:
        """The minor version of Python that the cell is for, ``3.11``; None when it is for none, or for several."""
        given = self.cell.variant.get("python", ())
        found = {match[0] for value in given if (match := re.match(r"3\.\d+", value))}
        return found.pop() if len(found) == 1 else None


def left_by(compiled: Made) -> tuple[Path, ...]:
    """Return the wheels that a compile has left where every output's script finds them."""
    return tuple(sorted(Path(compiled.detail["work"], "dist").glob("*.whl")))


def interpreters(prefix: Path, python: str | None) -> tuple[Path, ...]:
    """Return where an interpreter for a wheel may be: beside what compiled it, or on PATH."""
    found = shutil.which(f"python{python}" if python else "python3")
    return (prefix / "bin" / "python", *([Path(found)] if found else []))
