"""The steps of a publication and their journal, over a channel in a folder."""

from __future__ import annotations

import hashlib
import json
from pathlib import Path

import pytest

from kiln.base.errors import HashMismatch, PublicationPending
from kiln.conda.index import IndexEntry
from kiln.publish import transaction
from kiln.publish.model import PublicationPhase
from kiln.publish.stores.folder import FolderStore
from kiln.publish.stores.target import StoreTarget


@pytest.fixture
def target(tmp_path: Path) -> StoreTarget:
    return StoreTarget(store=FolderStore(root=tmp_path / "channel"))


def package(folder: Path, name: str, *depends: str, subdir: str = "noarch") -> tuple[Path, IndexEntry]:
    """Write a file, and return it with its entry as a package."""
    file = folder / subdir / f"{name}-1-0.conda"
    file.parent.mkdir(exist_ok=True)
    content = f"{name} {subdir}"
    file.write_text(content)
    sha256 = hashlib.sha256(content.encode()).hexdigest()
    record = {
        "name": name,
        "version": "1",
        "build": "0",
        "build_number": 0,
        "depends": list(depends),
        "subdir": subdir,
        "sha256": sha256,
        "md5": hashlib.md5(content.encode(), usedforsecurity=False).hexdigest(),
        "size": len(content),
    }
    return file, IndexEntry(file=file.name, subdir=subdir, record=record, run_exports={})


def publish(target: StoreTarget, *packages: tuple[Path, IndexEntry], fails: bool = False) -> tuple[str, ...]:
    def try_out(_: str) -> None:
        if fails:
            raise HashMismatch("the test fails")

    return transaction.publish(target, [file for file, _ in packages], [entry for _, entry in packages], try_out)


def test_new_packages_are_returned_in_the_order_of_need(target: StoreTarget, tmp_path: Path) -> None:
    app, lib = package(tmp_path, "app", "lib >=1"), package(tmp_path, "lib")
    assert publish(target, app, lib) == ("noarch/lib-1-0.conda", "noarch/app-1-0.conda")
    assert publish(target, app, lib) == ()
    assert target.journal.read() is None


def test_packages_are_tried_out_from_a_channel_that_has_them_alone(target: StoreTarget, tmp_path: Path) -> None:
    publish(target, package(tmp_path, "old"))
    file, entry = package(tmp_path, "new")
    seen: list[str] = []

    def try_out(url: str) -> None:
        staging = Path(url.removeprefix("file://"))
        seen.extend(path.name for path in staging.glob("*/*.conda"))
        assert target.package_hashes().keys() == {"noarch/old-1-0.conda"}

    transaction.publish(target, [file], [entry], try_out)
    assert seen == ["new-1-0.conda"]
    assert not list(tmp_path.glob("channel/.kiln/staging/*"))


def test_a_failed_test_leaves_the_channel_and_the_journal_and_can_be_aborted(
    target: StoreTarget, tmp_path: Path
) -> None:
    with pytest.raises(HashMismatch):
        publish(target, package(tmp_path, "new"), fails=True)
    journal = target.journal.read()
    assert journal is not None
    assert (journal.phase, target.package_hashes()) == (PublicationPhase.STAGING, {})
    assert transaction.abort(target) == ("noarch/new-1-0.conda",)
    assert target.journal.read() is None
    assert transaction.abort(target) == ()


def test_a_resumed_publication_does_not_repeat_tests_that_passed(
    target: StoreTarget, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    new = package(tmp_path, "new")
    with monkeypatch.context() as patch:
        patch.setattr(StoreTarget, "promote", interrupt)
        with pytest.raises(KeyboardInterrupt):
            publish(target, new)
    assert publish(target, new, fails=True) == ("noarch/new-1-0.conda",)
    assert target.package_hashes().keys() == {"noarch/new-1-0.conda"}


def interrupt(*_: object) -> None:
    raise KeyboardInterrupt


def test_packages_that_the_channel_has_do_not_end_another_publication(target: StoreTarget, tmp_path: Path) -> None:
    old = package(tmp_path, "old")
    publish(target, old)
    with pytest.raises(HashMismatch):
        publish(target, package(tmp_path, "new"), fails=True)
    with pytest.raises(PublicationPending, match="new-1-0"):
        publish(target, old)
    assert transaction.abort(target) == ("noarch/new-1-0.conda",)


def test_packages_of_any_platform_are_published_and_those_of_the_same_name_stay(
    target: StoreTarget, tmp_path: Path
) -> None:
    publish(target, package(tmp_path, "lib", subdir="linux-64"))
    publish(target, package(tmp_path, "lib", subdir="linux-aarch64"), package(tmp_path, "app", subdir="osx-arm64"))
    everything = {"linux-64/lib-1-0.conda", "linux-aarch64/lib-1-0.conda", "osx-arm64/app-1-0.conda"}
    assert target.package_hashes().keys() == everything
    for path in everything:
        subdir, file = path.split("/")
        folder = target.store.root / subdir  # type: ignore[attr-defined]
        assert file in json.loads((folder / "repodata.json").read_text())["packages.conda"]
        assert (folder / "repodata.json.zst").is_file()
    publish(target, package(tmp_path, "more"))
    assert target.package_hashes().keys() == {*everything, "noarch/more-1-0.conda"}


def test_an_aborted_publication_leaves_packages_of_the_same_name_for_other_platforms(
    target: StoreTarget, tmp_path: Path
) -> None:
    publish(target, package(tmp_path, "lib", subdir="linux-64"))
    file, entry = package(tmp_path, "lib", subdir="linux-aarch64")
    with pytest.raises(HashMismatch):
        publish(target, (file, entry), fails=True)
    journal = target.journal.read()
    assert journal is not None
    target.journal.write(journal.with_promoting_phase())
    target.promote(transaction.Publication.from_journal(journal, [file], [entry]), None)
    target.add_packages_to_index(transaction.Publication.from_journal(journal, [file], [entry]), None)
    assert target.package_hashes().keys() == {"linux-64/lib-1-0.conda", "linux-aarch64/lib-1-0.conda"}
    assert transaction.abort(target) == ("linux-aarch64/lib-1-0.conda",)
    assert target.package_hashes().keys() == {"linux-64/lib-1-0.conda"}
    assert (tmp_path / "channel" / "linux-64" / "lib-1-0.conda").is_file()
