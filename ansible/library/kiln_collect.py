#!/usr/bin/python
"""Collect the results of a config's build from a worker, and accept only what the build reported.

rsync resumes interrupted transfers. The report lists the packages and their hashes; it comes from the worker, so its
paths are only used as names of files below the folder of finished packages.
"""

from __future__ import annotations

import hashlib
import json
import re
import resource
import shlex
import shutil
import subprocess
import threading
from pathlib import Path
from typing import Any

DOCUMENTATION = """
---
module: kiln_collect
short_description: Collect a config's packages, log and report, and check them
description:
  - Fetches the results of a config's build into collected/WORKER/CONFIG of the run's folder, by rsync over ssh.
  - Writes verified.json last, once every package has the hash that the build's report gives for it.
  - Runs on the controller.
options:
  machine:
    description: The worker's name in the inventory.
    type: str
    required: true
  folder:
    description: The run's folder on the controller.
    type: path
    required: true
  config:
    description: The config's name.
    type: str
    required: true
  home:
    description: kiln's folder on the worker.
    type: str
    default: /var/lib/kiln
  tries:
    description: The number of attempts to fetch a package with the right hash.
    type: int
    default: 3
author:
  - kiln (@kiln)
"""

EXAMPLES = """
- name: Collect the results
  kiln_collect:
    machine: kiln-one-1
    folder: /home/me/feedstock/build_artifacts/fleet/one
    config: linux_64_
  delegate_to: localhost
"""

RETURN = """
packages:
  description: The collected packages, as in verified.json.
  returned: success
  type: list
  elements: dict
"""

PACKAGE = re.compile(
    r"(?:linux-[a-z0-9_]+|noarch)/[A-Za-z0-9_.!+-]+\.(?:conda|tar\.bz2)"
    r"|wheels/(?:cpu|cuda\d+(?:\.\d+)*)(?:-linux-[a-z0-9]+)?/[A-Za-z0-9_][A-Za-z0-9_.+-]*\.whl"
)
LOG = re.compile(r"logs/\d+/[A-Za-z0-9_.+-]+\.log")
ARTIFACTS = "/build_artifacts/"
LONGEST = 16 << 20  # bytes of a report, and of the end of a log
PATIENCE = 120.0  # seconds for the end of a log
RESERVE = 64 << 20  # bytes of this computer's disk that stay free: for the index, logs and other files


class Refused(Exception):
    """The results could not be fetched, or are not those of the report."""


def below(path: str) -> str:
    """Return the part of a worker's path below its folder of finished packages."""
    return path.partition(ARTIFACTS)[2]


def expected(report: Any, config: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the packages of a config in its report, as {path, sha256, size}, and its logs.

    Raises Refused for a path that is not a package's.
    """
    packages, logs = [], []
    for entry in report.get("configs", ()) if isinstance(report, dict) else ():
        if entry.get("config") != config:
            continue
        if entry.get("log") and LOG.fullmatch(below(entry["log"])):
            logs.append(below(entry["log"]))
        for package in entry.get("packages", ()):
            artifact = package["artifact"]
            path = below(artifact["path"])
            if not PACKAGE.fullmatch(path):
                raise Refused(f"{artifact['path']!r} in the report is not the path of a package")
            if type(artifact["size"]) is not int or artifact["size"] < 0:
                raise Refused(f"{path} cannot have {artifact['size']!r} bytes")
            packages.append({"path": path, "sha256": artifact["sha256"], "size": artifact["size"]})
    return packages, logs


def wrong(packages: list[dict[str, Any]], folder: Path) -> list[str]:
    """Return the packages that are missing or have another hash."""
    return [package["path"] for package in packages if sha256(folder / package["path"]) != package["sha256"]]


def sha256(path: Path) -> str:
    """Return the SHA-256 of a file; empty when it is missing."""
    if not path.is_file() or path.is_symlink():
        return ""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def argv(config: Path, machine: str, source: str, target: Path, limit: int) -> list[str]:
    """Return rsync's command line, which reads the names of files from its standard input; links are skipped."""
    return [
        *("rsync", "--times", "--no-links", "--partial-dir=.partial", "--timeout=60", "--files-from=-", "--from0"),
        f"--max-size={limit}",
        f"--rsh=ssh -F {shlex.quote(str(config))}",
        f"{machine}:{source}/",
        f"{target}/",
    ]


def fetch(parameters: dict[str, Any], source: str, target: Path, names: list[str], limit: int) -> None:
    """Fetch files by name, each of at most ``limit`` bytes. Raises Refused with the output of rsync.

    Longer ones are left out; the system stops a sender that sends more than it has announced.
    """
    if not names:
        return
    target.mkdir(parents=True, exist_ok=True)
    config = Path(parameters["folder"]) / "ssh" / f"{parameters['machine']}.config"
    try:
        process = subprocess.run(
            argv(config, parameters["machine"], source, target, limit),
            input="\0".join(names),
            capture_output=True,
            text=True,
            check=False,
            preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_FSIZE, (limit, limit)),
        )
    except FileNotFoundError as missing:
        raise Refused("rsync is not installed; the package is rsync") from missing
    if process.returncode:
        raise Refused(f"rsync ended with exit code {process.returncode}: {process.stderr.strip()[-500:]}")


