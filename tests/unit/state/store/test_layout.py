"""The folders of builds are below build_artifacts, behind no link."""

from __future__ import annotations

from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import NotWritable
from kiln.recipe.feedstock import Feedstock
from kiln.state.ledger.database import write_config_backup
from kiln.state.store.layout import ArtifactLayout, RehearsalLayout
from tests.git_repositories import git

if TYPE_CHECKING:
    from collections.abc import Callable


PLACES: dict[str, Callable[[ArtifactLayout], object]] = {
    "cache": lambda layout: layout.package_cache,
    "engines": lambda layout: layout.engines,
    "pythons": lambda layout: layout.rehearsal_pythons,
    "finished": lambda layout: write_config_backup(layout.root, "k", (), ()),
    "finished/k.json": lambda layout: write_config_backup(layout.root, "k", (), ()),
    "compile-cache": lambda layout: layout.compile_caches,
    "compile-cache/k": lambda layout: layout.compile_caches.folder("k"),
    "locks": lambda layout: layout.lock_file("c"),
    "locks/builds/c.lock": lambda layout: layout.lock_file("c"),
    "locks/channel.lock": lambda layout: layout.common_lock_file("channel"),
    "work-packages/c": lambda layout: layout.staging_folder("c"),
    "work-published": lambda layout: layout.published_marker_file("c"),
    "work-in-container": lambda layout: layout.container_marker_file("c"),
    "work": lambda layout: layout.work_folder("c"),
    "work/c": lambda layout: layout.work_folder("c"),
    "logs": lambda layout: layout.log_file(1, "c"),
    "logs/0001": lambda layout: layout.log_file(1, "c"),
    "logs/0001/c.log": lambda layout: layout.log_file(1, "c"),
    "conda-forge-build-done-c": lambda layout: layout.conda_forge_done_canary("c"),
    "linux-64": lambda layout: layout.channel.repair_index(),
    "linux-64/a.conda": lambda layout: layout.channel.package_path(Path("a.conda"), "linux-64"),
    "rehearsal": lambda layout: ArtifactLayout(root=layout.root, rehearsal=True).work_folder("c"),
    "rehearsal/wheels": lambda layout: RehearsalLayout(config=layout.root / "rehearsal" / "c").wheels,
    "rehearsal/c/channel": lambda layout: RehearsalLayout(config=layout.root / "rehearsal" / "c").channel,
    "reports": lambda layout: layout.safe_path("reports", "0001.html"),
}


@pytest.mark.parametrize("name", PLACES)
def test_a_link_in_the_place_of_what_builds_write_is_refused(tmp_path: Path, name: str) -> None:
    elsewhere = tmp_path / "elsewhere"
    elsewhere.mkdir()
    link = tmp_path / "build_artifacts" / name
    link.parent.mkdir(parents=True)
    link.symlink_to(elsewhere)
    with pytest.raises(NotWritable, match=f"{link} is a link.*\n.*{elsewhere}"):
        PLACES[name](ArtifactLayout(root=tmp_path / "build_artifacts"))
    assert list(elsewhere.iterdir()) == []


NAMES = ("a", "a.packages", "a.in-container", "a.published", "channel", "rehearsal-a", "a.lock", "builds", "fleet")


def test_no_name_of_a_config_is_that_of_another_file(tmp_path: Path) -> None:
    places: list[Path] = []
    for rehearsal in (False, True):
        layout = ArtifactLayout(root=tmp_path, rehearsal=rehearsal)
        places += [layout.common_lock_file(name) for name in ("channel", "engines", "fleet", "images")]
        for name in NAMES:
            of_config = (layout.lock_file, layout.work_folder, layout.staging_folder)
            places += [
                place(name) for place in (*of_config, layout.container_marker_file, layout.published_marker_file)
            ]
    assert len(set(places)) == len(places)
    assert not {parent for place in places for parent in place.parents} & set(places), "none is inside of another"


