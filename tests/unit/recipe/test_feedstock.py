from __future__ import annotations

import os
import stat
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import FeedstockNotFound, SystemFault, UsageError
from kiln.recipe import feedstock
from kiln.state.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from collections.abc import Callable
    from pathlib import Path


def test_a_feedstock_is_found_by_its_recipe_in_either_format(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "link").symlink_to("nowhere")  # which is no fault
    (tmp_path / "recipe" / "recipe.yaml").touch()
    assert feedstock.load(tmp_path).recipe_v1 == tmp_path / "recipe" / "recipe.yaml"
    (tmp_path / "recipe" / "recipe.yaml").rename(tmp_path / "recipe" / "meta.yaml")
    assert feedstock.load(tmp_path).meta == tmp_path / "recipe" / "meta.yaml"
    with pytest.raises(FeedstockNotFound) as caught:
        feedstock.load(tmp_path / "recipe")
    assert caught.value.hint == f"-C {tmp_path}"


def test_a_folder_without_a_recipe_names_both_formats(tmp_path: Path) -> None:
    with pytest.raises(FeedstockNotFound) as caught:
        feedstock.load(tmp_path)
    assert caught.value.why == "it has neither recipe/meta.yaml nor recipe/recipe.yaml"


@pytest.mark.parametrize("name", ["$(touch PWN)", "a`b`", 'a"b', "a'b", "a\\b", "a\nb", "a\tb", "a\x7fb", "a\udcffb"])
def test_a_path_that_shells_would_change_is_refused(tmp_path: Path, name: str) -> None:
    root = tmp_path / name
    (root / "recipe").mkdir(parents=True)
    (root / "recipe" / "meta.yaml").touch()
    with pytest.raises(UsageError, match="no feedstock can be in") as refused:
        feedstock.load(root)
    assert str(refused.value).encode().isascii()


@pytest.mark.parametrize("name", ["a b", "grün", "a;b", "a&b", "a(b)", "a*", "#a", "a=b", "~", "a|b", "a?", "a!"])
def test_other_paths_are_taken(tmp_path: Path, name: str) -> None:
    feedstock.require_usable_path(tmp_path / name)


def make_socket(path: Path) -> None:
    os.mknod(path, stat.S_IFSOCK | 0o600)


def link_to_device(path: Path) -> None:
    path.symlink_to("/dev/zero")


@pytest.mark.skipif(not hasattr(os, "mkfifo"), reason="no pipes in folders")
@pytest.mark.parametrize("make", [os.mkfifo, make_socket, link_to_device])
@pytest.mark.parametrize(
    "place",
    [
        *("recipe/build.sh", "recipe/a/b", ".gitignore", "conda-forge.yml", ".ci_support/a.yaml"),
        *("build_artifacts/.gitignore", "build_artifacts/linux-64/repodata.json", "build_artifacts/noarch/a.conda"),
        *("build_artifacts/locks/channel.lock", "build_artifacts/ledger.sqlite"),
    ],
)
def test_pipes_sockets_and_devices_are_refused_at_once(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, place: str, make: Callable[[Path], None]
) -> None:
    monkeypatch.chdir(tmp_path)
    (tmp_path / "recipe").mkdir()
    (tmp_path / "recipe" / "meta.yaml").touch()
    (tmp_path / place).parent.mkdir(parents=True, exist_ok=True)
    make(tmp_path / place)
    with pytest.raises(SystemFault, match=r"is a (?:pipe|socket|device), not a file"):
        ArtifactLayout.for_feedstock(feedstock.load(tmp_path))


@pytest.mark.parametrize(("name", "more"), [("a b", " "), ("a,b", ",")])
def test_what_the_place_of_a_build_cannot_take_is_refused(tmp_path: Path, name: str, more: str) -> None:
    feedstock.require_usable_path(tmp_path / name)
    with pytest.raises(UsageError, match="no feedstock can be in"):
        feedstock.require_usable_path(tmp_path / name, more)


def test_a_folder_of_another_name_is_told(tmp_path: Path) -> None:
    (tmp_path / "conda-forge.yml").write_text("recipe_dir: custom\n")
    with pytest.raises(FeedstockNotFound, match="recipe_dir has no effect in kiln") as caught:
        feedstock.load(tmp_path)
    assert caught.value.hint == "rename custom to recipe, and remove recipe_dir"
