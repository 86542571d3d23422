"""What a rehearsal takes: wheels that pip chooses, an install into a venv, a Python that this machine lacks."""

from __future__ import annotations

import io
import os
import subprocess
import sys
import tarfile
import zipfile
from contextlib import nullcontext
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import process
from kiln.base.errors import NotWritable, RehearsalRefused, TestsFailed, UnsupportedPython
from kiln.build.rehearsal import python_search
from kiln.build.rehearsal.python_package import write_python_packages
from kiln.build.rehearsal.python_search import PythonRequest
from kiln.build.rehearsal.wheel_choice import resolve_wheels
from kiln.build.test.specs import WheelName
from kiln.build.test.wheels import execute_wheel_test, find_wheel_interpreter, plan_wheel_test
from kiln.conda.channel import LocalChannel
from kiln.conda.package_writer import SUBDIR
from kiln.conda.solve import solve
from kiln.state.results import TestVerdict
from tests.unit.build.test.wheels import written

if TYPE_CHECKING:
    from kiln.build.rehearsal.python_search import Interpreter


def add_wheel(folder: Path, name: str, requirement: str = "") -> None:
    """Write an empty wheel with one requirement."""
    info = f"{name}-1.dist-info"
    metadata = f"Metadata-Version: 2.1\nName: {name}\nVersion: 1\n"
    with zipfile.ZipFile(folder / f"{name}-1-py3-none-any.whl", "w") as archive:
        archive.writestr(f"{info}/METADATA", metadata + (f"Requires-Dist: {requirement}\n" if requirement else ""))
        archive.writestr(f"{info}/WHEEL", "Wheel-Version: 1.0\nRoot-Is-Purelib: true\nTag: py3-none-any\n")
        archive.writestr(f"{info}/RECORD", "")


@pytest.mark.sampled
@pytest.mark.parametrize("address", ["{root}/evil-1.tar.gz", "{root}/evil", "git+{root}/evil"])
def test_a_wheel_cannot_have_pip_run_a_source_archives_code(tmp_path: Path, address: str) -> None:
    (tmp_path / "evil").mkdir()
    backend = '[build-system]\nrequires = []\nbuild-backend = "backend"\nbackend-path = ["."]\n'
    (tmp_path / "evil/pyproject.toml").write_text(backend)
    (tmp_path / "evil/backend.py").write_text(f"open({str(tmp_path / 'ran')!r}, 'w')\n")
    git = ("git", "-c", "user.name=a", "-c", "user.email=a@b.example")
    for words in (("init", "-q", "."), ("add", "."), ("commit", "-q", "-m", "x")):
        subprocess.run((*git, *words), cwd=tmp_path / "evil", check=True)
    with tarfile.open(tmp_path / "evil-1.tar.gz", "w:gz") as archive:
        archive.add(tmp_path / "evil", "evil-1")
        member = tarfile.TarInfo("evil-1/PKG-INFO")
        archive.addfile(member, io.BytesIO(b""))
    add_wheel(tmp_path, "a", f"evil @ {address.format(root=tmp_path.as_uri())}")
    add_wheel(tmp_path, "harmless")
    env = {**os.environ, "PIP_NO_INDEX": "1", "PIP_FIND_LINKS": str(tmp_path), "PIP_CONFIG_FILE": os.devnull}
    try:
        with pytest.raises(RehearsalRefused, match="requires a source archive or a repository") as caught:
            resolve_wheels(["a", "harmless"], python="3.11", glibc="2.36", env=env)
    finally:
        assert not (tmp_path / "ran").exists()
    assert "a, harmless" in caught.value.why
    (wheel,) = resolve_wheels(["harmless"], python="3.11", glibc="2.36", env=env).wheels
    assert wheel.name == "harmless"


def test_a_wheel_is_installed_into_a_venv_and_imported(tmp_path: Path) -> None:
    good = written(tmp_path, "a-1-py3-none-any.whl", {"a/__init__.py": b"print('imported a')\n"})
    python = find_wheel_interpreter(
        WheelName.from_path(good), (tmp_path / "none", Path(sys.executable)), environment=os.environ
    )
    assert python == Path(sys.executable)
    log = tmp_path / "log"
    run = partial(execute_wheel_test, environment=os.environ, apart=lambda: nullcontext(os.environ), log=log)
    step = plan_wheel_test(good, python=python, folder=tmp_path / "venv", network=False)
    report = run(step)
    assert (report.verdict, report.commands) == (TestVerdict.PASSED, 2)
    assert "imported a" in log.read_text()
    assert not step.folder.exists()
    bad = written(tmp_path, "b-1-py3-none-any.whl", {"b/__init__.py": b"raise RuntimeError('no luck')\n"})
    with pytest.raises(TestsFailed, match="cannot be used after pip install") as told:
        run(plan_wheel_test(bad, python=python, folder=tmp_path / "venv", network=False))
    assert "no luck" in told.value.why


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
