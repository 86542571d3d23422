"""Mutated packages, records, indexes and addresses: whatever is wrong with them, kiln's own errors come of it.

Each command runs in this process, as the command line runs it, so a traceback is a failure here. The seeds are few;
``KILN_FUZZ=20`` runs twenty times as many.
"""

from __future__ import annotations

import contextlib
import json
import os
import random
import resource
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BrokenPackage, KilnError
from kiln.cli import main
from kiln.conda.index import read_index_entry
from kiln.publish import gate as publish_gate
from kiln.publish import rebuild
from kiln.publish.gate import refusal_reasons
from tests import broken_packages
from tests.broken_packages import address, bent, json_like
from tests.packages import release_package
from tests.publishing import put, seen
from tests.releases import candidate, release
from tests.solving import record

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path
    from typing import Any

pytestmark = pytest.mark.sampled

MORE = int(os.environ.get("KILN_FUZZ", "1"))
READ, FOLDERS, INSTALLED, VERIFIED, ADDRESSES, INDEXES = (number * MORE for number in (200, 4, 12, 60, 20, 12))
SECONDS = 5.0  # of processor time for one file; the slowest takes a tenth of that
MEGABYTES = 500
CODES = {0, *(kind.exit_code for kind in KilnError.__subclasses__())}
WANTED = publish_gate.forbidden_texts(("/built/here",), ())


@pytest.fixture(autouse=True)
def bounded() -> Iterator[None]:
    """See that nothing takes more memory than it may, whatever other tests took in this process before."""
    before = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    yield
    assert resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before < MEGABYTES * 1024


def kiln(*words: str) -> int:
    """Run a command in this process, and return its exit code, which is a documented one."""
    code = main.run(words)
    assert code in CODES, words
    return code


def empty_noarch(channel: Path) -> None:
    """Write the index of a subdir that has nothing."""
    (channel / "noarch").mkdir()
    (channel / "noarch/repodata.json").write_text('{"packages": {}, "packages.conda": {}}')


def gate(package: Path) -> None:
    """Judge a package as one that is to be published."""
    read = publish_gate.inspect_package(package, WANTED)
    told = candidate("app", index=read.index, about=read.about, paths=read.paths, escapes=read.escapes)
    assert all(str(reason) for reason in refusal_reasons(release(told)))


def test_readers_of_broken_packages_raise_kilns_own_errors(tmp_path: Path) -> None:
    sound = 0
    for seed in range(READ):
        name, data = broken_packages.package(random.Random(seed))
        package = tmp_path / name
        package.write_bytes(data)
        begin = time.process_time()
        for read in (
            read_index_entry,
            gate,
            lambda path: rebuild.described_differences(path, path),
        ):
            with contextlib.suppress(KilnError):
                read(package)
                sound += 1
        assert time.process_time() - begin < SECONDS, f"seed {seed}"
    assert 0 < sound < 3 * READ


