"""The cost of publishing: packages to a folder, next to a plain copy and its hash, and the index of a large channel.

A time of a second or less is the best of three.
"""

from __future__ import annotations

import os
import shutil
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.base import files
from kiln.conda.index import read_index_entry
from kiln.publish import gate, transaction
from kiln.publish.stores import target as stores_target
from kiln.publish.stores.folder import FolderStore
from kiln.publish.stores.target import StoreTarget
from tests.bench.timing import ROOT, folder_of_builds, seconds
from tests.packages import release_package

if TYPE_CHECKING:
    from tests.bench.timing import Row

COUNT = 100
LARGE = 5_000


def rows() -> list[Row]:
    """Publishing and indexing; KILN_BENCH_GB are the gigabytes to publish (10 by default)."""
    with folder_of_builds() as folder:
        return [*publishing(folder), *indexing(folder)]


def publishing(folder: Path) -> list[Row]:
    """Return a release of large packages, in a folder of the same file system as where they were built."""
    gigabytes = float(os.environ.get("KILN_BENCH_GB", "10"))
    built = [large_package(folder / "built", number, int(gigabytes * 1e9 / COUNT)) for number in range(COUNT)]
    os.sync()
    plain = seconds(lambda: copied_and_hashed(built, folder / "copy"))
    shutil.rmtree(folder / "copy")
    judged = seconds(lambda: judge(built))
    put = seconds(lambda: publish(built, folder / "channel"))
    shutil.rmtree(folder / "channel")
    shutil.rmtree(folder / "built")
    what = f"{COUNT} packages, {gigabytes:g} GB"
    return [
        (f"{what}: plain copy and hash", f"{plain:.1f} s", ""),
        (f"{what}: published to a folder", f"{put:.1f} s", f"{1.5 * plain:.1f} s"),
        (f"{what}: judged before that", f"{judged:.1f} s", ""),
    ]


def publish(packages: list[Path], folder: Path) -> None:
    """Stage, promote and index packages."""
    target = StoreTarget(store=FolderStore(root=folder))
    transaction.publish(target, packages, [read_index_entry(package) for package in packages], lambda _: None)


def judge(packages: list[Path]) -> None:
    """Read packages as the gate does."""
    for package in packages:
        gate.inspect_package(package, gate.forbidden_texts([str(ROOT)]))


def copied_and_hashed(packages: list[Path], folder: Path) -> None:
    """Copy files and read the copies for their hashes."""
    folder.mkdir()
    for package in packages:
        files.sha256(Path(shutil.copy2(package, folder)))
    os.sync()


def large_package(folder: Path, number: int, size: int) -> Path:
    """Return a package with this many bytes that do not compress."""
    package = release_package(folder, f"large{number}")
    with zipfile.ZipFile(package, "a") as file, file.open("pkg-more.bin", "w", force_zip64=True) as stream:
        block = os.urandom(1 << 20)
        for _ in range(size >> 20):
            stream.write(block)
    return package


def indexing(folder: Path) -> list[Row]:
    """Return the index of a channel of thousands of packages: from nothing, again, and with one more."""
    channel = folder / "large"
    for number in range(LARGE):
        release_package(channel / "linux-64", f"p{number}", depends=["python >=3.10", f"p{number // 2} >=1"])
    target = StoreTarget(store=FolderStore(root=channel))

    def index() -> None:
        stores_target.reindex_channel(target, lambda path: read_index_entry(channel / path))

    first, again = seconds(index), min(seconds(index) for _ in range(3))
    more = [release_package(folder / "more", f"one-more{number}") for number in range(3)]
    added = min(seconds(lambda: publish([package], channel)) for package in more)  # noqa: B023 - called at once
    what = f"channel of {LARGE:,} packages"
    return [
        (f"{what}: indexed from nothing", f"{first:.1f} s", ""),
        (f"{what}: indexed from cache", f"{again:.2f} s", "5 s"),
        (f"{what}: one package added", f"{added:.2f} s", "1 s"),
    ]