@pytest.mark.processes
def test_only_a_link_of_ones_own_leads_builds_to_another_disk(tmp_path: Path) -> None:
    root, elsewhere = tmp_path / "feedstock", tmp_path / "elsewhere"
    root.mkdir()
    elsewhere.mkdir()
    (root / "build_artifacts").symlink_to(elsewhere)
    with pytest.raises(NotWritable, match="came with the feedstock"):
        ArtifactLayout.for_feedstock(Feedstock(root=root))  # nobody says whose it is
    git(root, "init", "-q")
    assert ArtifactLayout.for_feedstock(Feedstock(root=root)).root == root / "build_artifacts"
    git(root, "add", "--force", "build_artifacts")
    with pytest.raises(NotWritable, match=f"came with the feedstock.*\n.*leads to {elsewhere}"):
        ArtifactLayout.for_feedstock(Feedstock(root=root))


def test_git_ignores_the_folder_unless_the_user_decided_otherwise(tmp_path: Path) -> None:
    layout = ArtifactLayout(root=tmp_path / "build_artifacts")
    layout.hide_from_git()
    ignored = layout.root / ".gitignore"
    assert ignored.read_text() == "*\n"
    ignored.write_text("!linux-64\n")
    layout.hide_from_git()
    assert ignored.read_text() == "!linux-64\n"


def test_compile_caches_may_be_in_a_folder_that_machines_share(tmp_path: Path) -> None:
    feedstock, shared = Feedstock(root=tmp_path / "feedstock"), tmp_path / "shared"
    layout = ArtifactLayout.for_feedstock(feedstock, compile_cache=shared)
    with layout.compile_caches.locked_folder("k", "cuda12.9") as folder:
        assert folder == shared / "k"
    assert [entry.key for entry in layout.compile_caches.all_caches()] == ["k"]
    assert ArtifactLayout.for_feedstock(feedstock).compile_caches.root == feedstock.artifacts / "compile-cache"


def test_a_rehearsal_in_a_container_shares_nothing_but_the_wheels(tmp_path: Path) -> None:
    config = tmp_path / "rehearsal" / "c"
    together, apart = RehearsalLayout(config=config), RehearsalLayout(config=config, apart=True)
    assert apart.wheels == together.wheels
    written = (apart.wheels_lock_file, apart.converted_packages, apart.package_cache, apart.channel.root, apart.work)
    assert all(path.is_relative_to(config) for path in written)
    assert not together.converted_packages.is_relative_to(config)


def channel_of(layout: RehearsalLayout, *names: str) -> None:
    for name in names:
        path = layout.channel.root / "noarch" / name
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_text(name)
    (layout.channel.root / "noarch" / "repodata.json").write_text(" ".join(names))


def test_a_channel_that_loses_packages_stays_beside_until_its_successor_is_complete(tmp_path: Path) -> None:
    layout = RehearsalLayout(config=tmp_path)
    channel_of(layout, "a-1-0.conda", "b-1-0.conda")
    assert not layout.back_up_channel(["a-1-0.conda", "b-1-0.conda"])
    assert not layout.earlier_channel.root.exists()
    assert layout.back_up_channel(["a-2-0.conda", "b-1-0.conda"])
    (layout.channel.root / "noarch" / "a-1-0.conda").unlink()
    channel_of(layout, "a-2-0.conda")  # the rehearsal goes on, and is interrupted; the next one begins
    assert layout.back_up_channel(["a-3-0.conda"])
    earlier = layout.earlier_channel.root / "noarch"
    assert sorted(path.name for path in earlier.iterdir()) == ["a-1-0.conda", "b-1-0.conda", "repodata.json"]
    assert (earlier / "repodata.json").read_text() == "a-1-0.conda b-1-0.conda"
    layout.remove_earlier_channel()
    assert not layout.earlier_channel.root.exists()
    layout.remove_earlier_channel()
