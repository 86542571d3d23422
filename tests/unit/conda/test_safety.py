"""Which paths and links stay inside of a prefix."""

from __future__ import annotations

import os
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, cast

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.base import files
from kiln.base.errors import BrokenPackage, DownloadFailed, HashMismatch, LimitExceeded
from kiln.conda.rattler.client import records_from_json
from kiln.conda.rattler.limits import Limits
from kiln.conda.safety import (
    PrefixTree,
    PreinstallChecker,
    installation_error,
    require_matching_hashes,
    resolve_links,
    too_large_package_error,
    unsafe_package_error,
)
from tests.solving import record

if TYPE_CHECKING:
    from collections.abc import Mapping

    from rattler import RepoDataRecord

    from kiln.base.errors import KilnError

NAMES = st.sampled_from(["a", "b", "c"])
AIMS = st.lists(st.sampled_from(["..", ".", "a", "b", "c"]), min_size=1, max_size=4).map("/".join)


@pytest.mark.parametrize(
    ("path", "real"),
    [
        ("a/b", "a/b"),
        ("./a//b/", "a/b"),
        ("a/..", ""),
        ("a/../..", None),
        ("/a", None),
        ("..", None),
        ("top/lib/x", "lib/x"),
        ("top/../x", None),
        ("deep/link/x", "a/x"),
        ("loop/x", None),
        ("away/x", None),
    ],
)
def test_a_path_is_resolved_through_links(path: str, real: str | None) -> None:
    links = {"top": "a/..", "deep/link": "../a", "loop": "pool", "pool": "loop", "away": "/etc"}
    assert resolve_links(path, links) == real


@given(aims=st.dictionaries(NAMES, AIMS, max_size=3), path=AIMS)
def test_the_kernel_is_of_the_same_opinion(aims: dict[str, str], path: str) -> None:
    """If a path exists, the kernel resolves it to the same place, inside the prefix exactly when the check says so."""
    with tempfile.TemporaryDirectory() as place:
        prefix = Path(place).resolve() / "over" / "prefix"
        for name in ("a", "b", "c"):
            (prefix / name).parent.mkdir(parents=True, exist_ok=True)
            if name not in aims:
                (prefix / name / "a").mkdir(parents=True)
        for name, aim in aims.items():
            (prefix / name).symlink_to(aim)
        try:
            there = os.path.realpath(prefix / path, strict=True)
        except OSError:
            return  # nothing is there, or links go round: then nothing can be written either
        lies = resolve_links(path, aims)
        if lies is not None:
            assert there == os.path.normpath(prefix / lies)
        else:
            assert _ever_above(prefix, path, aims)


def _ever_above(prefix: Path, path: str, aims: dict[str, str]) -> bool:
    """Return whether following a path step by step leads above the prefix, according to the kernel."""
    at = prefix
    for part in path.split("/"):
        at = Path(os.path.realpath(at / part))
        if at == prefix.parent or at in prefix.parents:
            return True
    return any(".." in aim for aim in aims.values())


def test_a_file_behind_a_link_is_where_the_link_leads() -> None:
    tree = PrefixTree()
    assert tree.add_and_check_package(["share/x"], {"a/b/top": "../.."}) == []
    assert tree.add_and_check_package(["a/b/top/share/y"], {}) == [], "that is share/y"
    assert "a/b/top/out -> .." in tree.add_and_check_package([], {"a/b/top/out": ".."})


def test_a_folder_of_one_package_cannot_be_a_link_of_another() -> None:
    tree = PrefixTree()
    assert tree.add_and_check_package(["lib/x"], {}) == []
    assert tree.add_and_check_package([], {"lib": "share"}) == ["lib, a folder elsewhere"]


def test_carried_links_may_lead_out_but_no_file_is_behind_them() -> None:
    tree = PrefixTree(carried=True)
    assert tree.add_and_check_package([], {"away": "/etc"}) == []
    assert tree.add_and_check_package(["away/x"], {}) == ["away/..."]


