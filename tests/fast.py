"""The fast lane, `python -m tests --fast`: linter, formatter, types and unit tests in parallel.

Each check runs in a separate process; the output of a failed one is printed, and one line for each of the others.
"""

from __future__ import annotations

import contextlib
import heapq
import json
import os
import subprocess
import sys
import tempfile
import time
from collections import defaultdict
from concurrent.futures import ThreadPoolExecutor, as_completed
from operator import itemgetter
from pathlib import Path
from xml.etree import ElementTree as ET

from kiln import files
from kiln.errors import KilnError

ROOT = Path(__file__).resolve().parents[1]
CORES = os.cpu_count() or 1
# More parts of the unit tests than cores, since some tests wait. A part collects only its own files; pytest-xdist
# collects all files in every process, and adds 2 ms to each test.
PARTS = min(CORES + 2, 12)
SECONDS = ROOT / ".pytest_cache" / "unit-test-seconds.json"  # by file, in the last run
BYTES_IN_A_SECOND = 16_000  # of a file of tests that has not run yet, by the average
# A quarter of the property tests' examples, of which .ci/run has all.
UNIT_TESTS = ("pytest", "tests/unit", "--quiet", "--hypothesis-profile=fast")
CHECKS = {
    "types": ("mypy", "--platform", "linux"),
    "lint": ("ruff", "check", "--quiet"),
    "format": ("ruff", "format", "--check", "--quiet"),
}


def main() -> None:
    """Run all checks; the exit code is 1 when one of them fails."""
    started_at = time.monotonic()
    with tempfile.TemporaryDirectory(prefix="kiln-fast-") as folder, ThreadPoolExecutor(PARTS + 1) as pool:
        checks = {**CHECKS, **unit_test_checks(Path(folder))}
        futures = [pool.submit(check, title, words) for title, words in checks.items()]
        failures = sum(not report(*future.result()) for future in as_completed(futures))
        store_seconds(Path(folder))
    print(f"{len(checks) - failures} of {len(checks)} checks passed: {time.monotonic() - started_at:.0f} s")
    sys.exit(failures > 0)


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
        checks[f"unit tests {number} of {PARTS}"] = (*UNIT_TESTS, f"--only={listed}", *results)
    return checks


def store_seconds(folder: Path) -> None:
    """Store how long each file of unit tests took, by the results in ``folder``, for the parts of the next run."""
    seconds: defaultdict[str, float] = defaultdict(float)
    for results in folder.glob("*.xml"):
        for case in ET.parse(results).iter("testcase"):
            seconds[case.get("file", "")] += float(case.get("time", 0))
    with contextlib.suppress(OSError, KilnError):  # another user's folder: the next run has parts by size
        SECONDS.parent.mkdir(exist_ok=True)
        files.write_text(SECONDS, json.dumps(seconds))


def check(title: str, words: tuple[str, ...]) -> tuple[str, subprocess.CompletedProcess[str], float]:
    """Run one check; return its title, its result, and its duration in seconds."""
    started_at = time.monotonic()
    argv = (sys.executable, "-m", *words)
    process = subprocess.run(
        argv,
        cwd=ROOT,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        encoding="utf-8",
        errors="replace",
        check=False,
    )
    return title, process, time.monotonic() - started_at


def report(title: str, process: subprocess.CompletedProcess[str], seconds: float) -> bool:
    """Print one check's result, and its output when it failed; return whether it passed."""
    print(f"{'failed' if process.returncode else 'passed'}: {title} ({seconds:.0f} s)", flush=True)
    if process.returncode:
        print(process.stdout, flush=True)
    return process.returncode == 0


if __name__ == "__main__":
    main()
