#!/usr/bin/python
"""Bring home what a cell's build left on a machine, and let nothing pass that is not what the build reported.

rsync goes on where it was interrupted. The report says which packages there are and what their hashes are; it comes
from the machine, so its paths are taken for nothing but names of files below the folder of finished packages.
"""

from __future__ import annotations

import hashlib
import json
import re
import shlex
import shutil
import subprocess
from pathlib import Path
from typing import Any

DOCUMENTATION = """
---
module: kiln_collect
short_description: Bring home a cell's packages, log and report, checked
description:
  - Fetches what a cell's build left on a machine into collected/MACHINE/CELL of the run's folder, with rsync over ssh.
  - Writes verified.json last, once every package has the hash that the build's report gives for it.
  - Runs on the controller.
options:
  machine:
    description: The machine's name in the inventory.
    type: str
    required: true
  folder:
    description: The run's folder on the controller.
    type: path
    required: true
  cell:
    description: The cell's name.
    type: str
    required: true
  home:
    description: kiln's folder on the machine.
    type: str
    default: /var/lib/kiln
  tries:
    description: How often a package is fetched anew that has not the right hash.
    type: int
    default: 3
author:
  - kiln (@kiln)
"""

EXAMPLES = """
- name: Bring home what was built
  kiln_collect:
    machine: kiln-one-1
    folder: /home/me/feedstock/build_artifacts/fleet/one
    cell: linux_64_
  delegate_to: localhost
"""

RETURN = """
packages:
  description: What came home, as written to verified.json.
  returned: success
  type: list
  elements: dict
"""

PACKAGE = re.compile(
    r"(?:linux-[a-z0-9_]+|noarch)/[A-Za-z0-9_.!+-]+\.(?:conda|tar\.bz2)"
    r"|wheels/(?:cpu|cuda\d+(?:\.\d+)*)/[A-Za-z0-9_][A-Za-z0-9_.+-]*\.whl"
)
LOG = re.compile(r"logs/\d+/[A-Za-z0-9_.+-]+\.log")
ARTIFACTS = "/build_artifacts/"
LEFT = 64 << 20  # bytes of this computer's disk that packages leave free: for the index, logs and what else is written


class Refused(Exception):
    """What came from the machine is not what it should be."""


def below(path: str) -> str:
    """The part of a path of a machine that is below its folder of finished packages."""
    return path.partition(ARTIFACTS)[2]


def expected(report: Any, cell: str) -> tuple[list[dict[str, Any]], list[str]]:
    """Return the packages of a cell in its report, as {path, sha256, size}, and its logs.

    Raises Refused for a name that is none of a package.
    """
    found, logs = [], []
    for each in report.get("cells", ()) if isinstance(report, dict) else ():
        if each.get("config") != cell:
            continue
        if each.get("log") and LOG.fullmatch(below(each["log"])):
            logs.append(below(each["log"]))
        for package in each.get("packages", ()):
            artifact = package["artifact"]
            path = below(artifact["path"])
            if not PACKAGE.fullmatch(path):
                raise Refused(f"{artifact['path']!r} in the report is no path of a package")
            found.append({"path": path, "sha256": artifact["sha256"], "size": int(artifact["size"])})
    return found, logs


def wrong(packages: list[dict[str, Any]], folder: Path) -> list[str]:
    """The packages that are not there, or not what their hashes say."""
    return [each["path"] for each in packages if sha256(folder / each["path"]) != each["sha256"]]


def sha256(path: Path) -> str:
    """The SHA-256 of a file; nothing when it is not there."""
    if not path.is_file() or path.is_symlink():
        return ""
    digest = hashlib.sha256()
    with path.open("rb") as file:
        while chunk := file.read(1 << 20):
            digest.update(chunk)
    return digest.hexdigest()


def argv(config: Path, machine: str, source: str, target: Path) -> list[str]:
    """Return rsync's command line, which reads the names of files from its standard input; links do not come along."""
    return [
        *("rsync", "--times", "--no-links", "--partial-dir=.partial", "--timeout=60", "--files-from=-", "--from0"),
        f"--rsh=ssh -F {shlex.quote(str(config))}",
        f"{machine}:{source}/",
        f"{target}/",
    ]


def fetch(parameters: dict[str, Any], source: str, target: Path, names: list[str]) -> None:
    """Fetch files by name. Raises Refused with rsync's words."""
    if not names:
        return
    target.mkdir(parents=True, exist_ok=True)
    config = Path(parameters["folder"]) / "ssh" / f"{parameters['machine']}.config"
    words = argv(config, parameters["machine"], source, target)
    done = subprocess.run(words, input="\0".join(names), capture_output=True, text=True, check=False)
    if done.returncode:
        raise Refused(f"rsync ended with exit code {done.returncode}: {done.stderr.strip()[-500:]}")


def make_sure_of_room(packages: list[dict[str, Any]], folder: Path) -> None:
    """Raises Refused where packages would fill this computer's disk; what rsync has of them counts as missing."""
    size, free = sum(each["size"] for each in packages), shutil.disk_usage(folder).free
    if size + LEFT > free:
        needed = f"{size / 1e6:.1f} MB come home, and {LEFT / 1e6:.0f} MB are to stay free"
        raise Refused(f"NO ROOM in {folder}: {needed}; there are {free / 1e6:.1f} MB")


def collect(parameters: dict[str, Any]) -> tuple[bool, list[dict[str, Any]]]:
    """Bring home a cell; returns whether anything had to be done, and its packages."""
    target = Path(parameters["folder"]) / "collected" / parameters["machine"] / parameters["cell"]
    home, cell, packages = parameters["home"], parameters["cell"], target / "packages"
    fetch(parameters, f"{home}/jobs/{cell}", target, ["log", "report.json", "state.json"])
    try:
        report = json.loads((target / "report.json").read_text(encoding="utf-8", errors="replace"))
    except ValueError:
        report = {}  # the build was ended before it could report
    wanted, logs = expected(report, cell)
    verified = target / "verified.json"
    if verified.exists() and json.loads(verified.read_text()) == wanted and not wrong(wanted, packages):
        return False, wanted
    fetch(parameters, f"{home}/project/build_artifacts", target, logs)
    lacking = wrong(wanted, packages)
    make_sure_of_room([each for each in wanted if each["path"] in lacking], target)
    for _ in range(parameters["tries"]):
        for name in lacking:
            (packages / name).unlink(missing_ok=True)
        fetch(parameters, f"{home}/project/build_artifacts", packages, lacking)
        lacking = wrong(wanted, packages)
        if not lacking:
            break
    if lacking:
        raise Refused(f"HASH MISMATCH: not what the build of {cell} reported: {', '.join(lacking)}")
    beside = verified.with_name(".verified.new")
    beside.write_text(json.dumps(wanted, indent=1) + "\n")
    beside.replace(verified)
    return True, wanted


def main() -> None:
    """Do what the playbook asks for."""
    from ansible.module_utils.basic import AnsibleModule

    module = AnsibleModule(
        argument_spec={
            "machine": {"required": True},
            "folder": {"type": "path", "required": True},
            "cell": {"required": True},
            "home": {"default": "/var/lib/kiln"},
            "tries": {"type": "int", "default": 3},
        }
    )
    try:
        changed, packages = collect(module.params)
    except (Refused, OSError, KeyError, TypeError, ValueError) as failure:
        module.fail_json(msg=f"cannot bring home {module.params['cell']} from {module.params['machine']}: {failure}")
    module.exit_json(changed=changed, packages=packages)


if __name__ == "__main__":
    main()
