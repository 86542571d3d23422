"""Kill three commands at random moments, run each again, and compare with an undisturbed run.

    .venv/bin/python -m tests.trials.kills [--seed N] [--builds N] [--publications N] [--installs N]

Each trial starts the real command on a fresh copy, kills it with ``-9`` after a random part of the time that it takes
(the command itself, everything at once, or one process below it), and runs the same command to its end. The result
must be what an undisturbed run leaves, and no process, lock or half-written file may remain.
"""

from __future__ import annotations

import argparse
import hashlib
import os
import random
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import process_table

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

ROOT = Path(__file__).resolve().parents[2]
SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
CONFIGS = sorted(file.stem for file in (SMALL / ".ci_support").glob("*.yaml"))
CONFIG, OTHERS = CONFIGS[-1], CONFIGS[:-1]
ENVIRONMENT = {**os.environ, "SOURCE_DATE_EPOCH": "1790000000"}  # so that packages are equal byte for byte
VICTIMS = ("the command", "everything", "a process below it")


@dataclass(frozen=True, slots=True, kw_only=True)
class Operation:
    """A command to kill: ``words`` follow ``kiln`` in a copied folder, ``outcome`` maps names to hashes there.

    ``start`` is the prepared folder of which that is a copy.
    """

    name: str
    start: str
    words: Callable[[Path], tuple[str, ...]]
    outcome: Callable[[Path], Mapping[str, str]]
    leftovers: Callable[[Path], list[str]]


@dataclass(slots=True, kw_only=True)
class Tally:
    """The results of the trials of one operation; ``late`` had ended before they could be killed."""

    trials: int = 0
    late: int = 0
    faults: list[str] = field(default_factory=list)


def main() -> None:
    """Run the trials and print one line for each operation; the exit code is 1 when one of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    for operation in OPERATIONS:
        parser.add_argument(f"--{operation.name}", type=int, default=60, metavar="N")
    options = parser.parse_args()
    tallies = {}
    with tempfile.TemporaryDirectory(prefix="kiln-kills-") as folder:
        prepared = prepare(Path(folder) / "prepared")
        for operation in OPERATIONS:
            number = getattr(options, operation.name)
            dice = random.Random(f"{options.seed} {operation.name}")
            tallies[operation.name] = trials(operation, prepared, Path(folder) / operation.name, number, dice)
    for name, tally in tallies.items():
        print(f"{name}: {tally.trials} killed, {len(tally.faults)} wrong ({tally.late} more had ended before)")
    for fault in (fault for tally in tallies.values() for fault in tally.faults):
        print(fault, file=sys.stderr)
    sys.exit(any(tally.faults for tally in tallies.values()))


def prepare(folder: Path) -> Path:
    """Make what every trial begins with: a feedstock fit to be released, and built, and a channel of its packages."""
    fresh, built = folder / "fresh", folder / "built"
    shutil.copytree(SMALL, fresh)
    meta, script = fresh / "recipe" / "meta.yaml", fresh / "recipe" / "build.sh"
    meta.write_text(meta.read_text().replace("  summary:", "  license_file: LICENCE\n  summary:"))
    script.write_text(f"{script.read_text()}echo 'public domain' >LICENCE\n")
    (fresh / "outputs.txt").write_text("small\nlibsmall\n")
    shutil.copytree(fresh, built)
    finish(built, build_words(built))
    finish(built, publish_words(built))
    (built / "channel").rename(folder / "channel")
    return folder


def build_words(root: Path) -> tuple[str, ...]:
    """Return the arguments that build two configs."""
    return ("-C", str(root), "build", CONFIG, OTHERS[0], "--container", "none", "--jobs", "2")


def publish_words(root: Path) -> tuple[str, ...]:
    """Return the arguments that publish what was built."""
    partial = (word for config in OTHERS[1:] for word in ("--partial", config))
    return ("-C", str(root), "publish", "--to", str(root / "channel"), *partial)


def install_words(root: Path) -> tuple[str, ...]:
    """Return the arguments that install from the channel of the preparation."""
    source = str(root / "channel")
    return ("install", "small", "--from", source, "--prefix", str(root / "prefix"), "--cache", str(root / "cache"))


def trials(operation: Operation, prepared: Path, folder: Path, number: int, dice: random.Random) -> Tally:
    """Kill an operation so many times, each time in a fresh copy."""
    tally = Tally()
    if not number:
        return tally
    expected, seconds = undisturbed(operation, prepared, folder / "trial")
    while tally.trials < number and tally.late < 4 * number:
        work = begin(operation, prepared, folder / "trial")
        moment, victim = dice.random() * seconds, dice.choice(VICTIMS)
        in_time = killed(operation.words(work), moment, victim, dice)
        tally.trials += in_time
        tally.late += not in_time
        problem = outcome_after(operation, work, expected)
        if problem:
            tally.faults.append(f"{operation.name} {tally.trials}, {victim} killed after {moment:.2f} s: {problem}")
        show(f"{operation.name} {tally.trials} of {number}, {len(tally.faults)} wrong")
        shutil.rmtree(work)
    return tally


def begin(operation: Operation, prepared: Path, work: Path) -> Path:
    """Copy what an operation begins with, always to the same place: packages hold the paths they were built in."""
    target = work / operation.start if operation.start == "channel" else work
    shutil.copytree(prepared / operation.start, target, symlinks=True)
    return work


def undisturbed(operation: Operation, prepared: Path, folder: Path) -> tuple[Mapping[str, str], float]:
    """Return what an operation leaves when nobody kills it, and how long it takes."""
    work = begin(operation, prepared, folder)
    began = time.monotonic()
    finish(work, operation.words(work))
    seconds = time.monotonic() - began
    outcome = operation.outcome(work)
    shutil.rmtree(work)
    return outcome, seconds


def finish(folder: Path, words: tuple[str, ...]) -> None:
    """Run a command of kiln's to its end, which must be a good one."""
    folder.mkdir(exist_ok=True)
    subprocess.run((sys.executable, "-m", "kiln", *words), cwd=ROOT, env=ENVIRONMENT, check=True, capture_output=True)


