"""Kill `kiln fleet run` at random moments, run the same command again, and compare with an undisturbed run.

    .venv/bin/python -m tests.trials.fleet [--seed N] [--trials N] [--minutes N]

The workers are containers that boot as machines do (`--provider local`). Each trial starts the run in a fresh copy
of the small feedstock, kills it with ``-9`` after a random part of the time that it takes (the command itself,
everything at once, or one process below it), runs the same command to its end, and `kiln fleet down`. The packages
must be those of an undisturbed run, and no container, process, key or open run may remain.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import random
import shutil
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.conda.package_reader import read_info_json
from kiln.fleet.ansible import playbooks
from kiln.fleet.records import FleetLedger
from tests import shared_inputs
from tests.trials.kills import CONFIGS, ENVIRONMENT, ROOT, SMALL, VICTIMS, Tally, killed, show

if TYPE_CHECKING:
    from collections.abc import Mapping

CHOSEN = (CONFIGS[0], CONFIGS[-1])


def main() -> None:
    """Run the trials and print one line; the exit code is 1 when one of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, default=40, metavar="N")
    parser.add_argument("--minutes", type=float, default=float("inf"), metavar="N", help="begin no trial after so many")
    options = parser.parse_args()
    make_image()
    with tempfile.TemporaryDirectory(prefix="kiln-fleet-kills-") as folder:
        tally = trials(Path(folder), options)
    print(f"fleet: {tally.trials} killed, {len(tally.faults)} wrong ({tally.late} more had ended before)")
    for fault in tally.faults:
        print(fault, file=sys.stderr)
    sys.exit(bool(tally.faults))


def make_image() -> None:
    """Make the image of the workers where it is not there."""
    shared_inputs.worker_image(shared_inputs.docker_engine())


def trials(folder: Path, options: argparse.Namespace) -> Tally:
    """Kill the run so many times, each time in a fresh copy, as long as there is time."""
    tally, dice = Tally(), random.Random(f"{options.seed} fleet")
    root, end = folder / "small-feedstock", time.monotonic() + 60 * options.minutes
    shutil.copytree(SMALL, root)
    began = time.monotonic()
    finish(run_words(root))
    seconds, expected = time.monotonic() - began, packages(root)
    shutil.rmtree(root)
    while tally.trials < options.trials and time.monotonic() < end:
        shutil.copytree(SMALL, root)
        moment, victim = dice.random() * seconds, dice.choice(VICTIMS)
        in_time = killed(run_words(root), moment, victim, dice)
        tally.trials += in_time
        tally.late += not in_time
        if problem := outcome_after(root, expected):
            tally.faults.append(f"fleet {tally.trials}, {victim} killed after {moment:.2f} s: {problem}")
        show(f"fleet {tally.trials} of {options.trials}, {len(tally.faults)} wrong")
        shutil.rmtree(root)
    return tally


def run_words(root: Path) -> tuple[str, ...]:
    """Return the arguments that build two configs on two workers."""
    words = ("-C", str(root), "fleet", "run", *CHOSEN, "--provider", "local")
    return (*words, "--workers", "2", "--container", "none", "--poll", "1s")


def finish(words: tuple[str, ...]) -> subprocess.CompletedProcess[str]:
    """Run a command of kiln's to its end, which must be a good one."""
    argv = (sys.executable, "-m", "kiln", *words)
    return subprocess.run(argv, cwd=ROOT, env=ENVIRONMENT, check=True, capture_output=True, text=True)


def outcome_after(root: Path, expected: Mapping[str, str]) -> str:
    """Run a killed command again; return what is wrong afterwards, or nothing."""
    try:
        finish(run_words(root))
        finish(("-C", str(root), "fleet", "down"))
    except subprocess.CalledProcessError as failed:
        return f"exit code {failed.returncode}: {failed.stderr[-600:]}"
    outcome = packages(root)
    if outcome != expected:
        return f"differs in {sorted(set(outcome.items()) ^ set(expected.items()))}"
    left = leftovers(root)
    return f"left: {', '.join(left)}" if left else ""


def packages(root: Path) -> Mapping[str, str]:
    """Return what is in each package: its files by their hashes, and its metadata but for the time of its making."""
    return {
        path.name: hashlib.sha256(json.dumps([contents(path), metadata(path)], sort_keys=True).encode()).hexdigest()
        for path in sorted((root / "build_artifacts" / "linux-64").glob("*.conda"))
    }


def contents(package: Path) -> Any:
    """Return the files of a package with their hashes."""
    return read_info_json(package, "paths.json")


def metadata(package: Path) -> Any:
    """Return what an index says of a package, but for its time."""
    return {name: value for name, value in read_info_json(package, "index.json").items() if name != "timestamp"}


def leftovers(root: Path) -> list[str]:
    """Return what is left of the runs of a feedstock."""
    left: list[str] = []
    with FleetLedger(root / "build_artifacts" / "ledger.sqlite") as ledger:
        runs = ledger.fleet_runs()
    for run in runs:
        folder = root / "build_artifacts" / "fleet" / run.id
        asked = ("docker", "ps", "--all", "--quiet", "--filter", f"label=kiln-run={run.id}")
        left += subprocess.run(asked, check=True, capture_output=True, text=True).stdout.split()
        left += [f"run {run.id} is open"] if run.finished is None else []
        left += [f"process {pid}" for pid in playbooks.find_processes_of_run(folder)]
        left += [str(path) for place in ("keys", "claims", "inventory") for path in folder.glob(f"{place}/*")]
    return left


if __name__ == "__main__":
    main()
