"""Compile the small workspace by `kiln fleet run --pool N`, kill what runs its actions, and print how it went.

    .venv/bin/python -m tests.trials.pool [--workers N] [--kill] [--static] [--waiting 1,2,4]

The workers are containers that boot as machines do (`--provider local`). BuildGrid is the pool's engine, Debian's Bazel
with TLS the client, over the run's own certificates. The packages must have the files of those that this machine
builds alone, but for the libraries with kernels, in which nvcc writes a hash of its folder. With ``--kill`` a worker is
killed in an action, and the server during one of another. ``--waiting`` runs actions that wait
on so many workers.
"""

from __future__ import annotations

import argparse
import contextlib
import json
import os
import re
import subprocess
import sys
import tempfile
import time
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

from kiln.base import bootstrap
from kiln.conda.package_reader import read_info_json
from kiln.container.engine import choose_engine
from kiln.fleet.records import FleetLedger
from tests import shared_inputs, small_tensorflow
from tests.integration.fleet.helpers import existing_machines
from tests.remote_execution import fleet_pool
from tests.trials.kills import ROOT

# The libraries with kernels: nvcc writes a hash of its folder into symbols.
OWN_BYTES = ("/libtensorflow_cc.so", "/libtensorflow.so")
ACTIONS, SECONDS = 16, 3


def main() -> None:
    """Run what the arguments select; the exit code is 1 when something went wrong."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0])
    parser.add_argument("--workers", type=int, metavar="N", help="compile the small workspace in a pool of N")
    parser.add_argument("--kill", action="store_true", help="kill a worker and the server during that compile")
    parser.add_argument("--static", action="store_true", help="compile on containers as machines that exist already")
    parser.add_argument("--waiting", metavar="N,...", default="", help="run actions that wait on so many workers")
    options = parser.parse_args()
    engine = choose_engine("docker", env=os.environ).engine
    assert engine is not None
    shared_inputs.worker_image(engine)
    store = small_tensorflow.ready(engine)
    with tempfile.TemporaryDirectory(prefix="kiln-pool-trial-") as scratch:
        if options.waiting:
            waiting(Path(scratch), [int(text) for text in options.waiting.split(",")])
        if options.workers:
            with contextlib.ExitStack() as stack:
                count = options.workers + 2 if options.static else 0
                hosts = stack.enter_context(existing_machines(Path(scratch), count)) if count else []
                problem = compile_in_pool(Path(scratch), store, options.workers, hosts, kill=options.kill)
            print(problem or "the files of all packages are those of a build without a pool")
            sys.exit(bool(problem))


def waiting(folder: Path, counts: list[int]) -> None:
    """Run actions that wait in one pool, of which fewer and more workers take part, and print how long it took."""
    run = f"w{os.getpid()}"
    variables = {
        **fleet_pool.variables(folder / "pool.tar"),
        "kiln_provider": "local",
        "kiln_run": run,
        "kiln_run_dir": str(folder / "run"),
        "kiln_count": 0,
        "kiln_cache_type": "small",
        "kiln_pool_count": max(counts),
    }
    try:
        play(folder, variables, "provision", "prepare")
        address = json.loads((folder / "run" / "cache.json").read_text())["url"].removeprefix("grpcs://")
        with fleet_pool.client(address, folder) as bazel:
            let_in = ("kiln-cache-gate", "let-in", bazel.address)
            subprocess.run(("docker", "exec", f"kiln-{run}-cache", *let_in), check=True)
            bazel.start("first", folder / "run" / "keys" / "pool-client", actions=1, seconds=0).result()
            for count in sorted(counts):
                switch(run, max(counts), count)
                build = bazel.start(
                    f"on-{count}", folder / "run" / "keys" / "pool-client", actions=ACTIONS, seconds=SECONDS
                )
                result = build.result()
                path = re.search(r"Critical Path: ([0-9.]+)s", result.log)
                assert result.built, result.log
                assert path is not None
                share = sorted((result.workers.count(each) for each in set(result.workers)), reverse=True)
                print(f"{ACTIONS} actions of {SECONDS} s on {count} workers: {path[1]} s; {share} of them on each")
    finally:
        play(folder, variables, "down")


def switch(run: str, total: int, count: int) -> None:
    """Let so many of the pool's workers take actions, and no others."""
    for number in range(1, total + 1):
        action = "start" if number <= count else "stop"
        subprocess.run(("docker", "exec", f"kiln-{run}-pool-{number}", "systemctl", action, "kiln-pool"), check=True)
    time.sleep(15)  # the server forgets the others


