"""Publications that are killed, refused, raced and served: a channel reads as before or as after, never between."""

from __future__ import annotations

import os
import shutil
import subprocess
import sys
import tempfile
import threading
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base import files
from kiln.base.errors import AlreadyRunning, DiskFull, HashMismatch
from kiln.conda.index import read_index_entry
from kiln.publish import transaction
from tests import publishing
from tests.packages import release_package
from tests.publishing import NEW, OLD, described, packages, publish_new, publish_old, put, seen, target
from tests.small_disks import mounted
from tests.waiting import CEILING

if TYPE_CHECKING:
    from collections.abc import Iterator

pytestmark = pytest.mark.slow("a publication is killed at each of its steps")
ROOT = Path(__file__).parents[2]
BEFORE = {f"{name}-1-0.conda" for name in OLD}
AFTER = BEFORE | {f"{name}-1-0.conda" for name in NEW}


@pytest.fixture
def quick() -> Iterator[Path]:
    """A folder in memory, where a thousand writes do not wait for a disk; elsewhere a temporary folder."""
    memory = Path("/dev/shm")
    with tempfile.TemporaryDirectory(dir=memory if memory.is_dir() else None, prefix="kiln-") as place:
        yield Path(place)


@pytest.fixture
def folder(quick: Path) -> Path:
    """A folder with a channel of the old packages, and with the new packages."""
    place = quick / "place"
    publish_old(place)
    packages(place, NEW)
    return place


def killed(function: str, folder: Path, copies: Path) -> list[str]:
    """Do something, killed at each of its steps in a copy of its own; returns the steps."""
    words = (sys.executable, "-m", "tests.killed", "tests.publishing", function, str(folder), str(copies))
    ended = subprocess.run(words, cwd=ROOT, text=True, capture_output=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return ended.stdout.splitlines()


def listing(folder: Path) -> dict[str, bytes]:
    """All that readers can see of a channel."""
    return {
        str(path.relative_to(folder)): path.read_bytes()
        for subdir in ("linux-64", "noarch", "provenance/*")
        for path in folder.glob(f"{subdir}/*")
        if path.is_file()
    }


def refuse(_: str) -> None:
    """Try packages out, and find them no good."""
    raise HashMismatch("no good")


@pytest.mark.sampled
def test_a_publication_killed_at_any_step_leaves_the_channel_as_before_or_as_after(folder: Path, quick: Path) -> None:
    before = listing(folder / "channel")
    steps = killed("publish_new", folder, quick / "copies")
    assert len(steps) > 30, "every change of a file is a step"
    states = []
    for number, step in enumerate([*steps, "none"], 1):
        copy = quick / "copies" / str(number)
        states.append(seen(copy / "channel"))
        assert states[-1] in (BEFORE, AFTER), step
        assert described(copy / "channel") >= states[-1], "the statements are there before the index offers a package"
        back = Path(shutil.copytree(copy, quick / "back", symlinks=True))
        if transaction.abort(publishing.target(back)):
            assert listing(back / "channel") == before, step
        assert seen(back / "channel") in (BEFORE, AFTER), step
        shutil.rmtree(back)
        publish_new(copy)
        assert seen(copy / "channel") == AFTER, step
        assert not list((copy / "channel" / ".kiln").glob("staging/*"))
        assert not list((copy / "channel").rglob("*.part"))
    moment = states.index(AFTER)
    assert states == [BEFORE] * moment + [AFTER] * (len(states) - moment), "there is one moment, and no way back"


@pytest.mark.sampled
@pytest.mark.parametrize("function", ["abort", "yank"])
def test_taking_back_and_withdrawing_can_be_killed_at_any_step_too(folder: Path, quick: Path, function: str) -> None:
    if function == "abort":
        broken = publishing.target(folder)
        paths = packages(folder, NEW)
        with pytest.raises(HashMismatch):
            transaction.publish(broken, paths, [read_index_entry(path) for path in paths], refuse)
    after = BEFORE if function == "abort" else BEFORE - {"old-1-0.conda"}
    steps = killed(function, folder, quick / "copies")
    for number, step in enumerate([*steps, "none"], 1):
        copy = quick / "copies" / str(number)
        assert seen(copy / "channel") in (BEFORE, after), step
        if function == "abort":
            publishing.abort(copy)
            publish_new(copy)
            assert seen(copy / "channel") == AFTER


def test_a_channel_that_another_tool_indexed_is_taken_over(tmp_path: Path) -> None:
    import asyncio

    from rattler.index import index_fs

    channel = tmp_path / "channel"
    release_package(channel / "linux-64", "old")
    release_package(channel / "noarch", "kept", subdir="noarch")
    asyncio.run(index_fs(channel, write_shards=False))
    publish_new(tmp_path)
    assert seen(channel) >= {"old-1-0.conda", "kept-1-0.conda", "fresh-1-0.conda"}
    release_package(channel / "linux-64", "later")
    asyncio.run(index_fs(channel, write_shards=False))  # it puts files in the place of kiln's links
    put(tmp_path, ("last",))
    assert "later-1-0.conda" in publishing.listed(channel / "linux-64", "plain")
    assert "last-1-0.conda" in publishing.listed(channel / "linux-64", "shards")


@pytest.mark.sampled
def test_of_two_publishers_at_once_one_is_refused(folder: Path) -> None:
    staged, go_on = threading.Event(), threading.Event()

    def hold(_: str) -> None:
        staged.set()
        assert go_on.wait(CEILING)

    paths = packages(folder, NEW)
    entries = [read_index_entry(path) for path in paths]
    first = threading.Thread(target=lambda: transaction.publish(target(folder), paths, entries, hold))
    first.start()
    try:
        assert staged.wait(CEILING)
        with pytest.raises(AlreadyRunning):
            put(folder, ("other",))
        assert seen(folder / "channel") == BEFORE
    finally:
        go_on.set()
        first.join()
    assert seen(folder / "channel") == AFTER


def test_a_package_damaged_in_staging_is_not_promoted(folder: Path) -> None:
    paths = packages(folder, NEW)
    entries = [read_index_entry(path) for path in paths]

    def damage(_: str) -> None:
        (staged,) = (folder / "channel" / ".kiln" / "staging").glob("*/linux-64/fresh-1-0.conda")
        files.write_bytes(staged, b"something else")

    with pytest.raises(HashMismatch, match="fresh"):
        transaction.publish(target(folder), paths, entries, damage)
    assert seen(folder / "channel") == BEFORE
    transaction.abort(target(folder))
    publish_new(folder)
    assert seen(folder / "channel") == AFTER


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    """A disk of two megabytes."""
    with mounted(tmp_path / "disk", "2m"):
        yield tmp_path / "disk"


@pytest.mark.sampled
def test_a_full_disk_leaves_the_channel_as_before_and_the_same_command_finishes(
    small_disk: Path, tmp_path: Path
) -> None:
    publish_old(small_disk)
    large = tmp_path / "built"
    paths = [release_package(large, "large", about="x", filler=os.urandom(1_500_000).hex())]
    entries = [read_index_entry(path) for path in paths]
    assert paths[0].stat().st_size > 1_000_000
    ballast = small_disk / "ballast"
    ballast.write_bytes(bytes(1 << 20))
    with pytest.raises(DiskFull, match="disk became full"):
        transaction.publish(target(small_disk), paths, entries, lambda _: None)
    assert seen(small_disk / "channel") == BEFORE
    ballast.unlink()
    transaction.publish(target(small_disk), paths, entries, lambda _: None)
    assert seen(small_disk / "channel") == BEFORE | {"large-1-0.conda"}
