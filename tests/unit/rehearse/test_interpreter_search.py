"""The interpreters of a machine: where they are looked for, and which is taken."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest

from kiln.errors import UnsupportedPython
from kiln.rehearse import interpreter_search
from kiln.rehearse.interpreter_facts import Interpreter
from kiln.rehearse.interpreter_search import candidates, find, first_available
from tests.unit.rehearse.test_interpreter_facts import answering, facts


@pytest.fixture(autouse=True)
def no_system(monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep this machine's own Pythons out of it."""
    monkeypatch.setattr(interpreter_search, "SYSTEM_FOLDERS", ())


def test_the_first_one_of_the_right_version_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    answers: dict[str, dict[str, Any] | str] = {"/a": facts(version=[3, 11, 2]), "/b": "shim: not found", "/c": facts()}
    asked = answering(monkeypatch, answers)
    result = find("3.12", first=[Path(name) for name in answers], env={})
    assert isinstance(result, Interpreter)
    assert result.version == "3.12.1"
    assert [str(path) for path in asked] == ["/a", "/b", "/c"]


def test_a_missing_python_is_reported_with_every_refusal(monkeypatch: pytest.MonkeyPatch) -> None:
    answering(monkeypatch, {"/a": "shim: not found"})
    with pytest.raises(UnsupportedPython, match=r"no usable Python 3\.12 for a rehearsal") as caught:
        find("3.12", first=[Path("/a")], env={})
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
    env = {"HOME": str(home), "PATH": f"{tmp_path}/none:{tmp_path}/bin:"}
    assert list(candidates("3.12", env)) == expected


def test_the_configured_folders_of_pyenv_and_uv_are_searched(tmp_path: Path) -> None:
    expected = [
        touch(tmp_path / "p/versions/3.11.1/bin/python3.11"),
        touch(tmp_path / "u/cpython-3.11.2-x/bin/python3.11"),
    ]
    env = {"PYENV_ROOT": str(tmp_path / "p"), "UV_PYTHON_INSTALL_DIR": str(tmp_path / "u")}
    assert list(candidates("3.11", env)) == expected


def test_the_systems_folders_and_condas_environments_are_looked_into(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(interpreter_search, "SYSTEM_FOLDERS", (str(tmp_path / "usr/bin"),))
    expected = [touch(tmp_path / "usr/bin/python3.12"), touch(tmp_path / "envs/one/bin/python3.12")]
    (tmp_path / ".conda").mkdir()
    (tmp_path / ".conda" / "environments.txt").write_text(f"{tmp_path}/gone\n{tmp_path}/envs/one\nno path\n")
    env = {"HOME": str(tmp_path), "PATH": str(tmp_path / "usr/bin")}
    assert list(candidates("3.12", env)) == expected


@pytest.mark.processes
def test_uv_itself_is_asked_where_its_pythons_are(tmp_path: Path) -> None:
    uv = touch(tmp_path / "bin" / "uv")
    uv.write_text(f"#!/bin/sh\n[ \"$*\" = 'python dir' ] && echo {tmp_path}/elsewhere\n")
    uv.chmod(0o755)
    expected = touch(tmp_path / "elsewhere/cpython-3.12.4-linux-x86_64-gnu/bin/python3.12")
    assert list(candidates("3.12", {"HOME": str(tmp_path), "PATH": f"{tmp_path}/bin"})) == [expected]


def test_the_newest_that_can_be_used_is_taken(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    paths = {version: touch(tmp_path / f"bin/python{version}") for version in ("3.11", "3.12", "3.13", "3.14")}
    answers: dict[str, dict[str, Any] | str] = {
        str(paths["3.13"]): "damaged",
        str(paths["3.12"]): facts(version=[3, 12, 5]),
        str(paths["3.11"]): facts(version=[3, 11, 9]),
    }
    asked = answering(monkeypatch, answers)
    interpreter = first_available(env={"PATH": str(tmp_path / "bin")})
    assert interpreter is not None
    assert interpreter.version == "3.12.5"
    assert asked == [paths["3.13"], paths["3.12"]]
    assert first_available(env={"PATH": str(tmp_path / "nothing")}) is None
