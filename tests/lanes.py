"""The lanes of tests: `python -m tests --fast`, `python -m tests`, `python -m tests --all`; each holds the one before.

The fast lane is the linter, the formatter, the types and the unit tests, in parallel, each check in a separate process;
the output of a failed one is printed, and one line for each of the others. The next lane adds the integration tests
without those marked ``sampled``, and ``--all`` these and all examples of the property tests. What takes longer still
is a program in tests/trials.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import signal
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from enum import Enum
from operator import itemgetter
from pathlib import Path
from xml.etree import ElementTree as ET

from kiln.base import files
from kiln.base.errors import KilnError

ROOT = Path(__file__).resolve().parents[1]
CORES = os.cpu_count() or 1
# More parts of the unit tests than cores, since some tests wait. A part collects only its own files; pytest-xdist
# collects all files in every process, and adds 2 ms to each test.
PARTS = min(CORES + 2, 12)
SECONDS = ROOT / ".pytest_cache" / "unit-test-seconds.json"  # by file, in the last run
BYTES_IN_A_SECOND = 16_000  # of a file of tests that has not run yet, by the average
SLOWEST = 5  # unit tests to name
# Seconds for a check of the fast lane. One that hangs, also when its last test is over, ends with its threads' stacks.
LIMIT = 1800


class Lane(str, Enum):
    """A lane by the name of its option; the one without is ``default``."""

    FAST = "fast"
    DEFAULT = "default"
    ALL = "all"


# What each lane adds to the one before, for pytest. A quarter of the property tests' examples is enough for all but
# the last, which runs these tests again.
ADDED = {
    Lane.FAST: ("tests/unit", "--hypothesis-profile=fast"),
    Lane.DEFAULT: ("tests/integration", "-m", "not sampled and not trial"),
    Lane.ALL: ("tests/integration", "-m", "sampled and not trial"),
}
# More processes than cores, since many tests wait: for a container, a server, a lease that ends. The tests of a file
# stay together, for they share what was built for them.
PARALLEL = ("--numprocesses", str(CORES + 1), "--dist", "loadfile", "--no-loadscope-reorder")
TRIALS = "trials (tests/trials, and -m trial), which take hours or programs that CI has not"
CHECKS = {
    "types": ("mypy", "--platform", "linux"),
    "lint": ("ruff", "check", "--quiet"),
    "format": ("ruff", "format", "--check", "--quiet"),
}


def main() -> None:
    """Run a lane; the exit code is 1 when a part of it fails."""
    started_at = time.monotonic()
    lane = Lane(sys.argv[1].removeprefix("--")) if sys.argv[1:] else Lane.DEFAULT
    passed = run_checks()
    if lane is Lane.DEFAULT:
        passed &= run_pytest(*ADDED[Lane.DEFAULT], *PARALLEL)
    elif lane is Lane.ALL:
        passed &= run_pytest("tests/unit", "-m", "hypothesis", *PARALLEL)
        passed &= run_pytest("tests/integration", "-m", "not trial", *PARALLEL)
    print(f"{'passed' if passed else 'failed'} in {time.monotonic() - started_at:.0f} s; not run: {left_out(lane)}")
    sys.exit(not passed)


def left_out(lane: Lane) -> str:
    """Say what a lane leaves out, with the command for it."""
    texts = {
        Lane.FAST: "whole flows (python -m tests)",
        Lane.DEFAULT: "kills, races, clouds, more containers and more examples (python -m tests --all)",
    }
    return ", ".join(
        [*(text for key, text in texts.items() if list(Lane).index(key) >= list(Lane).index(lane)), TRIALS]
    )


def run_pytest(*words: str) -> bool:
    """Run tests in this terminal."""
    return subprocess.run((sys.executable, "-m", "pytest", "--quiet", *words), cwd=ROOT, check=False).returncode == 0


def run_checks() -> bool:
    """Run the checks of the fast lane; returns whether all passed."""
    started_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kiln-fast-") as folder, ThreadPoolExecutor(PARTS + 1) as pool:
        checks = {**CHECKS, **unit_test_checks(Path(folder))}
        futures = [pool.submit(check, title, words) for title, words in checks.items()]
        failures = sum(not report(*future.result()) for future in as_completed(futures))
        store_seconds(Path(folder))
    print(f"{len(checks) - failures} of {len(checks)} checks passed: {time.monotonic() - started_at:.0f} s", flush=True)
    return not failures


def unit_test_checks(folder: Path) -> dict[str, tuple[str, ...]]:
    """Divide the files of the unit tests into parts that take about the same time; ``folder`` has lists and results."""
    known = json.loads(files.text_or_empty(SECONDS) or "{}")
    seconds = {}
    for path in (ROOT / "tests" / "unit").rglob("test_*.py"):
        file = path.relative_to(ROOT).as_posix()
        seconds[file] = known.get(file, path.stat().st_size / BYTES_IN_A_SECOND)
    parts: list[tuple[float, int, list[str]]] = [(0.0, number, []) for number in range(1, PARTS + 1)]
    for file in sorted(seconds, key=seconds.__getitem__, reverse=True):
        total, number, part = parts[0]  # the one that takes the least time so far
        heapq.heapreplace(parts, (total + seconds[file], number, [*part, file]))
    checks: dict[str, tuple[str, ...]] = {}
    for _, number, part in sorted(parts, key=itemgetter(1)):
        listed = folder / f"{number}.txt"
        listed.write_text("\n".join(part), encoding="utf-8")
        results = (f"--junit-xml={folder / f'{number}.xml'}", "--override-ini=junit_family=xunit1")
        checks[f"unit tests {number} of {PARTS}"] = (
            "pytest",
            *ADDED[Lane.FAST],
            "--quiet",
            f"--only={listed}",
            *results,
        )
    return checks


def store_seconds(folder: Path) -> None:
    """Store how long each file of unit tests took, for the parts of the next run, and name the slowest tests."""
    seconds: defaultdict[str, float] = defaultdict(float)
    tests: list[tuple[float, str]] = []
    for results in folder.glob("*.xml"):
        for case in ET.parse(results).iter("testcase"):
            took = float(case.get("time", 0))
            seconds[case.get("file", "")] += took
            tests.append((took, f"{case.get('file')}::{case.get('name')}"))
    print(
        "slowest unit tests:",
        *(f"  {took:5.1f} s  {name}" for took, name in sorted(tests)[: -SLOWEST - 1 : -1]),
        sep="\n",
    )
    with contextlib.suppress(OSError, KilnError):  # another user's folder: the next run has parts by size
        SECONDS.parent.mkdir(exist_ok=True)
        files.write_text(SECONDS, json.dumps(seconds))


def check(title: str, words: tuple[str, ...]) -> tuple[str, int, str, float]:
    """Run one check; return its title, its exit code, its output, and its duration in seconds.

    The output goes to a file, since a program that a test left behind would keep a pipe open.
    """
    started_at = time.monotonic()
    argv = (sys.executable, "-X", "faulthandler", "-m", *words)
    with tempfile.TemporaryFile() as output:
        process = subprocess.Popen(argv, cwd=ROOT, stdout=output, stderr=subprocess.STDOUT)
        try:
            code = process.wait(LIMIT)
        except subprocess.TimeoutExpired:
            process.send_signal(signal.SIGABRT)
            code = process.wait()
        output.seek(0)
        text = output.read().decode(errors="replace")
    return title, code, text, time.monotonic() - started_at


def report(title: str, code: int, output: str, seconds: float) -> bool:
    """Print one check's result, and its output when it failed; return whether it passed."""
    print(f"{'failed' if code else 'passed'}: {title} ({seconds:.0f} s)", flush=True)
    if code:
        print(output, flush=True)
    return code == 0


if __name__ == "__main__":
    main()
