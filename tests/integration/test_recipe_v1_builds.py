"""Feedstocks with a recipe.yaml are built by the engine on this machine, from a small channel, and tested."""

from __future__ import annotations

import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from kiln.channel import Channel
from kiln.conda_package.reader import read_info
from tests.packages import release_package
from tests.waiting import CEILING

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"


def channel(folder: Path) -> Channel:
    """Return a channel with the running interpreter as two Pythons, and packages that export run requirements."""
    modules = 'PYTHONPATH="$(echo "${0%/bin/*}"/lib/python*/site-packages)"'
    program = f'#!/bin/sh\nexec env {modules} {sys.executable} "$@"\n'
    files = [
        release_package(folder, "python", f"{version}.0", payload={"bin/python": program.encode()})
        for version in ("3.11", "3.12")
    ]
    files += [release_package(folder, name, version="2.5.1") for name in ("exporter", "ignored-exporter")]
    made = Channel(root=folder / "channel")
    made.add([(file, "linux-64") for file in files])
    return made


def copied(name: str, folder: Path) -> Path:
    """Return a copy of a fixture whose variants name the small channel, with its configs."""
    root = Path(shutil.copytree(FIXTURES / name, folder / name))
    (folder / "packages").mkdir()
    with (root / "recipe" / "variants.yaml").open("a") as file:
        file.write(f"channel_sources:\n  - {channel(folder / 'packages').url}\n")
    ended = kiln(root, "rerender")
    assert ended.returncode == 0, ended.stderr
    return root


def kiln(root: Path, *words: str, stdin: str = "") -> subprocess.CompletedProcess[str]:
    """Run a command of kiln's to its end."""
    argv = (sys.executable, "-m", "kiln", "-C", str(root), *words)
    return subprocess.run(argv, cwd=ROOT, input=stdin, text=True, capture_output=True, check=False, timeout=CEILING)


def built(root: Path, *words: str) -> dict[str, Path]:
    """Build on this machine, and return the packages by their names without hashes."""
    ended = kiln(root, "build", "--container", "none", *words)
    assert ended.returncode == 0, ended.stderr
    return {path.name: path for path in (root / "build_artifacts").glob("*/*.conda")}


def index(package: Path) -> dict[str, Any]:
    found: dict[str, Any] = read_info(package, "index.json")
    return found
