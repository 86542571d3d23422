"""Files that conda-build adds to a package, moves or leaves out, by the lines that run after a script."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.build.engine import scripts
from kiln.build.engine.scripts import lines_without_shell_trace, script_run_lines
from kiln.recipe.rendered import BuildSettings, Output, PythonSettings, Requirements, Script, Source
from tests import builders

if TYPE_CHECKING:
    from collections.abc import Iterable


pytestmark = pytest.mark.processes


PACKAGES = "lib/python3.11/site-packages"


def output(*, noarch: str | None = None, settings: BuildSettings | None = None) -> Output:
    needs = Requirements(host=("python",))
    return builders.output(noarch=noarch, requirements=needs, settings=settings or BuildSettings())


def run(prefix: Path, lines: Iterable[str]) -> subprocess.CompletedProcess[str]:
    """Run lines as the engine does, in bash that ends at the first failure."""
    script, environment = "\n".join(lines), {**os.environ, "PREFIX": str(prefix)}
    argv = ("bash", "-e", "-c", script)
    return subprocess.run(argv, env=environment, cwd=prefix, capture_output=True, text=True, check=False)


def written(prefix: Path, *names: str) -> None:
    builders.write_files(prefix, {name: name for name in names})


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


RECIPE = Path("/recipe folder")


@pytest.mark.parametrize(
    ("script", "expected"),
    [
        (Script(), ()),
        (Script(lines=("make", "make install")), ("make", "make install")),
        (Script(file="build.sh"), ("bash -e '/recipe folder/build.sh'",)),
        (Script(file="build"), ("bash -e '/recipe folder/build'",)),
        (Script(file="build.py"), ("python '/recipe folder/build.py'",)),
        (Script(file="BUILD.R"), ("Rscript '/recipe folder/BUILD.R'",)),
        (Script(file="build.sh", interpreter="nu"), ("nu '/recipe folder/build.sh'",)),
        (Script(lines=("make",), interpreter="bash"), ("make",)),
        (Script(lines=("make",), environment={"B": "it's", "A": "1"}), ("export A=1", "export B='it'\"'\"'s'", "make")),
        (Script(lines=("make",), folder="share/a b"), ("cd \"$PREFIX\"/'share/a b'", "make")),
        (Script(lines=("make",), folder="/opt"), ("cd /opt", "make")),
    ],
)
def test_the_lines_of_a_script(script: Script, expected: tuple[str, ...]) -> None:
    assert script_run_lines(script, RECIPE) == expected


@pytest.mark.processes
def test_lines_of_another_interpreter_run_as_they_are(tmp_path: Path) -> None:
    text = "import sys\nprint('$HOME `ls` \\'', sys.version_info[0])"
    lines = script_run_lines(Script(lines=(text,), interpreter="python"), RECIPE)
    (tmp_path / "python").symlink_to(sys.executable)
    ended = subprocess.run(
        ("bash", "-ec", "\n".join(lines)),
        cwd=tmp_path,
        env={"PATH": f"{tmp_path}:/usr/bin:/bin"},
        text=True,
        capture_output=True,
        check=True,
    )
    assert ended.stdout == "$HOME `ls` ' 3\n"
    assert [path.name for path in tmp_path.iterdir()] == ["python"], "the file of the script is removed"


@pytest.mark.processes
@pytest.mark.parametrize("options", ["-ex", "-e"])
def test_lines_of_kilns_own_leave_no_trace_and_do_not_change_the_scripts(options: str) -> None:
    script = Script(lines=("print(1)",), interpreter="python", program=f"{sys.executable} -")
    lines = (
        *lines_without_shell_trace(("kiln=1",)),
        "echo recipe",
        *lines_without_shell_trace(("test $kiln = 1", "echo untraced >&2")),
        "true last",
    )
    ended = subprocess.run(("bash", options, "-c", "\n".join(lines)), text=True, capture_output=True, check=True)
    traced = ["+ echo recipe", "+ true last"] if "x" in options else []
    assert [line for line in ended.stderr.splitlines() if line != "untraced"] == traced
    heredoc, command, removal = script_run_lines(script, RECIPE)
    assert (heredoc.split("\n")[1][:5], command, removal.split("\n")[1]) == (
        "cat >",
        f"{sys.executable} - .kiln-script",
        "rm .kiln-script",
    )
    assert lines_without_shell_trace(()) == ()


@pytest.mark.processes
@pytest.mark.needs("git")
@pytest.mark.parametrize("own", [False, True])
def test_the_mark_of_a_checkout_is_removed_unless_the_repository_has_it(tmp_path: Path, own: bool) -> None:
    written(tmp_path, "src/.ok")
    subprocess.run(("git", "init", "-q", "src"), cwd=tmp_path, check=True)
    if own:
        subprocess.run(("git", "-C", "src", "add", ".ok"), cwd=tmp_path, check=True)
    source = Source(git_url="https://g", folder="src")
    assert run(tmp_path, scripts.remove_checkout_marks_lines((source,))).returncode == 0
    assert (tmp_path / "src" / ".ok").exists() is own
