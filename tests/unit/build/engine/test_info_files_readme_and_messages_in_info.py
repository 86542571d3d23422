"""The files that ``about`` names are taken from the sources or the recipe, under conda-build's names."""

from __future__ import annotations

import subprocess
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import RecipeFault
from kiln.build.engine import info_files
from kiln.recipe.rendered import Output, Requirements

if TYPE_CHECKING:
    from pathlib import Path


def output(**about: str | tuple[str, ...]) -> Output:
    return Output(
        name="app",
        version="1",
        build_number=0,
        build_string="0",
        subdir="linux-64",
        noarch=None,
        requirements=Requirements(),
        run_exports={},
        about=about,
        used={},
    )


Ended = subprocess.CompletedProcess[str]


def collected(folder: Path, **about: str | tuple[str, ...]) -> tuple[Ended, dict[str, bytes]]:
    """Run the lines in a work directory; return how they ended, and the files of ``info``."""
    lines = info_files.copy_about_files_lines(output(**about), folder / "recipe", folder / "place")
    argv = ("bash", "-e", "-c", "\n".join(lines))
    ended = subprocess.run(argv, cwd=folder / "work", capture_output=True, text=True, check=False)
    found = info_files.collect_info_files([{"to": ".", "tree": str(folder / "place"), "patterns": ["*"]}])
    return ended, {name: file.data for name, file in found.items()}


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in ("work/docs/README.md", "work/both", "recipe/both", "recipe/only/one", "recipe/only/two", "outside"):
        (tmp_path / name).parent.mkdir(parents=True, exist_ok=True)
        (tmp_path / name).write_text(name)
    return tmp_path


@pytest.mark.processes
def test_the_files_of_about_are_collected(folder: Path) -> None:
    messages = ("both", "only/one", "./only/two", str(folder / "recipe" / "only"))
    ended, files = collected(folder, readme="docs/README.md", prelink_message=messages, recipe_log_file="both")
    assert ended.returncode == 0, ended.stderr
    assert files == {
        "docs/README.md": b"work/docs/README.md",
        "prelink_messages/both": b"work/both",
        "prelink_messages/only/one": b"recipe/only/one",
        "prelink_messages/PRELINK_MESSAGE0.txt": b"recipe/only/two",
        "prelink_messages/PRELINK_MESSAGE1/one": b"recipe/only/one",
        "prelink_messages/PRELINK_MESSAGE1/two": b"recipe/only/two",
        "recipe_log.json": b"recipe/both",
    }


@pytest.mark.processes
@pytest.mark.parametrize("place", ["work", "recipe"])
def test_a_log_of_the_usual_name_is_found(folder: Path, place: str) -> None:
    assert collected(folder)[1] == {}
    (folder / place / "recipe_log.json").write_text("{}")
    assert collected(folder)[1] == {"recipe_log.json": b"{}"}


@pytest.mark.processes
@pytest.mark.parametrize("key", ["readme", "prelink_message"])
def test_a_missing_file_ends_the_build(folder: Path, key: str) -> None:
    ended, _ = collected(folder, **{key: "absent"})
    assert ended.returncode == 1
    assert f"about/{key}" in ended.stderr
    assert "absent" in ended.stderr


@pytest.mark.parametrize(
    "name", [".", "../outside", "/etc/passwd", "index.json", "recipe/meta.yaml", "test/run_test.sh"]
)
def test_a_readme_replaces_no_metadata(folder: Path, name: str) -> None:
    with pytest.raises(RecipeFault, match="about/readme"):
        info_files.copy_about_files_lines(output(readme=name), folder / "recipe", folder / "place")