def play(folder: Path, variables: dict[str, object], *books: str) -> None:
    """Run playbooks."""
    (folder / "variables.json").write_text(json.dumps(variables))
    program = bootstrap.ensure_fleet_environment(ROOT).with_name("ansible-playbook")
    words = (str(program), "--extra-vars", f"@{folder / 'variables.json'}")
    paths = [str(ROOT / "ansible" / f"{book}.yml") for book in books]
    subprocess.run((*words, *paths), check=True, capture_output=True, cwd=ROOT)


def compile_in_pool(
    folder: Path, store: small_tensorflow.Store, workers: int, hosts: list[dict[str, str]], *, kill: bool
) -> str:
    """Compile in a pool and on this machine; return what is wrong with the packages, or nothing."""
    root = small_tensorflow.feedstock(folder / "feedstock", store)
    config = sorted(file.stem for file in (root / ".ci_support").glob("*.yaml"))[1]
    settings = root / "recipe" / "compile.ini"
    lines = "\n".join(f"    {name}={value}" for name, value in fleet_pool.PROPERTIES.items())
    settings.write_text(settings.read_text().replace("    OSFamily=Linux", lines))
    variables = {
        **fleet_pool.variables(folder / "pool.tar"),
        "kiln_feedstock_files": ["conda-forge.yml", "recipe", ".ci_support", "channel"],
    }
    if hosts:
        variables["kiln_static_hosts"] = [{**host, "cores": 2, "memory": 4, "disk": 10} for host in hosts]
    (folder / "vars.json").write_text(json.dumps(variables))
    provider = "static" if hosts else "local"
    with fleet_pool.build_image(folder / "build.tar") as image:
        words = (
            "-C",
            str(root),
            "fleet",
            "run",
            config,
            "--provider",
            provider,
            "--workers",
            "1",
            "--pool",
            str(workers),
        )
        options = ("--image", f"{image['archive']}={image['tag']}", "--vars", str(folder / "vars.json"), "--poll", "1s")
        with ThreadPoolExecutor(1) as thread:
            began = time.monotonic()
            run = thread.submit(kiln, *words, "--container", "docker", *options, "--json")
            if kill:
                kill_in_actions(root, workers, running=lambda: not run.done())
            report = run.result()
        print(f"{time.monotonic() - began:.0f} s for the whole run, with {workers} workers in its pool")
    print(json.dumps(compile_of(report), indent=2))
    pooled = contents(root)
    print(f"{len(pooled)} files are compared")
    subprocess.run(("rm", "-r", str(root / "build_artifacts")), check=True)
    distdir = ("--distdir", str(store.downloads))
    print(json.dumps(compile_of(kiln("-C", str(root), "build", config, "--container", "docker", *distdir, "--json"))))
    differing = sorted(pooled.items() ^ contents(root).items())
    return f"differs: {differing}" if differing or not pooled else ""


def kill_in_actions(root: Path, workers: int, *, running: Any) -> None:
    """Kill the first worker that runs an action, and the server while the last one does."""
    ledger = root / "build_artifacts" / "ledger.sqlite"
    while not ledger.exists() and running():
        time.sleep(0.5)
    with FleetLedger(ledger) as fleets:
        (run,) = (fleet.id for fleet in fleets.fleet_runs())
    first, last = f"kiln-{run}-pool-1", f"kiln-{run}-pool-{workers}"
    fleet_pool.kill_in_action(first, "kiln-pool", seconds=1800)
    print(f"{first} was killed in an action", flush=True)
    fleet_pool.kill_in_action(last, server=f"kiln-{run}-cache", seconds=600)
    print(f"the server was killed while {last} ran an action", flush=True)


def kiln(*words: str) -> Any:
    """Run a command of kiln's to its end, which must be a good one, and return its report."""
    argv = (sys.executable, "-m", "kiln", *words)
    ended = subprocess.run(argv, cwd=ROOT, check=False, capture_output=True, text=True)
    assert ended.returncode == 0, ended.stdout[-4000:] + ended.stderr[-4000:]
    return json.loads(ended.stdout)


def compile_of(report: Any) -> Any:
    """Return what the report of a run has on its compile."""
    (config,) = report["configs"]
    return next(step["compile"] for step in config["steps"] if step.get("compile"))


def contents(root: Path) -> dict[str, str]:
    """Return the files of all packages with their hashes, but for those with bytes of their own."""
    result = {}
    for package in sorted((root / "build_artifacts" / "linux-64").glob("*.conda")):
        for entry in read_info_json(package, "paths.json")["paths"]:
            if not any(name in f"/{entry['_path']}" for name in OWN_BYTES):
                result[f"{package.name}:{entry['_path']}"] = str(entry.get("sha256"))
    return result


if __name__ == "__main__":
    main()
