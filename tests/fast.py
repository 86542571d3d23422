"""The fast lane, `python -m tests --fast`: linter, formatter, types and unit tests in parallel.

Each check runs in a separate process; the output of a failed one is printed, and one line for each of the others.
"""

from __future__ import annotations

import os
import subprocess
import sys
import time
from concurrent.futures import ThreadPoolExecutor, as_completed
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]
CORES = os.cpu_count() or 1
# Some parts of the unit tests for each core, so that all cores end at about the same time. A part collects only its own
# files; pytest-xdist collects all files in every process, and adds 2 ms to each test.
PARTS = min(4 * CORES, 12)
UNIT_TESTS = {
    f"unit tests {part} of {PARTS}": ("pytest", "tests/unit", "--quiet", f"--part={part}/{PARTS}")
    for part in range(1, PARTS + 1)
}
CHECKS = {
    "types": ("mypy", "--platform", "linux"),
    "lint": ("ruff", "check", "--quiet"),
    "format": ("ruff", "format", "--check", "--quiet"),
    **UNIT_TESTS,
}


def main() -> None:
    """Run all checks; the exit code is 1 when one of them fails."""
    started_at = time.monotonic()
    with ThreadPoolExecutor(CORES + 2) as pool:  # more processes than cores: some tests wait for other processes
        futures = [pool.submit(check, title, words) for title, words in CHECKS.items()]
        failures = sum(not report(*future.result()) for future in as_completed(futures))
    print(f"{len(CHECKS) - failures} of {len(CHECKS)} checks passed: {time.monotonic() - started_at:.0f} s")
    sys.exit(failures > 0)


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
