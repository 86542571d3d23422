"""``kiln install`` from channels that mean harm or break off, and killed in the middle: its own error, nothing left."""

from __future__ import annotations

import contextlib
import fcntl
import functools
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
from http.server import SimpleHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import files, locks, process_table
from kiln.base.errors import (
    AlreadyRunning,
    BrokenIndex,
    DiskFull,
    DownloadFailed,
    HashMismatch,
    Interrupted,
    KilnError,
    LimitExceeded,
    ProvenanceBroken,
    UsageError,
)
from kiln.base.system.processes import is_process_running
from kiln.cli import main
from kiln.conda.channel import LocalChannel
from kiln.conda.install import InstallPlan, execute_install_plan
from kiln.conda.rattler.limits import Limits
from kiln.conda.rattler.worker import make_operation, unreachable_channel_error
from kiln.conda.solve import install, solve
from tests import waiting, warm
from tests.hostile_server import bomb, endless, endless_package, sending, serving, shards, silent, stuck
from tests.packages import conda_package, release_package
from tests.solving import record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.hostile_server import Handler

    Answer = Callable[[Handler], None]
    from collections.abc import Iterator

    from tests.hostile_server import HostileServer

ROOT = Path(__file__).parents[2]
EMPTY = sending(b'{"packages": {}, "packages.conda": {}}')


def command(folder: Path, *words: str) -> list[str]:
    """The words of ``kiln install`` into ``folder/prefix``, with a cache of its own."""
    places = ("--prefix", str(folder / "prefix"), "--cache", str(folder / "cache/pkgs"))
    return [sys.executable, "-m", "kiln", "install", *words, *places]


def environment(folder: Path, limits: str) -> dict[str, str]:
    """This environment, with limits, and the caches of indexes below ``folder``."""
    kept = {name: value for name, value in os.environ.items() if "CONDA" not in name}
    (folder / "tmp").mkdir(exist_ok=True)
    places = {"RATTLER_CACHE_DIR": str(folder / "cache"), "TMPDIR": str(folder / "tmp")}
    return {**kept, **places, "KILN_LIMITS": limits}


