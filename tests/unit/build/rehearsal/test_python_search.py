"""Interpreters: which can be used, why others cannot, and where they are found."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest

from kiln.base import process
from kiln.base.errors import UnsupportedPython
from kiln.build.rehearsal import python_search
from kiln.build.rehearsal.python_search import (
    Interpreter,
    candidate_executables,
    find_interpreter,
    first_available_interpreter,
    interpreter_facts,
    interpreter_from_facts,
    interpreter_libraries,
    probe_interpreter,
    require_supported_interpreter,
)

BASE = Path("/opt/python")


def facts(**changes: object) -> dict[str, Any]:
    """The properties of a usable interpreter; its program is this one, since the program must exist."""
    return {
        "implementation": "cpython",
        "version": [3, 12, 1],
        "release": "final",
        "free_threaded": False,
        "debug": False,
        "system": "linux",
        "machine": "x86_64",
        "bits": 64,
        "libc": "glibc",
        "executable": str(Path(sys.executable).resolve()),
        "base_prefix": str(BASE),
        "stdlib": str(BASE / "lib/python3.12"),
        "lib_dynload": [str(BASE / "lib/python3.12/lib-dynload")],
        "include": str(BASE / "include/python3.12"),
        "site_packages": ["lib/python3.12/site-packages"],
        "scheme": str(BASE / "lib/python3.12/site-packages"),
        "mapped": [str(BASE / "lib/libpython3.12.so.1.0"), "/usr/lib/x86_64-linux-gnu/libssl.so.3"],
        **changes,
    }


def test_a_good_interpreter_is_described() -> None:
    require_supported_interpreter(BASE / "bin/python", facts())
    result = interpreter_from_facts(facts())
    assert (result.version, result.minor_version, result.standard_layout, result.include) == (
        "3.12.1",
        "3.12",
        True,
        None,
    )
    assert result.libraries == (BASE / "lib/libpython3.12.so.1.0",)


@pytest.mark.parametrize(
    ("change", "why"),
    [
        ({"version": [3, 9, 18]}, "it is Python 3.9, and this TensorFlow has wheels for 3.10 to 3.13 only"),
        ({"version": [3, 14, 0]}, "it is Python 3.14"),
        ({"implementation": "pypy"}, "it is pypy"),
        ({"system": "darwin", "machine": "arm64"}, "runs on darwin arm64"),
        ({"machine": "aarch64"}, "runs on linux aarch64"),
        ({"bits": 32}, "with 32 bits"),
        ({"libc": ""}, "not glibc"),
        ({"free_threaded": True}, "free-threaded build"),
        ({"debug": True}, "debug build"),
        ({"release": "candidate"}, "pre-release (candidate)"),
        ({"stdlib": "/nix/store/lib/python3.12"}, "its standard library is in /nix/store/lib/python3.12"),
        ({"lib_dynload": []}, "lib-dynload"),
        ({"executable": __file__}, "is a script, so the path"),
    ],
)
def test_what_cannot_be_used_is_refused_with_the_reason_and_what_works(change: dict[str, object], why: str) -> None:
    with pytest.raises(UnsupportedPython, match="/opt/python/bin/python cannot be used") as caught:
        require_supported_interpreter(BASE / "bin/python", facts(**change))
    assert why in caught.value.why
    assert "CPython 3.10 to 3.13 for Linux x86-64" in caught.value.hint


def test_debians_layout_is_recognized() -> None:
    debian = facts(
        base_prefix="/usr",
        stdlib="/usr/lib/python3.12",
        site_packages=["local/lib/python3.12/dist-packages", "lib/python3/dist-packages"],
        scheme="/usr/local/lib/python3.12/dist-packages",
        mapped=["/usr/lib/x86_64-linux-gnu/libssl.so.3"],
    )
    result = interpreter_from_facts(debian)
    assert (result.standard_layout, result.libraries) == (False, ())


@pytest.mark.parametrize(
    ("mapped", "base", "own"),
    [
        (["/opt/python/lib/libssl.so.3", "/opt/python/lib/libpython3.12.so.1.0"], "/opt/python", [1, 0]),
        (["/opt/python/lib/python3.12/lib-dynload/_ssl.so", "/lib/libc.so.6"], "/opt/python", []),
        (["/usr/lib64/libpython3.12.so.1.0", "/usr/lib64/libssl.so.3"], "/usr", [0]),
        (["/usr/local/lib/libpython3.12.so.1.0", "/usr/lib/libssl.so.3"], "/usr/local", [0]),
    ],
)
def test_libraries_of_the_system_are_not_the_interpreters_own(mapped: list[str], base: str, own: list[int]) -> None:
    paths = [Path(path) for path in mapped]
    result = interpreter_libraries(paths, base=Path(base), stdlib=Path(base) / "lib/python3.12")
    assert result == tuple(paths[index] for index in own)


def answering(monkeypatch: pytest.MonkeyPatch, answers: dict[str, dict[str, Any] | str]) -> list[Path]:
    """Let these programs answer; what is asked is noted."""
    asked: list[Path] = []

    def capture(argv: list[Path], *, env: object, timeout: float) -> process.ProcessResult:
        asked.append(argv[0])
        answer = answers[str(argv[0])]
        said, failed = ("", answer) if isinstance(answer, str) else (json.dumps(answer), "")
        return process.ProcessResult(argv=(), exit_code=int(bool(failed)), tail=failed, seconds=0.1, stdout=said)

    monkeypatch.setattr(process, "capture", capture)
    return asked


def test_a_program_that_is_not_python_3_is_reported(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"/bin/old": "Unknown option: -I"})
    with pytest.raises(UnsupportedPython, match="/bin/old does not answer as a Python 3") as caught:
        probe_interpreter(Path("/bin/old"), env={})
    assert caught.value.why == "Unknown option: -I"


@pytest.mark.processes
def test_this_very_interpreter_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    result = interpreter_from_facts(interpreter_facts(Path(sys.executable), env={}))
    assert result.version == ".".join(str(number) for number in sys.version_info[:3])
    assert result.base_prefix == Path(sys.base_prefix).resolve()
    assert result.executable.is_file()
    assert (result.stdlib / "os.py").is_file()


@pytest.fixture(autouse=True)
def no_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep this machine's own Pythons out of it."""
    monkeypatch.setattr(python_search, "SYSTEM_FOLDERS", ())


