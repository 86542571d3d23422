"""The files of a new feedstock are written whole, and none that exists is changed."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from kiln.base.errors import NotWritable, UsageError
from kiln.feedstock.init import scaffold
from kiln.feedstock.init.scaffold import KilnRequirement, PlannedFiles, RecipeFormat, starter_recipe
from kiln.recipe import feedstock as recipe_feedstock
from tests import builders

ROOT = Path(__file__).parents[4]
KILN = KilnRequirement(line="kiln==1")
META = "package:\n  name: a\n  version: '1'\n"
RECIPE = starter_recipe("a", "1", RecipeFormat.V1, ["jane"])


def test_the_entry_point_of_this_repository_is_that_of_all_feedstocks(tmp_path: Path) -> None:
    text = scaffold.new_feedstock_files(tmp_path, RECIPE, KILN).added["build-locally.py"]
    assert text == (ROOT / "build-locally.py").read_text()


def test_a_new_folder_appears_complete_with_its_modes(tmp_path: Path) -> None:
    root = tmp_path / "a" / "f"
    (root.parent / ".f.12-0a1b2c3d.part" / "recipe").mkdir(parents=True)  # of a killed command
    scaffold.write_planned_files(root, scaffold.new_feedstock_files(root, RECIPE, KILN))
    assert os.access(root / "build-locally.py", os.X_OK)
    assert not os.access(root / "conda-forge.yml", os.X_OK)
    assert (root / "requirements" / "kiln.txt").read_text().splitlines()[-1] == "kiln==1"
    assert [path.name for path in root.parent.iterdir()] == ["f"]


@pytest.mark.parametrize("name", ["recipe/recipe.yaml", "recipe/meta.yaml", "conda-forge.yml", ".gitignore"])
def test_a_file_that_exists_is_named_and_nothing_is_written(tmp_path: Path, name: str) -> None:
    (tmp_path / name).parent.mkdir(exist_ok=True)
    (tmp_path / name).write_text("theirs")
    with pytest.raises(NotWritable, match="overwrites nothing") as caught:
        scaffold.new_feedstock_files(tmp_path, RECIPE, KILN)
    assert caught.value.why == name


def test_the_files_of_a_killed_command_are_kept_and_the_others_added(tmp_path: Path) -> None:
    planned = scaffold.new_feedstock_files(tmp_path, RECIPE, KILN)
    scaffold.write_planned_files(tmp_path, planned)
    assert scaffold.new_feedstock_files(tmp_path, RECIPE, KILN).kept == tuple(planned.added)
    (tmp_path / "conda-forge.yml").unlink()
    again = scaffold.new_feedstock_files(tmp_path, RECIPE, KILN)
    assert tuple(again.added) == ("conda-forge.yml",)
    (tmp_path / "outputs.txt").write_text(f"{planned.added['outputs.txt']}theirs\n")
    with pytest.raises(NotWritable) as caught:
        scaffold.new_feedstock_files(tmp_path, RECIPE, KILN)
    assert caught.value.why == "outputs.txt"


def test_a_dangling_link_counts_as_existing_and_a_linked_folder_is_not_written_through(tmp_path: Path) -> None:
    (tmp_path / "conda-forge.yml").symlink_to(tmp_path / "nowhere")
    with pytest.raises(NotWritable):
        scaffold.new_feedstock_files(tmp_path, RECIPE, KILN)
    (tmp_path / "conda-forge.yml").unlink()
    (tmp_path / "elsewhere").mkdir()
    (tmp_path / "recipe").symlink_to(tmp_path / "elsewhere")
    with pytest.raises(NotWritable, match="is a link"):
        scaffold.write_planned_files(tmp_path, scaffold.new_feedstock_files(tmp_path, RECIPE, KILN))
    assert not (tmp_path / "conda-forge.yml").exists()


def test_a_feedstock_gets_what_it_lacks(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, META)
    planned = scaffold.missing_feedstock_files(feedstock, KILN)
    assert list(planned.added) == [".gitignore", "build-locally.py", "requirements/kiln.txt"]
    assert planned.kept == ("conda-forge.yml",)
    scaffold.write_planned_files(tmp_path, planned)
    assert scaffold.missing_feedstock_files(feedstock, KILN).added == {}


def test_conda_smithys_entry_point_stays_and_needs_no_requirement(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, META, files={"build-locally.py": "import subprocess\n"})
    planned = scaffold.missing_feedstock_files(feedstock, KILN)
    assert list(planned.added) == [".gitignore"]
    assert planned.kept == ("conda-forge.yml", "build-locally.py")


def test_a_recipe_yaml_without_settings_gets_those_of_its_format(tmp_path: Path) -> None:
    files = {"recipe/recipe.yaml": "package:\n  name: a\n  version: '1'\n"}
    scaffold.write_planned_files(tmp_path, PlannedFiles(added=files))
    planned = scaffold.missing_feedstock_files(recipe_feedstock.load(tmp_path), KILN)
    assert "conda_build_tool: rattler-build\n" in planned.added["conda-forge.yml"]


def test_the_list_of_outputs_is_written_once(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, META)
    planned = scaffold.planned_outputs_file(feedstock, ["b", "a", "a"])
    assert planned.added["outputs.txt"].splitlines()[1:] == ["a", "b"]
    scaffold.write_planned_files(tmp_path, planned)
    assert scaffold.planned_outputs_file(feedstock, ["c"]) == PlannedFiles(added={}, kept=("outputs.txt",))


@pytest.mark.parametrize(("name", "hint"), [("A", "kiln init a"), ("a b", ""), ("../a", ""), ("", ""), ("-x", "")])
def test_an_invalid_name_is_refused(name: str, hint: str) -> None:
    with pytest.raises(UsageError, match="cannot be the name of a package") as caught:
        scaffold.require_valid_package_name(name)
    assert caught.value.hint == hint


@pytest.mark.parametrize("version", ["", "1-2", "1 2", "1..2", "x" * 65])
def test_an_invalid_version_is_refused(version: str) -> None:
    with pytest.raises(UsageError, match="cannot be a version"):
        scaffold.require_valid_version(version)


@pytest.fixture
def script(tmp_path: Path) -> Path:
    path = tmp_path / "build-locally.py"
    path.write_text((ROOT / "build-locally.py").read_text())
    return path


def ended(script: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(script), "--all"], capture_output=True, text=True, check=False)


@pytest.mark.processes
def test_the_entry_point_without_a_requirement_says_how_to_get_one(script: Path) -> None:
    process = ended(script)
    assert process.returncode == 3
    assert "requirements/kiln.txt is missing" in process.stderr
    assert "kiln init" in process.stderr
    assert not (script.parent / ".venv").exists()


@pytest.mark.processes
def test_the_entry_point_keeps_an_environment_that_is_not_its_own(script: Path) -> None:
    (script.parent / "requirements").mkdir()
    (script.parent / "requirements" / "kiln.txt").write_text("kiln==1\n")
    (script.parent / ".venv").mkdir()
    (script.parent / ".venv" / "mine").touch()
    process = ended(script)
    assert process.returncode == NotWritable.exit_code
    assert "move it away" in process.stderr
    assert (script.parent / ".venv" / "mine").exists()


@pytest.mark.processes
def test_the_entry_point_uses_a_complete_environment_as_it_is(script: Path) -> None:
    text = "kiln==1\n"
    (script.parent / "requirements").mkdir()
    (script.parent / "requirements" / "kiln.txt").write_text(text)
    folder = script.parent / ".venv"
    (folder / "bin").mkdir(parents=True)
    (folder / "kiln-requirements.txt").write_text(f"# {folder}\n{text}")
    python = folder / "bin" / "python"
    python.write_text('#!/bin/sh\nprintf "%s|" "$@"\n')
    python.chmod(0o755)
    words = ["-I", "-m", "kiln", "--called", "build-locally.py", "-C", str(script.parent), "build"]
    assert ended(script).stdout.split("|")[:-1] == [*words, "--calling-python", sys.executable, "--all"]
