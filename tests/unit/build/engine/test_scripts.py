"""Files that conda-build adds to a package, moves or leaves out, by the lines that run after a script."""

from __future__ import annotations

import json
import os
import subprocess
from typing import TYPE_CHECKING

import pytest

from kiln.build.engine import scripts
from kiln.recipe.rendered import BuildSettings, Output, PythonSettings, Requirements

if TYPE_CHECKING:
    from collections.abc import Iterable
    from pathlib import Path

pytestmark = pytest.mark.processes
PACKAGES = "lib/python3.11/site-packages"


def output(*, noarch: str | None = None, settings: BuildSettings | None = None) -> Output:
    return Output(
        name="app",
        version="1",
        build_number=0,
        build_string="0",
        subdir="linux-64",
        run_exports={},
        about={},
        used={},
        noarch=noarch,
        requirements=Requirements(host=("python",)),
        settings=settings or BuildSettings(),
    )


def run(prefix: Path, lines: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run lines as the engine does, in bash that ends at the first failure."""
    script, environment = "\n".join(lines), {**os.environ, "PREFIX": str(prefix)}
    argv = ("bash", "-e", "-c", script)
    return subprocess.run(argv, env=environment, cwd=prefix, capture_output=True, text=True, check=False)


def written(prefix: Path, *names: str) -> None:
    for name in names:
        (prefix / name).parent.mkdir(parents=True, exist_ok=True)
        (prefix / name).write_text(name)


def left(prefix: Path) -> set[str]:
    return {str(path.relative_to(prefix)) for path in prefix.rglob("*") if not path.is_dir()}


KEPT = ("lib/x.la.txt", "lib/x.so", ".gitignore", f"{PACKAGES}/a.pth", "share/info/dir.txt", "conda-meta/.git/x")
REMOVED = (
    *(
        "lib/x.la",
        ".git/HEAD",
        "share/.git",
        "share/.DS_Store",
        "share/.DS_Store2/x",
        "a.conda_trash",
        "a.conda_trash_12",
    ),
    *("share/info/dir", f"{PACKAGES}/easy-install.pth", f"{PACKAGES}/a.pyo", f"{PACKAGES}/a.cpython-311.opt-2.pyc"),
)


@pytest.mark.parametrize("noarch", [None, "generic"])
def test_what_no_package_has_is_removed(tmp_path: Path, noarch: str | None) -> None:
    written(tmp_path, *KEPT, *REMOVED, "a.pyc")
    assert run(tmp_path, scripts.remove_excluded_files_lines(output(noarch=noarch))).returncode == 0
    assert left(tmp_path) == {*KEPT, *(() if noarch else ("a.pyc",))}


def test_packages_of_a_recipe_yaml_have_what_the_engine_packs() -> None:
    settings = BuildSettings(by_engine=True)
    assert scripts.remove_excluded_files_lines(output(settings=settings)) == ()
    assert scripts.unpack_eggs_lines(output(settings=settings)) == ()


@pytest.mark.parametrize("preserve", [False, True])
def test_an_egg_that_is_a_folder(tmp_path: Path, preserve: bool) -> None:
    egg = f"{PACKAGES}/odd-1.0-py3.11.egg"
    written(tmp_path, f"{egg}/EGG-INFO/PKG-INFO", f"{egg}/odd/__init__.py", f"{egg}/__pycache__/x.pyc")
    written(tmp_path, f"{PACKAGES}/odd/other.py", f"{PACKAGES}/flat-1-py3.egg")
    settings = BuildSettings(python=PythonSettings(keep_eggs=preserve))
    assert run(tmp_path, scripts.unpack_eggs_lines(output(settings=settings))).returncode == 0
    merged = {f"{egg}-info/PKG-INFO", f"{PACKAGES}/odd/__init__.py"}
    kept = {f"{egg}/{name}" for name in ("EGG-INFO/PKG-INFO", "odd/__init__.py", "__pycache__/x.pyc")}
    listed = {f"{PACKAGES}/flat-1-py3.egg", f"{PACKAGES}/flat.pth", f"{PACKAGES}/odd/other.py"}
    assert left(tmp_path) == listed | ({*kept, f"{PACKAGES}/odd.pth"} if preserve else merged)
    assert (tmp_path / PACKAGES / "flat.pth").read_text() == "./flat-1-py3.egg\n"


def test_an_egg_with_a_file_that_is_there_already_ends_the_build(tmp_path: Path) -> None:
    written(tmp_path, f"{PACKAGES}/odd-1.0-py3.11.egg/odd/__init__.py", f"{PACKAGES}/odd/__init__.py")
    ended = run(tmp_path, scripts.unpack_eggs_lines(output()))
    assert ended.returncode == 1
    assert "odd/__init__.py is in odd-1.0-py3.11.egg and in site-packages" in ended.stderr


def test_the_egg_of_another_package_stays(tmp_path: Path) -> None:
    egg = f"{PACKAGES}/odd-1.0-py3.11.egg/odd.py"
    written(tmp_path, egg, "conda-meta/odd-1-0.json")
    (tmp_path / "conda-meta" / "odd-1-0.json").write_text(json.dumps({"files": [egg]}))
    assert run(tmp_path, scripts.unpack_eggs_lines(output())).returncode == 0
    assert left(tmp_path) == {egg, "conda-meta/odd-1-0.json"}
