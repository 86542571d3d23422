"""Break kiln in sixty places, one at a time, and see which lane of tests notices.

    .venv/bin/python -m tests.trials.mutants [--lanes LANE ...] [--reached FOLDER] [NUMBER ...]

`mutants.csv` lists the faults: a file, the line as it is, the line as it becomes. Each lane first runs once as the code
stands, while each process records which functions of kiln it enters (`reached/`, kept in FOLDER for another time); this
needs Python 3.12. Then a fault is put into a copy, and the lane's tests that enter its function run, the quickest
first, until one fails. What a lane does not notice goes to the next one.
"""

from __future__ import annotations

import argparse
import ast
import csv
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from collections import defaultdict
from dataclasses import dataclass
from pathlib import Path

from tests.lanes import ADDED, Lane

ROOT = Path(__file__).resolve().parents[2]
TABLE = Path(__file__).with_name("mutants.csv")
RECORDER = Path("tests", "trials", "reached")
BATCH = 200  # tests in one process
LEAST, TIMES = 60.0, 10  # seconds for a batch, and times what it took: a fault that makes a test wait is noticed, too


@dataclass(frozen=True, slots=True, kw_only=True)
class Mutant:
    """A fault: in a file, a line and what it becomes."""

    number: int
    path: str
    before: str
    after: str

    def write_into(self, root: Path) -> str:
        """Put the fault into a copy; returns the function that it is in, as the recorder names it.

        Raises:
            ValueError: when the file does not have the line exactly once.
        """
        file = root / self.path
        lines = file.read_text(encoding="utf-8").splitlines()
        if lines.count(self.before) != 1:
            raise ValueError(f"mutants.csv, number {self.number}: not one line of {self.path}: {self.before.strip()}")
        number = lines.index(self.before)
        functions = [
            node
            for node in ast.walk(ast.parse("\n".join(lines)))
            if isinstance(node, ast.FunctionDef | ast.AsyncFunctionDef) and node.lineno <= number + 1
            if node.end_lineno is not None and number < node.end_lineno
        ]
        inner = max(functions, key=lambda node: node.lineno)
        first = min([inner.lineno, *(item.lineno for item in inner.decorator_list)])
        lines[number] = self.after
        file.write_text("\n".join(lines) + "\n", encoding="utf-8")
        return f"{self.path}:{first}"


def mutants() -> list[Mutant]:
    """Read the table."""
    with TABLE.open(encoding="utf-8", newline="") as file:
        return [Mutant(number=number, **row) for number, row in enumerate(csv.DictReader(file), 1)]


class Reached:
    """What the processes of a lane recorded: the tests that enter each function, and how long each takes."""

    def __init__(self, folder: Path) -> None:
        self.seconds: dict[str, float] = json.loads((folder / "seconds.json").read_text(encoding="utf-8"))
        entering: defaultdict[str, set[str]] = defaultdict(set)
        for file in folder.glob("*.txt"):
            test = ""
            for line in file.read_text(encoding="utf-8", errors="replace").splitlines():
                if line.startswith("test "):
                    test = line.removeprefix("test ")
                elif test in self.seconds:
                    entering[line].add(test)
        self.entering = entering

    def by(self, function: str) -> list[str]:
        """Return the tests that enter a function, then the others that enter its file: a result may be cached."""
        direct, file = self.entering[function], f"{function.rpartition(':')[0]}:"
        others = set[str]().union(*(tests for name, tests in self.entering.items() if name.startswith(file))) - direct
        return [*sorted(direct, key=self.seconds.__getitem__), *sorted(others, key=self.seconds.__getitem__)]


class Copy:
    """A clone of the project as it is committed, with an environment of its own."""

    def __init__(self, folder: Path) -> None:
        self.root = folder / "project"
        subprocess.run(("git", "clone", "--quiet", ROOT, self.root), check=True)
        subprocess.run(
            (sys.executable, "-m", "tests", "--version"), cwd=self.root, check=True, stdout=subprocess.DEVNULL
        )

    def pytest(self, *words: str, reached: Path | None = None, longest: float | None = None) -> int:
        """Run tests; returns pytest's exit code, which is 1 for a run of more than ``longest`` seconds, too."""
        environment = dict(os.environ)
        if reached is not None:
            environment |= {"KILN_REACHED": str(reached), "PYTHONPATH": str(self.root / RECORDER)}
        argv = (".venv/bin/python", "-m", "pytest", "-p", "no:cacheprovider", "--quiet", *words)
        with subprocess.Popen(
            argv, cwd=self.root, env=environment, stdout=subprocess.DEVNULL, start_new_session=True
        ) as process:
            try:
                return process.wait(longest)
            except subprocess.TimeoutExpired:
                os.killpg(process.pid, signal.SIGKILL)
                return 1

    def noticed(self, mutant: Mutant, reached: Reached) -> str:
        """Say whether tests notice a fault: "noticed", "missed", or "not reached"."""
        file = self.root / mutant.path
        kept = file.read_bytes()
        try:
            reaching = reached.by(mutant.write_into(self.root))
            for start in range(0, len(reaching), BATCH):
                batch = reaching[start : start + BATCH]
                longest = LEAST + TIMES * sum(reached.seconds[test] for test in batch)
                if self.pytest("--exitfirst", *batch, longest=longest):
                    return "noticed"
        finally:
            file.write_bytes(kept)
        return "missed" if reaching else "not reached"


def record(copy: Copy, lane: Lane, folder: Path) -> None:
    """Run a lane once, with a recorder in each process."""
    folder.mkdir(parents=True)
    code = copy.pytest("-p", "tests.trials.reached.plugin", *ADDED[lane], reached=folder)
    if code:
        shutil.rmtree(folder)
        raise SystemExit(f"error: without a fault the tests of {lane} end with exit code {code}")


def main() -> None:
    """Print a line for each fault, and how many each lane noticed."""
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("numbers", nargs="*", type=int, help="faults of the table (default: all)")
    parser.add_argument("--lanes", nargs="+", type=Lane, default=list(Lane), help="default: fast default all")
    parser.add_argument("--reached", type=Path, help="keep the recorded functions in this folder, and find them there")
    options = parser.parse_args()
    if not hasattr(sys, "monitoring"):
        parser.error("Python 3.12 or newer is needed, which tells what functions are entered")
    left = [mutant for mutant in mutants() if not options.numbers or mutant.number in options.numbers]
    count = len(left)
    with tempfile.TemporaryDirectory(prefix="kiln-mutants-") as scratch:
        copy = Copy(Path(scratch))
        for lane in options.lanes:
            folder = (options.reached or Path(scratch)) / lane
            if not folder.exists():
                record(copy, lane, folder)
            reached = Reached(folder)
            for mutant in list(left):
                outcome = copy.noticed(mutant, reached)
                print(f"{mutant.number:3} {lane:8} {outcome:12} {mutant.path}: {mutant.after.strip()}", flush=True)
                if outcome == "noticed":
                    left.remove(mutant)
            print(f"{lane}: {count - len(left)} of {count} noticed so far", flush=True)


if __name__ == "__main__":
    main()