def test_broken_packages_in_a_folder_keep_nothing_else_from_being_indexed(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    for seed in range(FOLDERS):
        dice = random.Random(seed)
        folder = tmp_path / str(seed)
        put(folder, ("kept", "app"))
        subdir = folder / "channel/linux-64"
        shutil.copy(release_package(folder / "built", "good"), subdir)
        for number in range(10):
            (subdir / f"app-{number}-0.conda").write_bytes(broken_packages.package(dice)[1])
        os.mkfifo(subdir / "pipe-1-0.conda")
        (subdir / "gone-1-0.conda").symlink_to("nowhere")
        (subdir / "folder-1-0.conda").mkdir()
        assert kiln("publish", "--to", str(folder / "channel"), "--reindex") == BrokenPackage.exit_code
        said = capsys.readouterr().err
        assert {"kept-1-0.conda", "good-1-0.conda"} <= seen(folder / "channel")
        offered = json.loads((subdir / "repodata.json").read_bytes())["packages.conda"]  # noarch has such an app
        for file in subdir.glob("*.conda"):
            assert (file.name in offered) != (str(file) in said or f"linux-64/{file.name}" in said), file.name


def test_installs_of_broken_packages_end_in_kilns_own_errors(tmp_path: Path) -> None:
    """The index has the hashes of the packages, so that none is refused for a hash."""
    ended = set()
    for seed in range(INSTALLED):
        folder = tmp_path / str(seed)
        name, data = broken_packages.package(random.Random(seed), bz2_too=True)
        (folder / "channel/linux-64").mkdir(parents=True)
        package = folder / "channel/linux-64" / name
        package.write_bytes(data)
        told = {key: value for key, value in record("app", "1").items() if key not in {"sha256", "md5"}}
        kind = "packages" if name.endswith(".bz2") else "packages.conda"
        index: dict[str, Any] = {"info": {"subdir": "linux-64"}, "packages": {}, "packages.conda": {}}
        index[kind] = {name: {**told, "size": len(data)}}
        (folder / "channel/linux-64/repodata.json").write_text(json.dumps(index))
        empty_noarch(folder / "channel")
        places = ("--prefix", str(folder / "prefix"), "--cache", str(folder / "cache"))
        code = kiln("install", "app", "--from", (folder / "channel").as_uri(), *places)
        ended.add(code)
        assert (folder / "prefix").exists() == (code == 0)
        assert {path.name for path in folder.iterdir()} <= {"channel", "cache", "prefix"}, "nothing else is written"
        assert not list((folder / "cache").glob(".*[!k]")), "nothing is left half-unpacked"
    assert len(ended) > 1


def test_broken_indexes_end_in_kilns_own_errors(tmp_path: Path) -> None:
    good = {"info": {"subdir": "linux-64"}, "packages": {}, "packages.conda": {"app-1-0.conda": record("app", "1")}}
    for seed in range(INDEXES):
        dice = random.Random(seed)
        folder = tmp_path / str(seed) / "linux-64"
        folder.mkdir(parents=True)
        data = json_like(good, dice) if dice.random() < 0.7 else bent(json.dumps(good).encode(), dice)
        (folder / "repodata.json").write_bytes(data)
        empty_noarch(folder.parent)
        places = ("--prefix", str(tmp_path / "prefix"), "--cache", str(tmp_path / "cache"))
        kiln("install", "app", "--from", folder.parent.as_uri(), *places)
        assert not (tmp_path / "prefix").exists()


def test_verifying_by_broken_statements_ends_in_kilns_own_errors(tmp_path: Path) -> None:
    put(tmp_path, ("kept",))
    package = tmp_path / "channel/linux-64/kept-1-0.conda"
    statement = tmp_path / "channel/provenance/linux-64/kept-1-0.conda.intoto.json"
    index = tmp_path / "channel/linux-64/repodata.json"
    good, told, whole = statement.read_bytes(), index.read_bytes(), package.read_bytes()
    for seed in range(VERIFIED):
        dice = random.Random(seed)
        bad = json_like(json.loads(good), dice) if dice.random() < 0.7 else bent(good, dice)
        statement.write_bytes(bad if seed % 3 == 0 else good)
        index.write_bytes(json_like(json.loads(told), dice) if seed % 3 == 1 else told)
        package.unlink()
        package.write_bytes(broken_packages.package(dice)[1] if seed % 3 == 2 else whole)
        kiln("verify", str(package))


def test_addresses_that_are_none_end_in_kilns_own_errors(tmp_path: Path) -> None:
    package = release_package(tmp_path, "app")
    places = ("--prefix", str(tmp_path / "prefix"), "--cache", str(tmp_path / "cache"))
    for seed in range(ADDRESSES):
        url = address("http://127.0.0.1:9/channel", random.Random(seed))
        assert kiln("verify", str(package), "--channel", url) != 0
        assert kiln("install", "app", "--from", url, *places) != 0
