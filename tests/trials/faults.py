"""Inject faults into `kiln fleet run` on real workers at random moments, and compare with an undisturbed run.

    .venv/bin/python -m tests.trials.faults [--seed N] [--trials N] [--first N] [--only TEXT ...] [--minutes N]
                                            [--logs FOLDER]

The workers are containers that boot as machines do (`--provider local`); for a detached run they, and the machine of
its controller, are hosts reached by ssh (`--provider static`). Each trial builds two configs of the small feedstock, of
which each compiles for some seconds. It prints a line of a table: the fault, the second at which it struck, how the
command ended, whether the packages are those of an undisturbed run, and what is left of the run after it. The faults
are taken in turn. Some need root.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import shutil
import subprocess
import sys
import tempfile
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base.errors import KilnError
from kiln.conda.package_reader import read_info_json
from kiln.fleet.ansible import playbooks
from kiln.fleet.records import FleetLedger
from tests import shared_inputs
from tests.integration.fleet import test_detached, test_runs
from tests.integration.fleet.helpers import building, containers, docker, existing_machines, ledgered, words
from tests.trials.fault_kinds import CLOCK, FAULTS, Fault, Trial
from tests.trials.kills import CONFIGS, ENVIRONMENT, ROOT, SMALL
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Collection, Iterator, Mapping

CHOSEN = (CONFIGS[0], CONFIGS[-1])
SECONDS = 15  # of a compile
CEILING = 600.0  # seconds for a command: with faults of half a minute, none takes nearly as long
DETACHED: Mapping[str, tuple[str, ...]] = {
    "detached controller killed": ("docker", "exec", "{}", "systemctl", "kill", "--signal=KILL", "kiln-controller"),
    "detached controller's machine rebooted": ("docker", "restart", "--time=1", "{}"),
}
HEAD = "| fault | at | ended | builds begun, lost | packages equal | left |\n|---|---|---|---|---|---|"


def main() -> None:
    """Run the trials and print the table; the exit code is 1 when one of them went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--trials", type=int, metavar="N", help="the last trial's number, that of the kinds by default")
    parser.add_argument("--first", type=int, default=1, metavar="N", help="begin with the trial of this number")
    parser.add_argument(
        "--only", action="append", metavar="TEXT", help="take only the faults whose names contain TEXT (repeatable)"
    )
    parser.add_argument("--minutes", type=float, default=float("inf"), metavar="N", help="begin no trial after so many")
    parser.add_argument("--logs", type=Path, metavar="FOLDER", help="keep the messages of each run there")
    options = parser.parse_args()
    shared_inputs.worker_image(shared_inputs.docker_engine())
    chosen = options.only or [""]
    kinds = (*(fault.name for fault in FAULTS), *DETACHED)
    names = [name for name in kinds if any(text in name for text in chosen)]
    end = time.monotonic() + 60 * options.minutes
    with tempfile.TemporaryDirectory(prefix="kiln-faults-") as folder:
        expected, seconds = undisturbed(Path(folder) / "undisturbed")
        print(f"undisturbed: {seconds:.0f} s, {len(expected)} packages\n\n{HEAD}", flush=True)
        wrong = 0
        for number in range(options.first - 1, options.trials or len(names)):
            if time.monotonic() < end:
                name = names[number % len(names)]
                place = Path(folder) / str(number)
                dice = random.Random(f"{options.seed} {number}")
                right = None
                while right is None:
                    right = tried(name, place, dice, expected=expected, seconds=seconds, logs=options.logs)
                    seconds *= 0.7 if right is None else 1.0  # it had ended before its moment came
                wrong += not right
    print(f"\n{wrong} wrong")
    sys.exit(bool(wrong))


def tried(
    name: str,
    place: Path,
    dice: random.Random,
    *,
    expected: Mapping[str, str],
    seconds: float,
    logs: Path | None = None,
) -> bool | None:
    """Carry out a trial and print its line; return whether all went well, None if the run had ended before."""
    root = copied(place)
    fault = next((fault for fault in FAULTS if fault.name == name), None)
    try:
        if fault is None:
            return detached_trial(name, root, dice, expected)
        return trial_of(fault, Trial(root=root, shelf=place, dice=dice, logs=logs), expected, seconds)
    finally:
        if left := containers(root):
            docker("rm", "--force", "--volumes", *left)
        shutil.rmtree(place)


def copied(place: Path) -> Path:
    """Copy the small feedstock, with a compile that takes some seconds."""
    root = Path(shutil.copytree(SMALL, place / "small-feedstock"))
    script = root / "recipe" / "build.sh"
    script.write_text(script.read_text().replace("mkdir -p dist", f"sleep {SECONDS}; mkdir -p dist"))
    return root


def run_words(root: Path) -> tuple[str, ...]:
    """Return the arguments that build two configs on two workers."""
    words = ("-C", str(root), "fleet", "run", *CHOSEN, "--provider", "local")
    return (*words, "--workers", "2", "--container", "none", "--poll", "1s")