def test_the_first_one_of_the_right_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, dict[str, Any] | str] = {"/a": facts(version=[3, 11, 2]), "/b": "shim: not found", "/c": facts()}
    asked = answering(monkeypatch, answers)
    result = find_interpreter("3.12", first=[Path(name) for name in answers], env={})
    assert isinstance(result, Interpreter)
    assert result.version == "3.12.1"
    assert [str(path) for path in asked] == ["/a", "/b", "/c"]


def test_a_missing_python_is_reported_with_every_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"/a": "shim: not found"})
    with pytest.raises(UnsupportedPython, match=r"no usable Python 3\.12 for a rehearsal") as caught:
        find_interpreter("3.12", first=[Path("/a")], env={})
    assert "/a does not answer as a Python 3 (shim: not found)" in caught.value.why


def touch(path: Path) -> Path:
    path.parent.mkdir(parents=True, exist_ok=True)
    path.touch()
    return path


def test_path_comes_before_pyenv_and_uv_and_new_before_old(tmp_path: Path) -> None:
    home = tmp_path / "home"
    expected = [
        touch(tmp_path / "bin" / "python3.12"),
        touch(home / ".pyenv/versions/3.12.10/bin/python3.12"),
        touch(home / ".pyenv/versions/3.12.9/bin/python3.12"),
        touch(home / ".local/share/uv/python/cpython-3.12.4-linux-x86_64-gnu/bin/python3.12"),
    ]
    touch(home / ".pyenv/versions/3.13.0/bin/python3.13")
    touch(home / ".local/share/uv/python/cpython-3.13.4-linux-x86_64-gnu/bin/python3.13")
    unreadable = "x" * 300  # as a folder of another user in PATH, which root may read
    env = {"HOME": str(home), "PATH": f"{tmp_path}/none:/{unreadable}:{tmp_path}/bin:"}
    assert list(candidate_executables("3.12", env)) == expected


def test_the_configured_folders_of_pyenv_and_uv_are_searched(tmp_path: Path) -> None:
    expected = [
        touch(tmp_path / "p/versions/3.11.1/bin/python3.11"),
        touch(tmp_path / "u/cpython-3.11.2-x/bin/python3.11"),
    ]
    env = {"PYENV_ROOT": str(tmp_path / "p"), "UV_PYTHON_INSTALL_DIR": str(tmp_path / "u")}
    assert list(candidate_executables("3.11", env)) == expected


def test_the_systems_folders_and_condas_environments_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(python_search, "SYSTEM_FOLDERS", (str(tmp_path / "usr/bin"),))
    expected = [touch(tmp_path / "usr/bin/python3.12"), touch(tmp_path / "envs/one/bin/python3.12")]
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / "environments.txt").write_text(f"{tmp_path}/gone\n{tmp_path}/envs/one\nno path\n")
    env = {"HOME": str(tmp_path), "PATH": str(tmp_path / "usr/bin")}
    assert list(candidate_executables("3.12", env)) == expected


@pytest.mark.processes
def test_uv_itself_is_asked_where_its_pythons_are(tmp_path: Path) -> None:
    uv = touch(tmp_path / "bin" / "uv")
    uv.write_text(f"#!/bin/sh\n[ \"$*\" = 'python dir' ] && echo {tmp_path}/elsewhere\n")
    uv.chmod(0o755)
    expected = touch(tmp_path / "elsewhere/cpython-3.12.4-linux-x86_64-gnu/bin/python3.12")
    assert list(candidate_executables("3.12", {"HOME": str(tmp_path), "PATH": f"{tmp_path}/bin"})) == [expected]


def test_the_newest_that_can_be_used_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {version: touch(tmp_path / f"bin/python{version}") for version in ("3.11", "3.12", "3.13", "3.14")}
    answers: dict[str, dict[str, Any] | str] = {
        str(paths["3.13"]): "damaged",
        str(paths["3.12"]): facts(version=[3, 12, 5]),
        str(paths["3.11"]): facts(version=[3, 11, 9]),
    }
    asked = answering(monkeypatch, answers)
    interpreter = first_available_interpreter(env={"PATH": str(tmp_path / "bin")})
    assert interpreter is not None
    assert interpreter.version == "3.12.5"
    assert asked == [paths["3.13"], paths["3.12"]]
    assert first_available_interpreter(env={"PATH": str(tmp_path / "nothing")}) is None