def killed(words: tuple[str, ...], moment: float, victim: str, dice: random.Random) -> bool:
    """Kill a command after some seconds; returns whether it was still at work then."""
    argv = (sys.executable, "-m", "kiln", *words)
    with subprocess.Popen(
        argv, cwd=ROOT, env=ENVIRONMENT, stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    ) as process:
        with suppress(subprocess.TimeoutExpired):
            process.wait(timeout=moment)
            return False
        children = below(process.pid)
        if victim == "a process below it" and children:
            kill([dice.choice(children)])
        else:
            kill([process.pid, *(children if victim == "everything" else ())])
        process.wait()
    return True


def kill(pids: list[int]) -> None:
    """End processes without a word."""
    for pid in pids:
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


def below(root: int) -> list[int]:
    """Return the processes below one."""
    return [process.pid for process in process_table.processes_with_descendants(root) if process.pid != root]


def outcome_after(operation: Operation, work: Path, expected: Mapping[str, str]) -> str:
    """Run a killed command again; return what is wrong afterwards, or nothing."""
    argv = (sys.executable, "-m", "kiln", *operation.words(work))
    again = subprocess.run(argv, cwd=ROOT, env=ENVIRONMENT, capture_output=True, text=True, check=False, timeout=900)
    if again.returncode:
        return f"exit code {again.returncode}: {again.stderr[-600:]}"
    outcome = operation.outcome(work)
    if outcome != expected:
        return f"differs in {sorted(set(outcome.items()) ^ set(expected.items()))}"
    leftovers = [*operation.leftovers(work), *at_work_in(work)]
    return f"left: {', '.join(leftovers)}" if leftovers else ""


def at_work_in(folder: Path) -> list[str]:
    """Return the processes whose working folder or command line is below a folder."""
    return [
        process.name
        for process in Path("/proc").iterdir()
        if process.name.isdigit() and int(process.name) != os.getpid() and is_at_work(process, str(folder))
    ]


def is_at_work(process: Path, folder: str) -> bool:
    """Return whether a process has to do with a folder; one that has ended has not."""
    with suppress(OSError):
        return str((process / "cwd").readlink()).startswith(folder) or folder in (process / "cmdline").read_text()
    return False


def packages(root: Path) -> Mapping[str, str]:
    """Return the hashes of the packages below a folder that a client sees."""
    return {
        str(path.relative_to(root)): digest(path)
        for path in sorted(root.rglob("*.conda"))
        if path.parent.name in {"linux-64", "noarch"} and "work" not in path.relative_to(root).parts
    }


def built_packages(root: Path) -> Mapping[str, str]:
    """Return the packages in a feedstock's channel."""
    return packages(root / "build_artifacts")


def published_packages(root: Path) -> Mapping[str, str]:
    """Return the packages in the channel, and which of them its index names."""
    index = (root / "channel/linux-64/repodata.json").read_bytes()
    return {**packages(root / "channel"), "repodata.json": hashlib.sha256(index).hexdigest()}


def installed_files(root: Path) -> Mapping[str, str]:
    """Return the files of the prefix, without conda's records, which hold the time of the installation."""
    prefix = root / "prefix"
    return {
        str(path.relative_to(prefix)): digest(path)
        for path in sorted(prefix.rglob("*"))
        if path.is_file() and "conda-meta" not in path.parts
    }


def digest(path: Path) -> str:
    """Return a file's SHA-256."""
    return hashlib.sha256(path.read_bytes()).hexdigest()


def left_by_builds(root: Path) -> list[str]:
    """Return what a finished build should not leave: work folders of its configs, and unfinished files."""
    artifacts = root / "build_artifacts"
    return [str(path) for config in (CONFIG, OTHERS[0]) for path in artifacts.glob(f"work/{config}*")] + hidden(
        artifacts
    )


def left_by_publications(root: Path) -> list[str]:
    """Return what a finished publication should not leave: its journal, staging folders, unfinished files."""
    return [str(path) for path in (root / "channel").rglob("*journal*")] + hidden(root / "channel")


def left_by_installs(root: Path) -> list[str]:
    """Return what a finished install should not leave next to its prefix."""
    return [path.name for path in root.iterdir() if path.name not in {"channel", "prefix", "cache"}]


def hidden(root: Path) -> list[str]:
    """Return the temporary files of atomic writes."""
    return [str(path) for path in root.rglob("*") if path.suffix in {".part", ".tmp", ".partial"}]


def show(text: str) -> None:
    """Show how far the trials are, on a terminal alone."""
    if sys.stderr.isatty():
        print(f"\r{text}\033[K", end="", file=sys.stderr, flush=True)


OPERATIONS = (
    Operation(name="builds", start="fresh", words=build_words, outcome=built_packages, leftovers=left_by_builds),
    Operation(
        name="publications",
        start="built",
        words=publish_words,
        outcome=published_packages,
        leftovers=left_by_publications,
    ),
    Operation(
        name="installs", start="channel", words=install_words, outcome=installed_files, leftovers=left_by_installs
    ),
)

if __name__ == "__main__":
    main()
