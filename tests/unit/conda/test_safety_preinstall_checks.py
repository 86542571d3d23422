"""Unit tests of the admission of packages: what a refusal leaves in the cache, and reports to the parent process."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import files
from kiln.base.errors import BrokenPackage, HashMismatch, LimitExceeded
from kiln.conda.rattler.client import records_from_json
from kiln.conda.rattler.limits import Limits
from kiln.conda.safety import PreinstallChecker, require_matching_hashes
from tests.solving import record

if TYPE_CHECKING:
    from collections.abc import Mapping
    from pathlib import Path

    from kiln.base.errors import KilnError


def _fail(error: KilnError) -> None:
    raise AssertionError(error)


class Installation:
    """The installation of one package, with the messages that were sent about it."""

    def __init__(self, folder: Path) -> None:
        self.sent: list[Mapping[str, Any]] = []
        self.prefix, self.unpacked = folder / "prefix", folder / "cache/app-1-0"
        app = {**record("app", "1"), "fn": "app-1-0.conda", "url": "file:///app-1-0.conda"}
        self.admission = PreinstallChecker(
            records_from_json([app]),
            self.prefix,
            self.unpacked.parent,
            carried=False,
            limits=Limits(),
            send=self.sent.append,
            stop=_fail,
        )

    def unpack(self) -> None:
        """Unpack the package, as the library does between its two reports."""
        number = self.admission.on_populate_cache_start(0, "app")
        (self.unpacked / "info").mkdir(parents=True)
        (self.unpacked / "info/index.json").write_text('{"name": "other"}', encoding="utf-8")
        self.admission.on_populate_cache_complete(number)

    @property
    def cached(self) -> list[str]:
        """The names in the cache."""
        return [path.name for path in self.unpacked.parent.iterdir()]

    @property
    def unfinished(self) -> bool:
        """Return whether the parent process must remove an unfinished package when this one ends."""
        return self.sent[-1] == {"unpacking": str(self.unpacked), "new": True}


@pytest.fixture
def installation(tmp_path: Path) -> Installation:
    return Installation(tmp_path)


def test_a_package_within_the_limits_is_reported_as_complete(installation: Installation) -> None:
    installation.unpack()
    folder = str(installation.unpacked)
    assert installation.sent == [{"unpacking": folder, "new": True}, {"unpacked": folder}]
    assert installation.cached == ["app-1-0"]


def test_a_package_that_exceeded_a_limit_is_removed_before_it_is_linked(installation: Installation) -> None:
    breach = LimitExceeded("too large", why="", hint="")
    installation.admission.exceeded = lambda: breach
    installation.unpack()
    assert installation.admission.refusal is breach
    assert installation.cached == []
    assert installation.unfinished


def test_a_refused_package_is_removed_with_its_prefix(installation: Installation) -> None:
    installation.unpack()
    installation.prefix.mkdir()
    installation.admission.on_link_start(0, "app")
    assert isinstance(installation.admission.refusal, BrokenPackage)
    assert installation.cached == []
    assert not installation.prefix.exists()
    assert files.quarantine_path(installation.prefix).is_dir()
    assert installation.unfinished


def test_a_removal_that_is_cut_short_leaves_only_what_the_parent_process_removes(
    installation: Installation, monkeypatch: pytest.MonkeyPatch
) -> None:
    installation.unpack()
    installation.prefix.mkdir()
    monkeypatch.setattr(files, "remove", lambda path: path)  # the process ends at this step
    installation.admission.on_link_start(0, "app")
    (part,) = installation.cached
    assert part.startswith(".app-1-0")
    assert len(part) == len(".app-1-0") + 6
    assert installation.unfinished


@pytest.mark.parametrize(("indexed", "is_refused"), [(4, False), (3, True), (5, True)])
def test_a_package_of_another_size_than_the_index_says_is_refused(
    indexed: int, is_refused: bool, tmp_path: Path
) -> None:
    file = tmp_path / "app-1-0.conda"
    file.write_bytes(b"four")
    entry = {**record("app", "1"), "fn": file.name, "url": file.as_uri(), "size": indexed}
    (app,) = records_from_json([{**entry, "sha256": files.sha256(file)}])
    stopped: list[KilnError] = []
    checker = PreinstallChecker(
        [app], tmp_path / "p", tmp_path, carried=False, limits=Limits(), send=lambda _: None, stop=stopped.append
    )
    number = checker.on_populate_cache_start(0, "app")
    checker.on_download_progress(checker.on_download_start(number), 4, None)
    (tmp_path / "app-1-0").mkdir()
    checker.on_populate_cache_complete(number)
    assert bool(stopped) is (indexed < 4), "what is longer is not read to its end"
    assert (type(checker.refusal) is HashMismatch) is is_refused
    assert (tmp_path / "app-1-0").exists() is not is_refused
    if is_refused:
        with pytest.raises(HashMismatch, match="is not the package in the channel's index"):
            require_matching_hashes([app])
    else:
        require_matching_hashes([app])
