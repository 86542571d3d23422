"""``kiln install`` from channels that mean harm: it ends in kiln's own error within its limits, and leaves nothing."""

from __future__ import annotations

import fcntl
import hashlib
import json
import os
import shutil
import signal
import subprocess
import sys
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import (
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
from kiln.conda.channel import LocalChannel
from kiln.conda.rattler.limits import Limits
from kiln.conda.rattler.worker import make_operation
from tests import waiting
from tests.hostile_server import bomb, endless, endless_package, sending, serving, shards, silent, stuck
from tests.packages import release_package
from tests.solving import record

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping

    from tests.hostile_server import Handler

    Answer = Callable[[Handler], None]

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


def install(folder: Path, limits: str, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``kiln install`` under limits."""
    return subprocess.run(
        command(folder, *words),
        cwd=ROOT,
        env=environment(folder, limits),
        text=True,
        capture_output=True,
        check=False,
        timeout=waiting.CEILING,
    )


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
        ended = install(tmp_path, limits, "app", "--from", server.url)
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
        ended = install(tmp_path, limits, "app", "--from", url)
    assert ended.returncode == LimitExceeded.exit_code, ended.stderr
    assert words in ended.stderr
    assert not (tmp_path / "prefix").exists()
    assert left(tmp_path) == []


def test_how_much_may_be_unpacked_follows_from_the_sizes_in_the_index() -> None:
    def room(*sizes: int | None) -> int | None:
        records = [{**PACKAGE, "fn": "app-1-0.conda", "url": "file:///app", "size": size} for size in sizes]
        arguments = {"records": records, "prefix": "/prefix", "cache": "/cache", "seen_at": None, "carried": False}
        install = make_operation("install", arguments, Limits(), send=lambda _: None, stop=lambda _: None)
        return install.watched_task.writes

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
        worker = children(process.pid)
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
        worker = children(process.pid)
        process.kill()
        process.wait()
        assert worker
        waiting.until(lambda: not any(map(running, worker)), "its end")


def children(pid: int) -> list[int]:
    """The processes that a process has started."""
    return [int(word) for word in Path(f"/proc/{pid}/task/{pid}/children").read_text().split()]


def running(pid: int) -> bool:
    """Return whether a process runs, and is not a zombie."""
    try:
        return ") Z" not in Path(f"/proc/{pid}/stat").read_text()
    except (FileNotFoundError, ProcessLookupError):
        return False


@pytest.mark.parametrize("limits", ["solve", "solve=", "solve=-1", "solve=0", "speed=3", "memory=4XB", "solve=1e9"])
def test_a_limit_that_is_none_is_told(tmp_path: Path, limits: str) -> None:
    ended = install(tmp_path, limits, "app")
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
        ended = subprocess.run(
            (sys.executable, "-m", "kiln", "-C", str(root), "build", config.stem, "--container", "none"),
            cwd=ROOT,
            env=environment(tmp_path, "stall=10"),
            text=True,
            capture_output=True,
            check=False,
            timeout=waiting.CEILING,
        )
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
        assert install(tmp_path, "", "app", "--from", url).returncode == 0


VERIFIED: dict[str, tuple[Mapping[str, Answer], str, type[KilnError]]] = {
    "a body that is cut off": ({"chain.jsonl": lambda handler: handler.begin(1000)}, "", DownloadFailed),
    "a server that answers nothing": ({"chain.jsonl": silent}, "stall=2", DownloadFailed),
    "an endless file": ({"chain.jsonl": endless}, "index=20MB", LimitExceeded),
    "a deep index": (
        {"chain.jsonl": sending(b""), "repodata.json": sending(b"[" * 100_000)},
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
        ended = subprocess.run(
            (sys.executable, "-m", "kiln", "verify", str(package), "--channel", server.url),
            cwd=ROOT,
            env=environment(tmp_path, limits),
            text=True,
            capture_output=True,
            check=False,
            timeout=waiting.CEILING,
        )
    assert ended.returncode == error.exit_code, ended.stderr
    assert "Traceback" not in ended.stderr