def limited_install(folder: Path, limits: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``kiln install`` under limits."""
    return warm.kiln(*command(folder, *words)[3:], env=environment(folder, limits))


def left(folder: Path) -> list[str]:
    """Return the files below a folder except a cache's empty notes: packages, indexes, half-written files."""
    notes = (".lock", ".cache", "-v1")
    result = [path for path in folder.rglob("*") if path.is_file() and not path.name.endswith(notes)]
    return [f"{path.relative_to(folder)} {path.stat().st_size}" for path in result]


def index(*records: dict[str, object]) -> bytes:
    """An index of these packages."""
    named = {f"{item['name']}-{item['version']}-{item['build']}.conda": item for item in records}
    return json.dumps({"info": {"subdir": "linux-64"}, "packages": {}, "packages.conda": named}).encode()


def pigeons(count: int) -> bytes:
    """An index of packages that each need one of too few places alone: no solver sees soon that this cannot be."""
    birds = [
        record(f"p{bird}", str(hole), constrains=[f"p{other} !={hole}" for other in range(count) if other != bird])
        for bird in range(count)
        for hole in range(1, count)
    ]
    return index(record("app", "1", depends=[f"p{bird}" for bird in range(count)]), *birds)


PACKAGE = {**record("app", "1"), "size": 1000}
SHARD = bomb(3000, b"\xde\xff\xff")
HARM: dict[str, tuple[Mapping[str, Answer], str, type[KilnError], str]] = {
    "a server that answers nothing": ({"repodata_shards.msgpack.zst": silent}, "stall=2", DownloadFailed, "127.0.0.1:"),
    "an index that stops in its middle": ({"repodata.json": stuck}, "stall=2", DownloadFailed, "127.0.0.1:"),
    "an endless index": ({"repodata.json": endless}, "index=50MB", LimitExceeded, "index=100MB"),
    "an index that unpacks to very much": (
        {"repodata.json.zst": sending(bomb(400))},
        "index=50MB",
        LimitExceeded,
        "larger than 50 MB",
    ),
    "a shard that unpacks to very much": (
        shards("app", SHARD, hashlib.sha256(SHARD).digest()),
        "memory=300MB",
        LimitExceeded,
        "300 MB of memory",
    ),
    "an index that keeps the solver busy": (
        {"/channel/linux-64/repodata.json": sending(pigeons(14))},
        "solve=4",
        LimitExceeded,
        "choosing packages takes longer than 4 s",
    ),
    "deep JSON": ({"repodata.json": sending(b"[" * 1_000_000)}, "", BrokenIndex, "cannot be read"),
    "a package that never comes": (
        {"/channel/linux-64/repodata.json": sending(index(PACKAGE)), "app-1-0.conda": silent},
        "stall=2",
        DownloadFailed,
        "127.0.0.1:",
    ),
    "a package that stops in its middle": (
        {"/channel/linux-64/repodata.json": sending(index(PACKAGE)), "app-1-0.conda": stuck},
        "stall=2",
        DownloadFailed,
        "127.0.0.1:",
    ),
    "an endless package": (
        {
            "/channel/linux-64/repodata.json": sending(index({**PACKAGE, "size": 10**7})),
            "app-1-0.conda": endless_package,
        },
        "",
        HashMismatch,
        "larger than the 10 MB",
    ),
    "a package larger than the disk": (
        {"/channel/linux-64/repodata.json": sending(index({**PACKAGE, "size": 10**16}))},
        "",
        DiskFull,
        "10000 TB",
    ),
    "an endless package of no known size": (
        {
            "/channel/linux-64/repodata.json": sending(
                index({key: value for key, value in PACKAGE.items() if key != "size"})
            ),
            "app-1-0.conda": endless_package,
        },
        "package=50MB",
        LimitExceeded,
        "larger than 50 MB",
    ),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", HARM)
def test_a_channel_that_means_harm_is_told_and_leaves_nothing(tmp_path: Path, name: str) -> None:
    answers, limits, error, words = HARM[name]
    with serving({"/channel/noarch/repodata.json": EMPTY, **answers}) as server:
        ended = limited_install(tmp_path, limits, "app", "--from", server.url)
    assert ended.returncode == error.exit_code, ended.stderr
    assert words in ended.stderr
    assert "try: " in ended.stderr
    assert "Traceback" not in ended.stderr
    assert not (tmp_path / "prefix").exists()
    assert left(tmp_path) == []


def channel(folder: Path, package: Path) -> str:
    """A channel of one package."""
    LocalChannel(root=folder / "channel").add([(package, "linux-64")])
    return (folder / "channel").as_uri()


@pytest.mark.sampled
@pytest.mark.parametrize(
    ("payload", "limits", "words"),
    [
        ({"share/zeros": bytes(200_000_000)}, "unpacked=50MB", "writes more than 50 MB"),
        ({f"share/{number}": b"" for number in range(20_000)}, "files=2000", "creates more than 2,000 files"),
    ],
    ids=["bytes", "files"],
)
def test_a_package_that_unpacks_to_more_than_it_may_is_told_and_leaves_nothing(
    tmp_path: Path, payload: dict[str, bytes], limits: str, words: str
) -> None:
    with tempfile.TemporaryDirectory() as apart:
        url = channel(Path(apart), release_package(Path(apart) / "built", "app", payload=payload))
        ended = limited_install(tmp_path, limits, "app", "--from", url)
    assert ended.returncode == LimitExceeded.exit_code, ended.stderr
    assert words in ended.stderr
    assert not (tmp_path / "prefix").exists()
    assert left(tmp_path) == []


def test_how_much_may_be_unpacked_follows_from_the_sizes_in_the_index() -> None:
    def room(*sizes: int | None) -> int | None:
        records = [{**PACKAGE, "fn": "app-1-0.conda", "url": "file:///app", "size": size} for size in sizes]
        arguments = {"records": records, "prefix": "/prefix", "cache": "/cache", "seen_at": None, "carried": False}
        limited_install = make_operation("install", arguments, Limits(), send=lambda _: None, stop=lambda _: None)
        return limited_install.watched_task.writes

    assert room(1000, 2000) == 4 * 10**9
    assert room(10**8, 10**8) == 100 * 2 * 10**8
    assert room(10**11) == Limits().unpacked
    assert room(1000, None) == Limits().unpacked


@pytest.mark.sampled
@pytest.mark.parametrize("stage", ["repodata.json", "app-1-0.conda"])
def test_ctrl_c_ends_an_install_that_waits_and_its_process(tmp_path: Path, stage: str) -> None:
    answers: dict[str, Answer] = {
        "/channel/noarch/repodata.json": EMPTY,
        "/channel/linux-64/repodata.json": sending(index(PACKAGE)),
    }
    answers |= {f"/channel/linux-64/{stage}": silent}
    heeding = (
        "import os, signal, sys; signal.signal(2, signal.default_int_handler); os.execv(sys.argv[1], sys.argv[1:])"
    )
    with serving(answers) as server:
        process = subprocess.Popen(
            (sys.executable, "-c", heeding, *command(tmp_path, "app", "--from", server.url)),
            cwd=ROOT,
            env=environment(tmp_path, ""),
            stderr=subprocess.PIPE,
            text=True,
        )
        waiting.until(lambda: any(path.endswith(stage) for path in server.requests), "the request", process)
        worker = process_table.child_pids(process.pid)
        process.send_signal(signal.SIGINT)
        _, said = process.communicate(timeout=waiting.CEILING)
    assert process.returncode == Interrupted.exit_code, said
    assert worker, "py-rattler runs in a process of its own"
    assert not [pid for pid in worker if Path(f"/proc/{pid}").exists()]
    assert not (tmp_path / "prefix").exists()
    assert left(tmp_path) == []


@pytest.mark.sampled
def test_the_process_ends_when_kiln_is_killed(tmp_path: Path) -> None:
    with serving({"repodata.json": silent}) as server:
        process = subprocess.Popen(command(tmp_path, "app", "--from", server.url), cwd=ROOT)
        waiting.until(lambda: server.requests, "the request", process)
        worker = process_table.child_pids(process.pid)
        process.kill()
        process.wait()
        assert worker
        waiting.until(lambda: not any(map(is_process_running, worker)), "its end")


@pytest.mark.parametrize("limits", ["solve", "solve=", "solve=-1", "solve=0", "speed=3", "memory=4XB", "solve=1e9"])
def test_a_limit_that_is_none_is_told(tmp_path: Path, limits: str) -> None:
    ended = limited_install(tmp_path, limits, "app")
    assert ended.returncode == UsageError.exit_code, ended.stderr
    assert ": write NAME=VALUE with a name of files, index, install, memory" in ended.stderr


@pytest.mark.sampled
def test_a_build_whose_channel_sends_nothing_ends_too(tmp_path: Path) -> None:
    """The engine of builds resolves and fetches by itself."""
    root = shutil.copytree(ROOT / "tests/fixtures/small-feedstock", tmp_path / "feedstock")
    config = min((root / ".ci_support").glob("*None*3.11.yaml"))
    meta = root / "recipe/meta.yaml"
    meta.write_text(meta.read_text().replace("      run:\n", "      host:\n        - app\n      run:\n"))
    with serving({"repodata_shards.msgpack.zst": silent, "repodata.json": silent}) as server:
        config.write_text(f"{config.read_text()}channel_sources:\n- {server.url}\n")
        words = ("-C", str(root), "build", config.stem, "--container", "none")
        ended = warm.kiln(*words, env=environment(tmp_path, "stall=10"))
    assert ended.returncode == DownloadFailed.exit_code, ended.stdout + ended.stderr
    assert "127.0.0.1 has sent nothing for 10 s" in ended.stderr


@pytest.mark.sampled
def test_waiting_for_the_cache_that_another_program_works_on_is_no_stall(tmp_path: Path) -> None:
    with tempfile.TemporaryDirectory() as apart:
        url = channel(Path(apart), release_package(Path(apart) / "built", "app"))
        (tmp_path / "cache/pkgs").mkdir(parents=True)
        with (tmp_path / "cache/pkgs/.cache.lock").open("w") as lock:
            fcntl.flock(lock, fcntl.LOCK_EX)
            process = subprocess.Popen(
                command(tmp_path, "app", "--from", url), cwd=ROOT, env=environment(tmp_path, "stall=1 install=6")
            )
            assert process.wait(timeout=waiting.CEILING) == LimitExceeded.exit_code, "its time is over, it is not idle"
        assert limited_install(tmp_path, "", "app", "--from", url).returncode == 0


VERIFIED: dict[str, tuple[Mapping[str, Answer], str, type[KilnError]]] = {
    "a body that is cut off": ({"app-1-0.conda.intoto.json": lambda handler: handler.begin(1000)}, "", DownloadFailed),
    "a server that answers nothing": ({"app-1-0.conda.intoto.json": silent}, "stall=2", DownloadFailed),
    "an endless file": ({"app-1-0.conda.intoto.json": endless}, "index=20MB", LimitExceeded),
    "a deep index": (
        {"app-1-0.conda.intoto.json": sending(b""), "repodata.json": sending(b"[" * 100_000)},
        "",
        BrokenIndex,
    ),
    "no records": ({}, "", ProvenanceBroken),
}


@pytest.mark.sampled
@pytest.mark.parametrize("name", VERIFIED)
def test_what_a_server_sends_of_records_is_read_within_bounds(tmp_path: Path, name: str) -> None:
    answers, limits, error = VERIFIED[name]
    package = release_package(tmp_path / "built", "app")
    with serving(answers) as server:
        ended = warm.kiln("verify", str(package), "--channel", server.url, env=environment(tmp_path, limits))
    assert ended.returncode == error.exit_code, ended.stderr
    assert "Traceback" not in ended.stderr


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


def install_words(place: Path, *specs: str, source: str) -> list[str]:
    """The arguments of an install."""
    return ["install", *specs, "--from", source, "--prefix", f"{place}/prefix", "--cache", f"{place.parent}/cache"]


@pytest.fixture(autouse=True)
def own_caches(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keep indexes apart from those of other servers at the same port."""
    monkeypatch.setenv("RATTLER_CACHE_DIR", str(tmp_path / "rattler"))


@contextlib.contextmanager
def stuck_install(server: HostileServer, place: Path) -> Iterator[subprocess.Popen[bytes]]:
    """Have an install of both packages that has made its part, and waits for the second package."""
    argv = [sys.executable, "-m", "kiln", *install_words(place, "library", "app", source=server.url)]
    with subprocess.Popen(argv, cwd=ROOT, stderr=subprocess.DEVNULL, stdout=subprocess.DEVNULL) as process:
        try:
            waiting.until(lambda: any(path.endswith("app-1-0.conda") for path in server.requests), "a request", process)
            waiting.until(lambda: files.part_files_beside(place / "prefix"), "a part", process)
            yield process
        finally:
            process.kill()


def worker_of(process: subprocess.Popen[bytes]) -> int:
    """The process that an install has started for py-rattler."""
    (child,) = process_table.child_pids(process.pid)
    return child


@pytest.mark.sampled
@pytest.mark.parametrize("exists", [False, True], ids=["new", "changed"])
def test_the_next_install_removes_what_a_killed_one_left(server: HostileServer, place: Path, exists: bool) -> None:
    if exists:
        assert main.run(install_words(place, "library", source=server.url)) == 0
    with stuck_install(server, place) as process:
        process.kill()
    assert files.part_files_beside(place / "prefix"), "there is something to remove"
    source = str(place.parent / "channel")
    assert main.run(install_words(place, "library", source=source)) == 0
    assert os.listdir(place) == ["prefix"]  # noqa: PTH208 - the names are compared


@pytest.mark.sampled
def test_what_was_left_is_removed_even_where_the_prefix_has_all_of_it(server: HostileServer, place: Path) -> None:
    """An install may be killed when its prefix is in place, and what was there before is not yet removed."""
    assert main.run(install_words(place, "library", source=server.url)) == 0
    for name in (".prefix.1-0123abcd.part", ".prefix.part.lock"):
        (place / name).touch()
    assert main.run([*install_words(place, "library", source=server.url), "--dry-run"]) == 0
    assert len(list(place.iterdir())) == 3, "a dry run changes nothing"
    assert main.run(install_words(place, "library", source=server.url)) == 0
    assert os.listdir(place) == ["prefix"]  # noqa: PTH208 - the names are compared


@pytest.mark.sampled
@pytest.mark.parametrize("exists", [False, True], ids=["new", "changed"])
def test_a_second_install_is_refused_and_keeps_what_the_first_makes(
    server: HostileServer, place: Path, capsys: pytest.CaptureFixture[str], exists: bool
) -> None:
    if exists:
        assert main.run(install_words(place, "library", source=server.url)) == 0
    source = str(place.parent / "channel")
    with stuck_install(server, place) as process:
        parts = files.part_files_beside(place / "prefix")
        beside = sorted(place.iterdir())
        assert main.run(install_words(place, "app", source=source)) == AlreadyRunning.exit_code
        assert f"process {process.pid} holds" in capsys.readouterr().err
        assert files.part_files_beside(place / "prefix") == parts
        assert sorted(place.iterdir()) == beside
        apart = ("--prefix", str(place / "other"), "--cache", str(place / "cache"))
        assert main.run([*install_words(place, "app", source=source), *apart]) == 0, "another prefix is not affected"


@pytest.mark.sampled
def test_what_a_process_of_a_killed_install_still_writes_is_kept(
    server: HostileServer, place: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with stuck_install(server, place) as process:
        worker = worker_of(process)
        os.kill(worker, signal.SIGSTOP)
        process.kill()
    try:
        with monkeypatch.context() as patch:
            patch.setattr(locks, "ENDING", 0.0)
            apart = ("--cache", str(place.parent / "another"))  # the stopped process holds the cache, too
            assert main.run([*install_words(place, "library", source=server.url), *apart]) == AlreadyRunning.exit_code
        assert files.part_files_beside(place / "prefix"), "its lock lasts as long as it may write"
    finally:
        os.kill(worker, signal.SIGCONT)
    assert main.run(install_words(place, "library", source=server.url)) == 0
    assert os.listdir(place) == ["prefix"]  # noqa: PTH208 - the names are compared


@pytest.mark.sampled
@pytest.mark.parametrize("exists", [False, True], ids=["new", "changed"])
def test_what_another_install_has_finished_since_the_packages_were_chosen_is_not_undone(
    server: HostileServer,
    place: Path,
    capsys: pytest.CaptureFixture[str],
    monkeypatch: pytest.MonkeyPatch,
    exists: bool,
) -> None:
    source = str(place.parent / "channel")
    if exists:
        assert main.run(install_words(place, "library", source=source)) == 0

    def execute_late(installation: InstallPlan, *, cache: Path, **_: object) -> None:
        warm.kiln(*install_words(place, "library", "app", source=source), check=True)
        execute_install_plan(installation, cache=cache)

    other = release_package(place.parent / "built", "other")
    LocalChannel(root=place.parent / "channel").add([(other, "linux-64")])
    monkeypatch.setattr("kiln.conda.install.execute_install_plan", execute_late)
    assert main.run(install_words(place, "other", source=source)) == AlreadyRunning.exit_code
    assert "since the packages were chosen" in capsys.readouterr().err
    assert (place / "prefix/share/app").exists()
    assert os.listdir(place) == ["prefix"]  # noqa: PTH208 - the names are compared


INDEX = {"name": "little", "version": "1", "build": "0", "build_number": 0, "depends": [], "subdir": "noarch"}


class Breaking(SimpleHTTPRequestHandler):
    """Serves an index whole, and of packages a few bytes of many."""

    def do_GET(self) -> None:
        if not self.path.endswith(".conda"):
            super().do_GET()
            return
        self.send_response(200)
        self.send_header("Content-Length", "100000")
        self.end_headers()
        self.wfile.write(b"PK")

    def log_message(self, *words: Any) -> None:
        """Say nothing."""


@pytest.fixture
def breaking(tmp_path: Path) -> Iterator[str]:
    channel = LocalChannel(root=tmp_path / "channel")
    package = conda_package(tmp_path / "little-1-0.conda", {"index.json": INDEX, "paths.json": {"paths": []}})
    channel.add([(package, "noarch")])
    handler = functools.partial(Breaking, directory=str(channel.root))
    with ThreadingHTTPServer(("127.0.0.1", 0), handler) as server:
        threading.Thread(target=server.serve_forever, daemon=True).start()
        yield f"http://127.0.0.1:{server.server_port}"
        server.shutdown()


def test_a_download_that_breaks_off_is_a_failure_of_the_network(breaking: str, tmp_path: Path) -> None:
    records = solve([breaking], ["little"], virtual_packages={})
    with pytest.raises(DownloadFailed, match=r"failed to fetch little-1-0\.conda") as caught:
        install(records, tmp_path / "prefix", cache=tmp_path / "cache")
    assert "end of file before message length reached" in caught.value.why


DNS = (
    "error sending request for url (https://conda.example.invalid/x/noarch/repodata_shards.msgpack.zst)\n"
    "Caused by: client error (Connect)\nCaused by: dns error\nCaused by: Name or service not known"
)


@pytest.mark.parametrize(
    ("channels", "why", "what", "reason"),
    [
        (
            ["file:///here", "https://conda.example.invalid/x"],
            DNS,
            "the channel https://conda.example.invalid/x cannot be reached",
            "conda.example.invalid: Name or service not known",
        ),
        (
            ["https://other.example/y", "https://another.example/z"],
            DNS,
            "a channel of https://other.example/y, https://another.example/z cannot be reached",
            "conda.example.invalid: Name or service not known",
        ),
        (["https://other.example/y"], "no words", "a channel of https://other.example/y cannot be reached", "no words"),
    ],
)
def test_an_unreachable_channel_is_named(channels: list[str], why: str, what: str, reason: str) -> None:
    error = unreachable_channel_error(channels, why)
    assert (error.what, error.why) == (what, reason)