def packages(root: Path) -> Mapping[str, str]:
    """Return a hash of each package: of its files' hashes, and of its metadata but for the time of its making."""
    result = {}
    for path in sorted((root / "build_artifacts" / "linux-64").glob("*.conda")):
        index = {name: value for name, value in read_info_json(path, "index.json").items() if name != "timestamp"}
        told = json.dumps([read_info_json(path, "paths.json"), index], sort_keys=True)
        result[path.name] = hashlib.sha256(told.encode()).hexdigest()
    return result


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


def undisturbed(place: Path) -> tuple[Mapping[str, str], float]:
    """Return the packages of a run without faults, and its seconds."""
    root = copied(place)
    began = time.monotonic()
    code, output = finished(run_words(root))
    assert code == 0, output
    result = packages(root), time.monotonic() - began
    assert not leftovers(root)
    shutil.rmtree(place)
    return result


def finished(call: tuple[str, ...], environment: Mapping[str, str] = ENVIRONMENT) -> tuple[int, str]:
    """Run a command of kiln's to its end; return its exit code and its messages."""
    argv = (sys.executable, "-m", "kiln", *call)
    ended = subprocess.run(
        argv, cwd=ROOT, env=environment, check=False, capture_output=True, text=True, timeout=CEILING
    )
    return ended.returncode, ended.stderr


def trial_of(fault: Fault, trial: Trial, expected: Mapping[str, str], seconds: float) -> bool | None:
    """Carry out a trial of a fault that strikes a run with a controller on this computer."""
    try:
        return _trial_of(fault, trial, expected, seconds)
    finally:
        for cleanup in trial.cleanups:
            cleanup()
        output = trial.shelf / "output.txt"
        if trial.logs is not None and output.exists():
            trial.logs.mkdir(parents=True, exist_ok=True)
            shutil.copy(output, trial.logs / f"{fault.name}.txt")


def _trial_of(fault: Fault, trial: Trial, expected: Mapping[str, str], seconds: float) -> bool | None:
    environment = prepared(fault, trial)
    variables = trial.shelf / "vars.json"
    more = ("--vars", str(variables)) if variables.exists() else ()
    call = (*run_words(trial.root), *fault.options, *more)
    with watched_volumes(trial.root) as volumes:
        struck = run_and_strike(fault, trial, call, environment, seconds)
        if struck is None:
            return None
        moment, code, problem = struck
        codes, messages = [code], (trial.shelf / "output.txt").read_text()
        if code and fault.ends:
            code, output = finished(call, environment)
            codes, messages = [*codes, code], messages + output
        code, output = finished(("-C", str(trial.root), "fleet", "down"), environment)
    problem += f"down ended with {code}: {output[-300:]}" if code else ""
    if codes[-1]:
        problem += messages[-1500:]
    return shown(fault.name, moment, codes, trial.root, expected, problem, volumes)


def run_and_strike(
    fault: Fault, trial: Trial, call: tuple[str, ...], environment: Mapping[str, str], seconds: float
) -> tuple[float, int, str] | None:
    """Run the command and strike it; return when, its exit code and what failed; None if it had ended before."""
    # It inherits SIGINT ignored where the trials were started with `&`, and would ignore it.
    argv = ("env", "--default-signal=INT,HUP", sys.executable, "-m", "kiln", *call)
    log = trial.shelf / "output.txt"
    began = time.monotonic()
    with log.open("w") as file, subprocess.Popen(argv, cwd=ROOT, env=environment, stdout=file, stderr=file) as process:
        trial.process = process
        try:
            wait_for_moment(fault, trial, seconds)
            moment = time.monotonic() - began
            if process.poll() is not None:
                return None
            problem = attempt(lambda: fault.strike(trial))
            return moment, process.wait(timeout=CEILING), problem
        finally:
            process.kill()


@contextmanager
def watched_volumes(root: Path) -> Iterator[set[str]]:
    """Collect the names of the volumes that the workers of a feedstock's runs have during the block."""
    volumes: set[str] = set()
    done = threading.Event()

    def watch() -> None:
        while not done.wait(1.0):
            volumes.update(volumes_of(root))

    thread = threading.Thread(target=watch)
    thread.start()
    try:
        yield volumes
    finally:
        done.set()
        thread.join()


def volumes_of(root: Path) -> list[str]:
    """Return the names of the volumes of the workers that there are; one that ends meanwhile may be left out."""
    form = '{{range .Mounts}}{{if eq .Type "volume"}}{{.Name}} {{end}}{{end}}'
    volumes: list[str] = []
    for run in (root / "build_artifacts" / "fleet").glob("*"):
        names = docker("ps", "--all", "--quiet", "--filter", f"label=kiln-run={run.name}").split()
        if names:
            asked = ("docker", "inspect", "--format", form, *names)
            volumes += subprocess.run(asked, check=False, capture_output=True, text=True).stdout.split()
    return volumes


