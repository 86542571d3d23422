"""A wheel of this tree in a clean environment makes feedstocks that match, build, and publish, away from this clone."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from kiln.base.environment import base_python
from tests.waiting import CEILING

pytestmark = pytest.mark.slow("a new feedstock is built, tested and published by an installed kiln")

ROOT = Path(__file__).parents[2]


class Installed(NamedTuple):
    """A clean environment with kiln's wheel, and that wheel."""

    program: Path
    wheel: Path

    def kiln(self, folder: Path, *words: str) -> str:
        return ended((str(self.program), "-C", str(folder), *words), folder)


def ended(argv: tuple[str, ...], folder: Path) -> str:
    """Run a program to its end, without this clone on its path; return its output."""
    env = {name: value for name, value in os.environ.items() if not name.startswith("PYTHON")}
    result = subprocess.run(argv, cwd=folder, env=env, capture_output=True, text=True, check=False, timeout=CEILING)
    assert result.returncode == 0, f"{argv}\n{result.stdout}\n{result.stderr}"
    return result.stdout


@pytest.fixture(scope="module")
def installed(tmp_path_factory: pytest.TempPathFactory) -> Installed:
    folder = tmp_path_factory.mktemp("wheel")
    source = folder / "source"
    for name in ("kiln", "requirements"):
        shutil.copytree(ROOT / name, source / name, ignore=shutil.ignore_patterns("__pycache__"))
    for name in ("pyproject.toml", "README.md", "LICENSE"):
        shutil.copy(ROOT / name, source)
    pip = (sys.executable, "-m", "pip")
    ended((*pip, "wheel", "--quiet", "--no-deps", "--wheel-dir", str(folder), str(source)), folder)
    (wheel,) = folder.glob("*.whl")
    shutil.rmtree(source)
    ended((str(base_python()), "-m", "venv", "--without-pip", str(folder / "venv")), folder)
    ended((*pip, "--python", str(folder / "venv" / "bin" / "python"), "install", "--quiet", str(wheel)), folder)
    return Installed(folder / "venv" / "bin" / "kiln", wheel)


@pytest.mark.parametrize("form", ["v1", "v0"])
def test_a_feedstock_from_nothing_is_built_and_published_away_from_this_clone(
    installed: Installed, tmp_path: Path, form: str
) -> None:
    words = ("init", "greeter", "--format", form, "--maintainer", "jane", "--json")
    made = json.loads(installed.kiln(tmp_path, *words))
    root = tmp_path / "greeter-feedstock"
    assert made["folder"] == str(root)
    assert all((root / name).is_file() for name in made["added"])
    requirement = (root / "requirements" / "kiln.txt").read_text().splitlines()[-1]
    assert requirement.startswith(f"kiln @ {installed.wheel.as_uri()}#sha256=")
    assert "1 config" in installed.kiln(root, "matrix")
    assert "1 config" in installed.kiln(root, "rerender", "--check")
    assert installed.kiln(root, "lint") == "0 lints, 0 hints\n"
    if form == "v1":  # the entry point installs the same wheel into the feedstock's own environment
        argv = (sys.executable, str(root / "build-locally.py"), "--all", "--container", "none", "--quiet", "--json")
        report = json.loads(ended(argv, tmp_path))
        assert (root / ".venv" / "bin" / "kiln").is_file()
    else:
        report = json.loads(installed.kiln(root, "build", "--all", "--container", "none", "--quiet", "--json"))
    assert [config["state"] for config in report["configs"]] == ["done"]
    channel = tmp_path / "channel"
    published = installed.kiln(root, "publish", "--to", str(channel))
    (package,) = (channel / "noarch").glob("*.conda")
    assert f"published noarch/{package.name}" in published
    installed.kiln(root, "install", "greeter", "--from", channel.as_uri(), "--prefix", str(tmp_path / "prefix"))
    assert ended((str(tmp_path / "prefix" / "bin" / "greeter"),), tmp_path) == "hello from greeter\n"
