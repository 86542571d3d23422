"""A Python that a machine lacks, from a real channel in a folder; what is said where none can be had."""

from __future__ import annotations

import os
import subprocess
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import process
from kiln.base.errors import NotWritable, UnsupportedPython
from kiln.build.rehearsal import python_search
from kiln.build.rehearsal.python_package import write_python_packages
from kiln.build.rehearsal.python_search import PythonRequest
from kiln.conda.channel import LocalChannel
from kiln.conda.package_writer import SUBDIR
from kiln.conda.solve import solve

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.build.rehearsal.python_search import Interpreter

ENV = {name: os.environ[name] for name in ("PATH", "HOME") if name in os.environ}
NOWHERE = "http://127.0.0.1:9/channel"
SHOW = "import sys, ssl, sqlite3, ctypes; print(sys.prefix)"


@pytest.fixture(scope="session")
def interpreter() -> Interpreter:
    """The newest Python of this machine that a rehearsal can use."""
    result = python_search.first_available_interpreter(env=ENV)
    if result is None:
        pytest.skip("this machine has no Python that TensorFlow has wheels for")
    return result


@pytest.fixture(scope="session")
def channel(interpreter: Interpreter, tmp_path_factory: pytest.TempPathFactory) -> LocalChannel:
    """A channel with that Python, as packages."""
    folder = tmp_path_factory.mktemp("channel")
    made = write_python_packages(interpreter, folder / "made", env=ENV)
    channel = LocalChannel(root=folder / "channel")
    channel.repair_index()
    channel.add((package, SUBDIR) for package in made)
    return channel


def test_a_python_of_a_channel_is_installed_found_again_and_packaged(
    interpreter: Interpreter, channel: LocalChannel, tmp_path: Path
) -> None:
    request = PythonRequest(python=interpreter.minor_version, folder=tmp_path / "pythons", channel=channel.url)
    (request.folder / f".{interpreter.minor_version}.1-0123abcd.part" / "half").mkdir(parents=True)  # of a killed run
    said: list[str] = []
    fetched = python_search.fetch_python(request, env=ENV, say=said.append)
    assert said == [f"no usable Python {interpreter.minor_version} on this machine: fetching it from {channel.url}"]
    assert (fetched.version, fetched.base_prefix) == (interpreter.version, request.folder / interpreter.minor_version)
    ran = subprocess.run((fetched.executable, "-I", "-c", SHOW), capture_output=True, text=True, check=True)
    assert ran.stdout.strip() == str(fetched.base_prefix)
    assert [path.resolve() for path in python_search.fetched_pythons(interpreter.minor_version, request.folder)] == [
        fetched.executable
    ]
    assert [entry.name for entry in request.folder.iterdir()] == [interpreter.minor_version], (
        "the packages are not kept twice"
    )
    names = [package.name for package in write_python_packages(fetched, tmp_path / "made", env=ENV)]
    assert [name.split("-")[0] for name in names] == ["python", "python_abi"]


