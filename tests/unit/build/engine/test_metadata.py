"""A finished package says what conda-build would have it say."""

from __future__ import annotations

import dataclasses
from typing import TYPE_CHECKING

import pytest

from kiln.build.engine import metadata
from kiln.build.engine.metadata import rewrite_package_metadata
from kiln.conda.package_reader import read_info_files, read_info_json
from tests.packages import conda_package
from tests.releases import candidate

if TYPE_CHECKING:
    from pathlib import Path


INDEX = {"name": "app", "depends": ["lib ==1.0 h_0", "python >=3"], "constrains": ["zork ==2"]}


def test_fields_are_laid_over_the_index_and_specs_are_conda_builds(tmp_path: Path) -> None:
    old = conda_package(tmp_path / "old.conda", {"index.json": INDEX, "run_exports.json": {"weak": ["lib ==1.0"]}})
    rewrite_package_metadata(old, tmp_path / "new.conda", index={"track_features": "cpu"})
    assert read_info_json(tmp_path / "new.conda", "index.json") == {
        "name": "app",
        "depends": ["lib 1.0 h_0", "python >=3"],
        "constrains": ["zork 2"],
        "track_features": "cpu",
    }
    assert read_info_json(tmp_path / "new.conda", "run_exports.json") == {"weak": ["lib 1.0"]}


def test_the_hash_input_is_what_the_build_string_hashes(tmp_path: Path) -> None:
    info = {"index.json": INDEX, "hash_input.json": {"target_platform": "linux-64"}}
    old = conda_package(tmp_path / "old.conda", info)
    rewrite_package_metadata(
        old, tmp_path / "new.conda", index={}, edits={"hash_input": {"python": "3.11.* *_cpython"}}
    )
    assert read_info_json(tmp_path / "new.conda", "hash_input.json") == {"python": "3.11.* *_cpython"}


def test_the_same_content_made_on_another_machine_at_another_moment_gives_the_same_bytes(tmp_path: Path) -> None:
    made = []
    for number, kernel in enumerate(("6.1.0", "6.18.44")):
        recipe = (
            f"virtual_packages:\n  - __unix=0=0\n  - __linux={kernel}=0\n  timestamp: 2026-01-0{number + 1}T00:00:00Z\n"
        )
        info = {"index.json": {"name": "p", "timestamp": number}, "recipe/rendered_recipe.yaml": recipe}
        old = conda_package(tmp_path / str(number), info, payload={"bin/p": b"x"}, mtime=number)
        rewrite_package_metadata(old, tmp_path / f"new{number}", index={}, epoch=1_700_000_000)
        made.append((tmp_path / f"new{number}").read_bytes().replace(f"-{number}.tar".encode(), b"-.tar"))
    assert made[0] == made[1]
    assert read_info_json(tmp_path / "new0", "index.json")["timestamp"] == 1_700_000_000_000


@pytest.mark.parametrize("root", ["/home/jane/a b/foo-feedstock", "/root", "/home/conda/feedstock_root"])
def test_the_rendered_recipe_names_no_folder_of_the_machine(tmp_path: Path, root: str) -> None:
    recipe = (
        "  - path: {0}/recipe/src\n      - export RECIPE_DIR={0}/recipe; ls /opt/root/x /usr{0}/x\n"
        "    build_dir: {0}/build_artifacts/work/linux_64_/foo/bld\n  - file://{0}/build_artifacts/channel\n"
    )
    info = {"index.json": INDEX, "recipe/rendered_recipe.yaml": recipe.format(root)}
    rewrite_package_metadata(conda_package(tmp_path / "old.conda", info), tmp_path / "new.conda", index={})
    rendered = read_info_files(tmp_path / "new.conda")["recipe/rendered_recipe.yaml"].decode()
    assert rendered == recipe.format("/home/conda/feedstock_root").replace(
        "/usr/home/conda/feedstock_root", f"/usr{root}"
    )


@pytest.mark.parametrize("root", ["/home/jane/foo", "/home/jane/a-much-longer-name/foo-feedstock"])
def test_the_rendered_prefix_is_as_long_as_the_engines(tmp_path: Path, root: str) -> None:
    def rendered(root: str) -> str:
        prefix = f"{root}/build_artifacts/work/a/host_env" + 30 * "_placehold"
        return f"    host_prefix: {prefix[:255]}\n    build_dir: {root}/build_artifacts/work/a\n"

    info = {"index.json": INDEX, "recipe/rendered_recipe.yaml": rendered(root)}
    rewrite_package_metadata(conda_package(tmp_path / "old.conda", info), tmp_path / "new.conda", index={})
    text = read_info_files(tmp_path / "new.conda")["recipe/rendered_recipe.yaml"].decode()
    assert text == rendered("/home/conda/feedstock_root")


def test_a_recipe_cannot_state_the_commit_it_was_built_from() -> None:
    output = candidate().output
    assert output is not None
    said = {"sha": "1" * 40, "remote_url": "https://a.example/b", "flow_run_id": "1", "recipe-maintainers": ["me"]}
    edits = metadata.about_and_hash_edits(dataclasses.replace(output, extra=said))
    assert edits["extra"] == {"recipe-maintainers": ["me"]}