def fetch_end(parameters: dict[str, Any], source: str, target: Path, name: str) -> None:
    """Fetch the end of a log that is longer than it may be, and leave out what cannot be fetched."""
    config = Path(parameters["folder"]) / "ssh" / f"{parameters['machine']}.config"
    words = ["ssh", "-F", str(config), parameters["machine"], f"tail -c {LONGEST} {shlex.quote(f'{source}/{name}')}"]
    with subprocess.Popen(
        words, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, stderr=subprocess.DEVNULL
    ) as process:
        assert process.stdout is not None
        end = threading.Timer(PATIENCE, process.kill)
        end.start()
        data = process.stdout.read(LONGEST)
        end.cancel()
        process.kill()
    if data:
        (target / name).parent.mkdir(parents=True, exist_ok=True)
        (target / name).write_bytes(data)


def fetch_logs(parameters: dict[str, Any], source: str, target: Path, names: list[str]) -> None:
    """Fetch logs, of those that are too long the end."""
    fetch(parameters, source, target, names, LONGEST)
    for name in names:
        if not (target / name).exists():
            fetch_end(parameters, source, target, name)


def require_space(packages: list[dict[str, Any]], folder: Path) -> None:
    """Raise Refused when packages would fill this computer's disk; partial transfers count as missing."""
    size, free = sum(package["size"] for package in packages), shutil.disk_usage(folder).free
    if size + RESERVE > free:
        needed = f"the packages need {size / 1e6:.1f} MB, and {RESERVE / 1e6:.0f} MB must stay free"
        raise Refused(f"DISK FULL in {folder}: {needed}; {free / 1e6:.1f} MB are free")


def fetch_packages(parameters: dict[str, Any], source: str, target: Path, listed: list[dict[str, Any]]) -> None:
    """Fetch the packages that are not here yet. Raises Refused when one has another hash each time."""
    incomplete = wrong(listed, target)
    require_space([package for package in listed if package["path"] in incomplete], target.parent)
    for _ in range(parameters["tries"]):
        for package in listed:
            if package["path"] in incomplete:
                (target / package["path"]).unlink(missing_ok=True)
                fetch(parameters, source, target, [package["path"]], package["size"])
        incomplete = wrong(listed, target)
        if not incomplete:
            return
    for part in target.rglob(".partial"):
        shutil.rmtree(part)
    raise Refused(f"HASH MISMATCH: not what the build reported: {', '.join(incomplete)}")


def collect(parameters: dict[str, Any]) -> tuple[bool, list[dict[str, Any]]]:
    """Collect a config; return whether anything changed, and its packages."""
    target = Path(parameters["folder"]) / "collected" / parameters["machine"] / parameters["config"]
    home, config, packages = parameters["home"], parameters["config"], target / "packages"
    jobs = f"{home}/jobs/{config}"
    fetch(parameters, jobs, target, ["report.json", "state.json"], LONGEST)
    fetch_logs(parameters, jobs, target, ["log"])
    try:
        report = json.loads((target / "report.json").read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        report = {}  # the build ended before it could report
    listed, logs = expected(report, config)
    verified = target / "verified.json"
    if verified.exists() and json.loads(verified.read_text()) == listed and not wrong(listed, packages):
        return False, listed
    artifacts = f"{home}/project/build_artifacts"
    fetch_logs(parameters, artifacts, target, logs)
    fetch_packages(parameters, artifacts, packages, listed)
    part = verified.with_name(".verified.new")
    part.write_text(json.dumps(listed, indent=1) + "\n")
    part.replace(verified)
    return True, listed


def main() -> None:
    """Run the module."""
    from ansible.module_utils.basic import AnsibleModule

    module = AnsibleModule(
        argument_spec={
            "machine": {"required": True},
            "folder": {"type": "path", "required": True},
            "config": {"required": True},
            "home": {"default": "/var/lib/kiln"},
            "tries": {"type": "int", "default": 3},
        }
    )
    try:
        changed, packages = collect(module.params)
    except (Refused, OSError, KeyError, TypeError, ValueError) as failure:
        module.fail_json(msg=f"cannot collect {module.params['config']} from {module.params['machine']}: {failure}")
    module.exit_json(changed=changed, packages=packages)


if __name__ == "__main__":
    main()