def test_an_existing_outward_link_is_not_reported() -> None:
    tree = PrefixTree()
    tree.add_installed_paths(["share/x"], {"mine": "/home/me"})
    assert tree.add_and_check_package(["share/y"], {"lib64": "lib"}) == []


@pytest.mark.parametrize("path", ["history", "state", "pinned", "frozen", "app-1-0.json", "initial-state.explicit.txt"])
@pytest.mark.parametrize("folder", ["conda-meta", "./conda-meta", "conda-meta/", "CONDA-META"])
def test_no_package_has_a_say_in_the_records_of_a_prefix(folder: str, path: str) -> None:
    assert PrefixTree().add_and_check_package([f"{folder}/{path}"], {}) == [f"{folder}/{path}"]
    assert PrefixTree().add_and_check_package([f"share/{folder}/{path}"], {}) == []


def test_paths_of_one_file_are_reported() -> None:
    assert PrefixTree().add_and_check_package(["share/x", "share/y", "./share//x"], {}) == ["./share//x, twice"]
    assert PrefixTree().add_and_check_package(["share/x", "share/X"], {}) == []
    assert PrefixTree(folds_case=True).add_and_check_package(["share/x", "share/X"], {}) == ["share/X, twice"]


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
    sent: list[Mapping[str, Any]] = []
    checker = PreinstallChecker(
        [app], tmp_path / "p", tmp_path, carried=False, limits=Limits(), send=sent.append, stop=stopped.append
    )
    number = checker.on_populate_cache_start(0, "app")
    checker.on_download_progress(checker.on_download_start(number), 4, None)
    assert {"received": 4, "total": None} in sent
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


@dataclass(frozen=True, kw_only=True)
class RefusedRecord:
    """The fields of a refused_record that messages use."""

    url: str
    file_name: str = "app-1-0.conda"
    channel: str = "https://host/channel"
    sha256: bytes = bytes.fromhex("ab" * 32)
    md5: bytes | None = None
    size: int | None = None


def refused_record(**fields: Any) -> RepoDataRecord:
    return cast("RepoDataRecord", RefusedRecord(**{"url": "https://host/channel/noarch/app-1-0.conda", **fields}))


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("failed to fetch app-1-0.conda\nCaused by: connection refused", DownloadFailed),
        ("failed to fetch app-1-0.conda\nCaused by: invalid zip archive", BrokenPackage),
        (f"failed to fetch app-1-0.conda\nhash mismatch of it, expected {'ab' * 32}, got {'cd' * 32}", HashMismatch),
        ("failed to link app-1-0.conda\nCaused by: no such file", BrokenPackage),
    ],
)
def test_each_failure_of_the_installer_has_its_error(text: str, kind: type[Exception]) -> None:
    error = installation_error(Exception(text), [refused_record()])
    assert type(error) is kind
    assert "app-1-0.conda" in error.what


def test_a_damaged_package_in_a_folder_is_not_a_failure_of_the_network(tmp_path: Path) -> None:
    file = tmp_path / "app-1-0.conda"
    file.write_text("half")
    error = installation_error(Exception("failed to fetch app-1-0.conda"), [refused_record(url=file.as_uri())])
    assert type(error) is BrokenPackage


def test_a_download_beyond_the_size_in_the_index_is_another_package_and_else_beyond_the_limit() -> None:
    assert type(too_large_package_error(refused_record(size=1000), 1000)) is HashMismatch
    error = too_large_package_error(refused_record(), 10**6)
    assert type(error) is LimitExceeded
    assert "KILN_LIMITS='package=2MB'" in error.hint


def test_a_message_lists_the_first_paths_and_counts_the_others() -> None:
    error = unsafe_package_error("app", [f"../{number}" for number in range(8)])
    assert "'../4' and 3 more" in error.why
    assert "../5" not in error.why
