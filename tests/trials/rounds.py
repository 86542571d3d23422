"""Run the fleet's whole trials round by round, unattended, and look after each for what it has left on this computer.

    .venv/bin/python -m tests.trials.rounds [--rounds N] [--only LETTER ...] [--logs FOLDER]

Prints a line of a table for each trial, and at the end how often each went well. The exit code is 1 when one failed, or
left a process, a container, a volume, a network, a mount or a temporary file.
"""

from __future__ import annotations

import argparse
import os
import shutil
import subprocess
import sys
import tempfile
import time
from collections import Counter
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
RUNS = "tests/integration/fleet/test_runs.py::test_a_way_to_all_workers_that_is_blocked_for_longer_than_the_patience"
# The trials by their letters: what happens, and the words after `python -m`.
TRIALS: dict[str, tuple[str, tuple[str, ...]]] = {
    "a": ("Slurm: killed, its controller stopped, a node drained", ("pytest", "tests/integration/test_slurm.py")),
    "b": ("ssh is cut for longer than the patience", ("pytest", f"{RUNS}_costs_no_build")),
    "c": ("detached: its process killed twice", ("pytest", "tests/integration/fleet/test_detached.py")),
    "d": ("actions on a remote executor", ("pytest", "tests/integration/test_remote_execution.py")),
    "e": (
        "OpenStack: killed, quota, no answer",
        ("pytest", "tests/integration/fleet/test_clouds.py", "-k", "openstack"),
    ),
    "f": ("AWS: killed, no capacity, throttled", ("pytest", "tests/integration/fleet/test_clouds.py", "-k", "aws")),
    "g": ("a chain of stopped and killed jobs", ("pytest", "tests/integration/test_compile.py", "-k", "chain")),
    "h": ("spot: the provider takes a worker back", ("tests.trials.faults", "--only", "notice")),
}
SETTLED = 30.0  # seconds within which what ends by itself is gone
OWN = "pytest-"  # begins what pytest keeps of its last runs


def main() -> None:
    """Run the rounds and print the table."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--rounds", type=int, default=10, metavar="N")
    parser.add_argument("--only", action="append", choices=sorted(TRIALS), metavar="LETTER", help="(repeatable)")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the output of each trial there")
    options = parser.parse_args()
    good: Counter[str] = Counter()
    letters = options.only or list(TRIALS)
    print("| round | trial | ended | after | left |\n|---|---|---|---|---|", flush=True)
    for number in range(1, options.rounds + 1):
        for letter in letters:
            title, words = TRIALS[letter]
            log = options.logs and options.logs / f"{number:02}-{letter}.log"
            good[letter] += run_trial(f"{number} | {letter}: {title}", words, log)
    print("", *(f"{letter}: {good[letter]} of {options.rounds}" for letter in letters), sep="\n")
    sys.exit(any(good[letter] < options.rounds for letter in letters))


def run_trial(title: str, words: tuple[str, ...], log: Path | None) -> bool:
    """Run a trial, print its line, and return whether it went well and left nothing."""
    # Its own folder for temporary files, by which its processes are known, too; sockets in it need a short path.
    folder = Path(tempfile.mkdtemp(prefix="r-"))
    before, started = kept(), time.monotonic()
    more = ("--quiet", "-rs") if words[0] == "pytest" else ()
    ended = subprocess.run(
        (sys.executable, "-m", *words, *more),
        cwd=ROOT,
        env={**os.environ, "TMPDIR": str(folder)},
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        check=False,
    )
    took = time.monotonic() - started
    if log is not None:
        log.parent.mkdir(parents=True, exist_ok=True)
        log.write_bytes(ended.stdout)
    while (left := [*sorted(kept() - before), *left_in(folder)]) and time.monotonic() < started + took + SETTLED:
        time.sleep(1)
    result = "well" if ended.returncode == 0 else f"with {ended.returncode}"
    if b"SKIPPED" in ended.stdout:
        result = "skipped"
    print(f"| {title} | {result} | {took:.0f} s | {', '.join(left) or 'nothing'} |", flush=True)
    if not left:
        shutil.rmtree(folder)
    return result == "well" and not left


def kept() -> set[str]:
    """Return the containers, volumes and networks of this computer, and Ansible's files in the user's home."""
    kinds = {
        "container": ("ps", "--all", "--format={{.Names}}"),
        "volume": ("volume", "ls", "--quiet"),
        "network": ("network", "ls", "--format={{.Name}}"),
    }
    found = {f"file {path.name}" for path in (Path.home() / ".ansible" / "tmp").glob("*")}
    for kind, words in kinds.items():
        listed = subprocess.run(("docker", *words), capture_output=True, text=True, check=False)
        found |= {f"{kind} {name}" for name in listed.stdout.split()}
    return found


def left_in(folder: Path) -> list[str]:
    """Return what a trial has left: files in its folder, mounts there, and processes that have its variable."""
    result = [f"file {path.name}" for path in folder.iterdir() if not path.name.startswith(OWN)]
    mounts = Path("/proc/self/mounts").read_text(encoding="utf-8").splitlines()
    result += [f"mount {line.split()[1]}" for line in mounts if line.split()[1].startswith(f"{folder}/")]
    for process in Path("/proc").glob("[0-9]*"):
        try:
            if f"TMPDIR={folder}\0".encode() in (process / "environ").read_bytes():
                words = (process / "cmdline").read_bytes().replace(b"\0", b" ").decode(errors="replace")
                result.append(f"process {process.name} {words[:60]}")
        except OSError:
            continue  # it has ended
    return result


if __name__ == "__main__":
    main()
