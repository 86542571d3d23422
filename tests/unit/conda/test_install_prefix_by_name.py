"""An environment's name leads where conda and mamba look for it."""

from __future__ import annotations

import os
from pathlib import Path

import pytest

from kiln.base.errors import KilnError, NotWritable, UsageError
from kiln.conda.install import environment_folders, prefix_of_environment

NOTHING = {"PATH": ""}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def conda(tmp_path: Path) -> Path:
    """An installation of conda."""
    root = tmp_path / "miniforge"
    for folder in ("bin", "conda-meta", "envs"):
        (root / folder).mkdir(parents=True)
    (root / "bin" / "conda").touch(mode=0o755)
    return root


def test_without_conda_it_is_in_the_users_own_folder(home: Path) -> None:
    assert prefix_of_environment("tf", env=NOTHING, home=home) == home / ".conda" / "envs" / "tf"


@pytest.mark.parametrize("variable", ["PATH", "CONDA_EXE"])
def test_a_new_environment_is_in_condas_first_folder(home: Path, conda: Path, variable: str) -> None:
    env = NOTHING | {variable: str(conda / "bin" / ("conda" if variable == "CONDA_EXE" else ""))}
    assert environment_folders(env, home) == (conda / "envs", home / ".conda" / "envs")
    assert prefix_of_environment("tf", env=env, home=home) == conda / "envs" / "tf"


def test_mambas_folder_is_used_without_conda(home: Path, tmp_path: Path) -> None:
    (tmp_path / "mamba").mkdir()
    env = NOTHING | {"MAMBA_ROOT_PREFIX": str(tmp_path / "mamba")}
    assert prefix_of_environment("tf", env=env, home=home) == tmp_path / "mamba" / "envs" / "tf"


def test_a_program_named_conda_that_is_no_installation_does_not_count(home: Path, tmp_path: Path) -> None:
    (tmp_path / "bin").mkdir()
    (tmp_path / "bin" / "conda").touch(mode=0o755)
    assert environment_folders({"PATH": str(tmp_path / "bin")}, home) == (home / ".conda" / "envs",)


def test_an_environment_that_exists_is_found_in_any_folder(home: Path, conda: Path) -> None:
    (home / ".conda" / "envs" / "tf").mkdir(parents=True)
    env = NOTHING | {"CONDA_EXE": str(conda / "bin" / "conda")}
    assert prefix_of_environment("tf", env=env, home=home) == home / ".conda" / "envs" / "tf"


def test_the_users_settings_come_first(home: Path, conda: Path, tmp_path: Path) -> None:
    (home / ".condarc").write_text("envs_dirs:\n  - ~/mine\n  - $SCRATCH/envs\n")
    (conda / ".condarc").write_text("channels: [conda-forge]\nenvs_dirs: [/shared/envs]\n")
    env = NOTHING | {"CONDA_EXE": str(conda / "bin" / "conda"), "SCRATCH": str(tmp_path)}
    env["CONDA_ENVS_PATH"] = os.pathsep.join(["/one", "/two"])
    expected = ("/one", "/two", home / "mine", tmp_path / "envs", "/shared/envs", conda / "envs", home / ".conda/envs")
    assert environment_folders(env, home) == tuple(Path(place) for place in expected)
    del env["CONDA_ENVS_PATH"]
    assert prefix_of_environment("tf", env=env, home=home) == home / "mine" / "tf"


@pytest.mark.parametrize("text", ["envs_dirs: /one\n", "envs_dirs: [{a: b}]\n", "envs_dirs: [\n"])
def test_settings_that_cannot_be_read_are_named(home: Path, text: str) -> None:
    (home / ".condarc").write_text(text)
    with pytest.raises(KilnError) as caught:
        prefix_of_environment("tf", env=NOTHING, home=home)
    assert caught.value.at is not None
    assert caught.value.at.file == str(home / ".condarc")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a:b", "a#b", "a\n", "base", "root"])
def test_an_invalid_name_and_condas_own_environment_are_refused(home: Path, name: str) -> None:
    with pytest.raises(UsageError):
        prefix_of_environment(name, env=NOTHING, home=home)


@pytest.mark.parametrize("reason", ["a file in the place of the folder"])
def test_where_nothing_can_be_written_a_prefix_is_asked_for(home: Path, reason: str) -> None:
    (home / ".conda").write_text(reason)
    with pytest.raises(NotWritable) as caught:
        prefix_of_environment("tf", env=NOTHING, home=home)
    assert caught.value.hint == "-p DIR"
