"""``kiln install`` killed in the middle: the next one sweeps. A running one is left alone."""

from __future__ import annotations

import contextlib
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base import files, locks
from kiln.base.errors import AlreadyRunning
from kiln.cli import main
from kiln.conda import install
from kiln.conda.channel import LocalChannel
from tests import waiting
from tests.hostile_server import sending, serving, silent
from tests.packages import release_package

if TYPE_CHECKING:
    from collections.abc import Iterator

    from tests.hostile_server import HostileServer

pytestmark = pytest.mark.sampled


ROOT = Path(__file__).parents[2]


@pytest.fixture
def server(tmp_path: Path) -> Iterator[HostileServer]:
    """A channel on a server that has ``library``, and answers nothing when it is asked for ``app``."""
    packages = [release_package(tmp_path / "built", "library"), release_package(tmp_path / "built", "app")]
    channel = LocalChannel(root=tmp_path / "channel")
    channel.add([(package, "linux-64") for package in packages])
    answers = {
        f"/channel/{subdir}/repodata.json": sending((channel.root / subdir / "repodata.json").read_bytes())
        for subdir in ("linux-64", "noarch")
    }
    answers |= {package.name: sending(package.read_bytes()) for package in packages}
    with serving(answers | {"app-1-0.conda": silent}) as server:
        yield server


@pytest.fixture
def place(tmp_path: Path) -> Path:
    """A folder for prefixes."""
    (tmp_path / "place").mkdir()
    return tmp_path / "place"


def words(place: Path, *specs: str, source: str) -> list[str]:
    """The arguments of an install."""
    return ["install", *specs, "--from", source, "--prefix", f"{place}/prefix", "--cache", f"{place.parent}/cache"]


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep indexes apart from those of other servers at the same port."""
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "rattler"))


@contextlib.contextmanager
def stuck(server: HostileServer, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Have an install of both packages that has made its part, and waits for the second package."""
    argv = [sys.executable, "-m", "kiln", *words(place, "library", "app", source=server.url)]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            waiting.until(lambda: any(path.endswith("app-1-0.conda") for path in server.requests), "a request", process)
            waiting.until(lambda: files.part_files_beside(place / "prefix"), "a part", process)
            yield process
        finally:
            process.kill()


def worker_of(process: subprocess.Popen[bytes]) -> int:
    """The process that an install has started for py-rattler."""
    (child,) = Path(f"/proc/{process.pid}/task/{process.pid}/children").read_text().split()
    return int(child)


@pytest.mark.parametrize("exists", [False, True], ids=["new", "changed"])
def test_the_next_install_removes_what_a_killed_one_left(server: HostileServer, place: Path, exists: bool) -> None:
    if exists:
        assert main.run(words(place, "library", source=server.url)) == 0
    with stuck(server, place) as process:
        process.kill()
    assert files.part_files_beside(place / "prefix"), "there is something to remove"
    source = str(place.parent / "channel")
    assert main.run(words(place, "library", source=source)) == 0
    assert os.listdir(place) == ["prefix"]  # noqa: PTH208 - the names are compared


def test_what_was_left_is_removed_even_where_the_prefix_has_all_of_it(server: HostileServer, place: Path) -> None:
    """An install may be killed when its prefix is in place, and what was there before is not yet removed."""
    assert main.run(words(place, "library", source=server.url)) == 0
    for name in (".prefix.1-0123abcd.part", ".prefix.part.lock"):
        (place / name).touch()
    assert main.run([*words(place, "library", source=server.url), "--dry-run"]) == 0
    assert len(list(place.iterdir())) == 3, "a dry run changes nothing"
    assert main.run(words(place, "library", source=server.url)) == 0
    assert os.listdir(place) == ["prefix"]  # noqa: PTH208 - the names are compared


@pytest.mark.parametrize("exists", [False, True], ids=["new", "changed"])
def test_a_second_install_is_refused_and_keeps_what_the_first_makes(
    server: HostileServer, place: Path, capsys: pytest.CaptureFixture[str], exists: bool
) -> None:
    if exists:
        assert main.run(words(place, "library", source=server.url)) == 0
    source = str(place.parent / "channel")
    with stuck(server, place) as process:
        parts = files.part_files_beside(place / "prefix")
        beside = sorted(place.iterdir())
        assert main.run(words(place, "app", source=source)) == AlreadyRunning.exit_code
        assert f"process {process.pid} holds" in capsys.readouterr().err
        assert files.part_files_beside(place / "prefix") == parts
        assert sorted(place.iterdir()) == beside
        apart = ("--prefix", str(place / "other"), "--cache", str(place / "cache"))
        assert main.run([*words(place, "app", source=source), *apart]) == 0, "another prefix is not affected"


def test_what_a_process_of_a_killed_install_still_writes_is_kept(
    server: HostileServer, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stuck(server, place) as process:
        worker = worker_of(process)
        os.kill(worker, signal.SIGSTOP)
        process.kill()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(locks, "ENDING", 0.0)
            apart = ("--cache", str(place.parent / "another"))  # the stopped process holds the cache, too
            assert main.run([*words(place, "library", source=server.url), *apart]) == AlreadyRunning.exit_code
        assert files.part_files_beside(place / "prefix"), "its lock lasts as long as it may write"
    finally:
        os.kill(worker, signal.SIGCONT)
    assert main.run(words(place, "library", source=server.url)) == 0
    assert os.listdir(place) == ["prefix"]  # noqa: PTH208 - the names are compared


@pytest.mark.parametrize("exists", [False, True], ids=["new", "changed"])
def test_what_another_install_has_finished_since_the_packages_were_chosen_is_not_undone(
    server: HostileServer,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    exists: bool,
) -> None:
    source, real = str(place.parent / "channel"), install.execute_install_plan
    if exists:
        assert main.run(words(place, "library", source=source)) == 0

    def execute_late(installation: install.InstallPlan, *, cache: Path) -> None:
        argv = [sys.executable, "-m", "kiln", *words(place, "library", "app", source=source)]
        subprocess.run(argv, cwd=ROOT, check=True, capture_output=True)
        real(installation, cache=cache)

    other = release_package(place.parent / "built", "other")
    LocalChannel(root=place.parent / "channel").add([(other, "linux-64")])
    monkeypatch.setattr(install, "execute_install_plan", execute_late)
    assert main.run(words(place, "other", source=source)) == AlreadyRunning.exit_code
    assert "since the packages were chosen" in capsys.readouterr().err
    assert (place / "prefix/share/app").exists()
    assert os.listdir(place) == ["prefix"]  # noqa: PTH208 - the names are compared