@pytest.mark.sampled
def test_what_another_process_has_fetched_meanwhile_is_taken(
    interpreter: Interpreter, channel: LocalChannel, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    request = PythonRequest(python=interpreter.minor_version, folder=tmp_path / "pythons", channel=channel.url)
    others: list[Interpreter] = []

    def solve_late(*args: Any, **options: Any) -> Any:
        monkeypatch.setattr("kiln.conda.solve.solve", solve)
        others.append(python_search.fetch_python(request, env=ENV))
        (request.folder / interpreter.minor_version / "in-use").touch()
        return solve(*args, **options)

    monkeypatch.setattr("kiln.conda.solve.solve", solve_late)
    assert python_search.fetch_python(request, env=ENV).executable == others[0].executable
    assert (request.folder / interpreter.minor_version / "in-use").exists(), "it was neither removed nor fetched again"


def test_failed_downloads_are_reported_with_the_command_that_installs_a_python(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "os_release", dict)
    uv = tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    uv.write_text("#!/bin/sh\necho 'error: Failed to download' >&2\nexit 2\n")
    uv.chmod(0o755)
    request = PythonRequest(python="3.12", folder=tmp_path / "pythons", channel=NOWHERE, refusal="/p does not answer")
    with pytest.raises(UnsupportedPython) as caught:
        python_search.fetch_python(request, env={"PATH": str(uv.parent)})
    lines = [line.strip() for line in caught.value.why.splitlines()]
    assert lines[0] == "/p does not answer"
    assert lines[1].startswith(f"{NOWHERE}: the channel {NOWHERE} cannot be reached (")
    assert lines[2] == "uv: it ended with exit code 2 (error: Failed to download)"
    assert caught.value.hint == "uv python install 3.12"
    assert not list(request.folder.rglob("python*"))


@pytest.mark.sampled
def test_a_python_of_uv_is_in_kilns_own_folder(interpreter: Interpreter, tmp_path: Path) -> None:
    """The substitute for uv puts an interpreter below the folder that a variable names, as uv does."""
    python, uv = interpreter.minor_version, tmp_path / "bin" / "uv"
    uv.parent.mkdir()
    place = f'"$UV_PYTHON_INSTALL_DIR"/cpython-{interpreter.version}-linux-x86_64-gnu/bin'
    uv.write_text(
        f'#!/bin/sh\n[ "$UV_PYTHON_INSTALL_BIN" = 0 ] && [ "$*" = "python install {python}" ] || exit 3\n'
        f"mkdir -p {place} && ln -s {interpreter.executable} {place}/python{python}\n"
    )
    uv.chmod(0o755)
    request = PythonRequest(python=python, folder=tmp_path / "pythons", channel=NOWHERE)
    fetched = python_search.fetch_python(request, env={**ENV, "PATH": f"{uv.parent}:{ENV['PATH']}"})
    assert fetched == interpreter
    assert [path.resolve() for path in python_search.fetched_pythons(python, request.folder)] == [
        interpreter.executable
    ]


def test_nothing_is_fetched_where_that_is_switched_off(tmp_path: Path) -> None:
    request = PythonRequest(python="3.12", folder=tmp_path / "pythons", channel=python_search.NO_CHANNEL)
    with pytest.raises(UnsupportedPython) as caught:
        python_search.fetch_python(request, env=ENV)
    assert "--python-channel none forbids a download" in caught.value.why
    assert not request.folder.exists()


def test_no_python_is_written_through_a_link(tmp_path: Path) -> None:
    folder, elsewhere = tmp_path / "pythons", tmp_path / "elsewhere"
    (elsewhere / "3.12").mkdir(parents=True)
    (elsewhere / "3.12" / "kept").touch()
    folder.mkdir()
    (folder / "3.12").symlink_to(elsewhere / "3.12")
    request = PythonRequest(python="3.12", folder=folder, channel=NOWHERE)
    with pytest.raises(NotWritable, match=r"3\.12 is a link"):
        python_search.fetch_python(request, env=ENV)
    assert (elsewhere / "3.12" / "kept").exists()


@pytest.mark.parametrize(
    ("programs", "release", "command"),
    [
        (
            {"apt-cache": "python3.12:\n  Installed: (none)\n  Candidate: 3.12.3-1"},
            "debian",
            "sudo apt install python3.12",
        ),
        (
            {"apt-cache": "python3.12:\n  Installed: (none)\n  Candidate: (none)", "uv": ""},
            "debian",
            "uv python install 3.12",
        ),
        ({"apt-cache": "", "pyenv": ""}, "ubuntu", "pyenv install 3.12"),
        ({"uv": ""}, "fedora", "sudo dnf install python3.12"),
        ({"mamba": ""}, "arch", "mamba create --name py3.12 --channel conda-forge python=3.12"),
        ({}, "debian", "python3 -m venv ~/.uv && ~/.uv/bin/pip install uv && ~/.uv/bin/uv python install 3.12"),
    ],
)
def test_the_command_that_gets_a_python_is_one_of_this_system(
    programs: dict[str, str], release: str, command: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(process, "os_release", lambda: {"ID": release})
    for name, answer in programs.items():
        (tmp_path / name).write_text(f"#!/bin/sh\necho '{answer}'\n")
        (tmp_path / name).chmod(0o755)
    assert python_search.install_command("3.12", env={"PATH": str(tmp_path)}) == command