def prepared(fault: Fault, trial: Trial) -> Mapping[str, str]:
    """Prepare a trial; return the environment of its commands."""
    fault.prepare(trial)
    (trial.shelf / "sitecustomize.py").write_text(CLOCK)
    path = os.environ["PATH"]
    if fault.program:
        path = f"{test_runs.wrapper(trial.shelf / 'bin', fault.program, fault.script)}:{path}"
    return {**ENVIRONMENT, "PATH": path, "PYTHONPATH": str(trial.shelf)}


def wait_for_moment(fault: Fault, trial: Trial, seconds: float) -> None:
    """Wait until a random moment of the run, or of its builds."""
    if fault.any:
        with suppress(subprocess.TimeoutExpired):
            assert trial.process is not None
            trial.process.wait(timeout=trial.dice.uniform(0.0, seconds))
        return
    until(lambda: building(trial.root), "a build runs", trial.process, seconds=CEILING)
    time.sleep(trial.dice.uniform(0.0, SECONDS / 2))


def attempt(strike: Callable[[], object]) -> str:
    """Strike; return why that was not possible, or nothing."""
    try:
        strike()
    except (AssertionError, IndexError, OSError, subprocess.CalledProcessError) as error:
        return f"could not strike: {error!r} {getattr(error, 'stderr', '')}"
    return ""


def shown(
    name: str,
    moment: float,
    codes: list[int],
    root: Path,
    expected: Mapping[str, str],
    problem: str,
    volumes: Collection[str] = (),
) -> bool:
    """Print the line of a trial, and what went wrong; return whether all went well.

    Of the ``volumes`` none may be left either.
    """
    outcome = packages(root)
    try:
        left = leftovers(root)
        jobs = [job for run in ledgered(root) for job in run.jobs]
    except KilnError as error:
        left, jobs = [str(error)], []
    left += [f"volume {volume}" for volume in docker("volume", "ls", "--quiet").split() if volume in volumes]
    lost = sum(job.state.value == "lost" for job in jobs)
    equal = sum(outcome.get(package) == digest for package, digest in expected.items())
    ended = ", then ".join(map(str, codes))
    cells = (name, f"{moment:.0f} s", ended, f"{len(jobs)}, {lost}", f"{equal} of {len(expected)}", ", ".join(left))
    print(f"| {' | '.join(cells[:-1])} | {cells[-1] or 'nothing'} |", flush=True)
    right = codes[-1] == 0 and outcome == expected and not left
    if problem or not right:
        print(f"{name}: {problem}", file=sys.stderr, flush=True)
    return right and not problem


def detached_trial(name: str, root: Path, dice: random.Random, expected: Mapping[str, str]) -> bool:
    """Carry out a trial of a fault that strikes the controller of a detached run."""
    config, place = CHOSEN[-1], root.parent
    with existing_machines(place, 2) as (worker, controller):
        hosts = [{key: host[key] for key in host if key != "name"} for host in (worker, controller)]
        variables = place / "hosts.json"
        variables.write_text(json.dumps({"kiln_static_hosts": hosts}))
        more = ("--provider", "static", "--vars", str(variables), "--workers", "1", "--container", "none")
        call = words(
            root, "run", config, *more, "--poll", "1s", "--detach", "--controller", controller["address"], "--json"
        )
        begun = subprocess.run(call, cwd=ROOT, text=True, capture_output=True, check=False)
        assert begun.returncode == 0, begun.stderr
        began, key = time.monotonic(), Path(json.loads(begun.stdout)["key"])
        time.sleep(dice.uniform(0.0, SECONDS))
        moment = time.monotonic() - began
        subprocess.run([word.format(controller["name"]) for word in DETACHED[name]], check=True, capture_output=True)
        ended = attempt(lambda: until(lambda: is_over(root, key), "the run is over", seconds=CEILING, pause=1))
        collected = test_detached.fleet(root, "collect", "--key", str(key))
        left = [
            f"{line} on {host['name']}"
            for host in (worker, controller)
            for line in docker("exec", host["name"], "sh", "-c", test_detached.LEFT).split()
        ]
        problem = f"{ended} {collected.stderr[-1000:]}" if ended or collected.returncode else ""
        mine = {package: digest for package, digest in expected.items() if package in packages(root)}
        problem += "" if len(mine) == len(expected) // 2 else f" {len(mine)} packages"
        return shown(name, moment, [collected.returncode], root, mine, problem + " ".join(left))


def is_over(root: Path, key: Path) -> bool:
    """Return whether a detached run is over; its controller may not answer for a while."""
    state = test_detached.fleet(root, "status", "--key", str(key), "--json")
    return state.returncode == 0 and json.loads(state.stdout)["process"] == "ended"


if __name__ == "__main__":
    main()
