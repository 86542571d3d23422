"""``kiln install``: real packages into real prefixes, which are whole or as they were."""

from __future__ import annotations

import hashlib
import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest
import rattler.package_streaming

from kiln.base.errors import (
    BrokenIndex,
    BrokenPackage,
    DownloadFailed,
    HashMismatch,
    NotWritable,
    SolveFailed,
    UnsafePackage,
    UsageError,
)
from kiln.cli import main
from kiln.cli.install import target_machine_of_environment
from kiln.conda.channel import LocalChannel
from kiln.conda.install import InstallRequest, plan_install
from tests import warm
from tests.packages import hostile_package, release_package
from tests.small_disks import mounted
from tests.solving import record, rendered, stand_ins, write

if TYPE_CHECKING:
    from pathlib import Path


@pytest.fixture
def channel(tmp_path: Path) -> Path:
    """A channel of small packages: an app, its library in two versions, and one that needs a GPU."""
    built = tmp_path / "built"
    packages = [
        release_package(built, "library", "1"),
        release_package(built, "library", "2"),
        release_package(built, "app", "1", depends=["library"]),
        release_package(built, "other", "1", depends=["library <2"]),
    ]
    LocalChannel(root=tmp_path / "channel").add([(package, "linux-64") for package in packages])
    return tmp_path / "channel"


def kiln(folder: Path, *words: str) -> subprocess.CompletedProcess[str]:
    """Run ``kiln install`` into ``folder/prefix`` with a cache of its own."""
    more = ("--prefix", str(folder / "prefix"), "--cache", str(folder / "cache"))
    environment = {name: value for name, value in os.environ.items() if "CONDA" not in name}
    return warm.kiln("install", *words, *more, env=environment)


def quickly(folder: Path, *words: str) -> int:
    """Run the same in this process; returns the exit code."""
    return main.run(["install", *words, "--prefix", str(folder / "prefix"), "--cache", str(folder / "cache")])


def installed(folder: Path) -> set[str]:
    """Return the packages in the prefix, by its records."""
    return {path.stem for path in (folder / "prefix" / "conda-meta").glob("*.json")}


def state(folder: Path) -> dict[str, bytes]:
    """Every file of the prefix."""
    prefix = folder / "prefix"
    return {str(path.relative_to(prefix)): path.read_bytes() for path in prefix.rglob("*") if path.is_file()}


def test_a_new_prefix_is_made_and_the_table_lists_its_packages(channel: Path, tmp_path: Path) -> None:
    done = kiln(tmp_path, "app", "--from", str(channel))
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == {"app-1-0", "library-2-0"}
    assert (tmp_path / "prefix/share/app").read_bytes() == b"app"
    assert (tmp_path / "prefix/conda-meta/history").is_file(), "conda knows a prefix by it"
    lines = [line.split()[:4] for line in done.stdout.splitlines()]
    assert lines[:2] == [["+", "app", "1", "0"], ["+", "library", "2", "0"]]
    assert not list(tmp_path.glob(".*")), "no other files are left next to it"
    shown = subprocess.run(
        ["sh", "-c", f"{done.stdout.splitlines()[-1].partition('or')[2]}; echo $PATH"],
        env={"PATH": "/bin:/usr/bin"},
        text=True,
        capture_output=True,
        check=True,
    )
    assert shown.stdout == f"{tmp_path}/prefix/bin:/bin:/usr/bin\n"


def test_conda_has_short_options_for_the_prefix_and_the_channel(channel: Path, tmp_path: Path) -> None:
    place, cache = tmp_path / "a prefix", str(tmp_path / "cache")
    assert main.run(["install", "-p", str(place), "-c", str(channel), "--cache", cache, "app"]) == 0
    assert (place / "share/app").is_file()


def test_a_dry_run_has_the_same_json_and_writes_nothing(channel: Path, tmp_path: Path) -> None:
    done = kiln(tmp_path, "app", "--from", str(channel), "--dry-run", "--json")
    told = json.loads(done.stdout)
    assert [(item["action"], item["name"], item["version"]) for item in told["packages"]] == [
        ("new", "app", "1"),
        ("new", "library", "2"),
    ]
    assert not told["installed"]
    assert not (tmp_path / "prefix").exists()


def test_on_a_full_disk_a_prefix_stays_as_it_was(channel: Path, tmp_path: Path) -> None:
    disk = tmp_path / "disk"
    with mounted(disk, "400k"):
        words = (
            "install",
            "--from",
            str(channel),
            "--prefix",
            str(disk / "prefix"),
            "--cache",
            str(tmp_path / "cache"),
        )
        assert main.run([*words, "app"]) == 0
        before, codes = state(disk), []
        for free in range(1024, 100 * 1024, 4096):
            usage = shutil.disk_usage(disk)
            (disk / "ballast").write_bytes(bytes(max(0, usage.free - free)))
            codes.append(main.run([*words, "other"]))
            (disk / "ballast").unlink()
            if codes[-1] == 0:
                break
            assert state(disk) == before
        assert codes[-1] == 0
        assert len(codes) > 1
        assert installed(disk) == {"app-1-0", "library-1-0", "other-1-0"}
        assert all(json.loads(text) for name, text in state(disk).items() if name.endswith(".json"))


def test_a_prefix_is_updated_and_other_files_stay(channel: Path, tmp_path: Path) -> None:
    assert kiln(tmp_path, "app", "--from", str(channel)).returncode == 0
    mine = tmp_path / "prefix/share/mine"
    mine.write_text("my own")
    done = kiln(tmp_path, "other", "--from", str(channel))
    assert done.returncode == 0, done.stderr
    assert installed(tmp_path) == {"app-1-0", "library-1-0", "other-1-0"}, "app was asked for before, so it stays"
    assert "was 2 0" in done.stdout
    assert mine.read_text() == "my own"
    again = kiln(tmp_path, "other", "--from", str(channel))
    assert "is up to date" in again.stdout


@pytest.mark.parametrize("exists", [False, True])
@pytest.mark.parametrize("damage", ["garbage", "cut off", "a byte more", "another package"])
def test_a_package_that_differs_from_the_index_is_refused_and_the_prefix_stays(
    channel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], damage: str, *, exists: bool
) -> None:
    if exists:
        assert quickly(tmp_path, "app", "library <2", "--from", str(channel)) == 0
    before = state(tmp_path)
    package = channel / "linux-64/library-2-0.conda"
    good = package.read_bytes()
    other = (channel / "linux-64/library-1-0.conda").read_bytes()
    bad = {"garbage": b"not a package", "cut off": good[:-100], "a byte more": good + b" ", "another package": other}
    package.unlink()  # it has a second name where it was made
    package.write_bytes(bad[damage])
    code = quickly(tmp_path, "app", "library 2", "--from", str(channel))
    assert code == HashMismatch.exit_code
    told = capsys.readouterr().err
    assert f"library-2-0.conda from {channel.as_uri()}/ is not the package" in told
    for data in (good, bad[damage]):  # what has another size is not hashed
        assert hashlib.sha256(data).hexdigest() in told or f"{len(data)}" in told
    assert state(tmp_path) == before
    assert (tmp_path / "prefix").exists() == exists


def rewritten(channel: Path, without: set[str], **changed: object) -> Path:
    """Remove or change fields of each package in the channel's index; return one of the packages."""
    for packed in (channel / "linux-64").glob("repodata*"):
        if packed.name != "repodata.json":
            packed.unlink()
    place = channel / "linux-64/repodata.json"
    told = json.loads(place.read_text())
    for item in told["packages.conda"].values():
        item.update(changed)
        for key in without:
            item.pop(key, None)
    place.write_text(json.dumps(told))
    return channel / "linux-64/library-2-0.conda"


def test_where_an_index_has_md5_alone_packages_are_compared_by_that(
    channel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    rewritten(channel, {"sha256"})
    assert quickly(tmp_path, "app", "--from", str(channel)) == 0
    assert "an MD5 alone" in capsys.readouterr().err
    shutil.rmtree(tmp_path / "prefix")
    shutil.rmtree(tmp_path / "cache")
    rewritten(channel, {"sha256"}, md5="0" * 32)
    assert quickly(tmp_path, "app", "--from", str(channel)) == HashMismatch.exit_code
    assert f"the index has {'0' * 32}" in capsys.readouterr().err
    assert not (tmp_path / "prefix").exists()


def test_a_truncated_package_in_a_folder_is_reported_as_damaged(
    channel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    """Without a hash in the index, the connection to the channel is not blamed."""
    package = rewritten(channel, {"sha256", "md5", "size"})
    good = package.read_bytes()
    package.unlink()
    package.write_bytes(good[: len(good) // 2])
    assert quickly(tmp_path, "app", "--from", str(channel)) == BrokenPackage.exit_code
    assert "it is damaged" in capsys.readouterr().err


def test_a_package_that_was_renamed_and_indexed_so_is_refused(
    tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    package = release_package(tmp_path / "built", "library", "1")
    package = package.rename(package.with_name("library-2-0.conda"))
    data = package.read_bytes()
    indexed = record("library", "2") | {"sha256": hashlib.sha256(data).hexdigest(), "size": len(data)}
    place = write(tmp_path / "channel", [indexed])
    shutil.copy(package, place / "linux-64")
    code = quickly(tmp_path, "library", "--from", str(place))
    assert code == BrokenPackage.exit_code
    told = capsys.readouterr().err
    assert "its metadata says library 1 0, the channel's index library 2 0" in told
    assert not (tmp_path / "prefix").exists()


OUT = "../evil-1-0/share/evil"  # as seen from the cache, where rattler copies from, and from the prefix
HOSTILE: dict[str, tuple[tuple[str, ...], dict[str, str], str]] = {
    "up": ((OUT,), {}, OUT),
    "up after a name": ((f"share/../{OUT}",), {}, f"share/../{OUT}"),
    "absolute": (("/etc/kiln-was-here",), {}, "/etc/kiln-was-here"),
    "a history": (("conda-meta/history",), {}, "conda-meta/history"),
    "pins": (("conda-meta/pinned",), {}, "conda-meta/pinned"),
    "one path again and again": (("share/evil",) * 1000, {}, "share/evil, twice"),
    "a record": (("conda-meta/other-1-0.json",), {}, "conda-meta/other-1-0.json"),
    "an absolute link": (("share/evil",), {"link": "/etc/passwd"}, "link -> /etc/passwd"),
    "a link up": (("share/evil",), {"lib/link": "../../../etc"}, "lib/link -> ../../../etc"),
    "a link to itself": (("share/evil",), {"one": "two", "two": "one"}, "one -> two"),
    "a link by way of another": (
        ("share/evil",),
        {"a/b/top": "../..", "over": "a/b/top/.."},
        "over -> a/b/top/..",
    ),
}


@pytest.mark.parametrize("cached", [False, True], ids=["fetched", "cached"])
@pytest.mark.parametrize("name", HOSTILE)
def test_a_package_that_reaches_out_of_its_prefix_is_refused_before_anything_is_written(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], name: str, *, cached: bool
) -> None:
    """Also when another program has put it into the cache, where nobody looked."""
    paths, links, said = HOSTILE[name]
    package = hostile_package(tmp_path / "built", "evil", paths, links)
    place = tmp_path / "channel"
    LocalChannel(root=place).add([(package, "linux-64")])
    if cached and name != "absolute":  # with that one in the cache, rattler itself dies
        rattler.package_streaming.extract(package, tmp_path / "cache" / "evil-1-0")
    around = sorted(tmp_path.rglob("*"))
    code = quickly(tmp_path, "evil", "--from", str(place))
    assert code == UnsafePackage.exit_code
    told = capsys.readouterr().err
    assert f"evil-1-0.conda from {place.as_uri()}/ reaches out of the prefix" in told
    assert said in told
    left = [path for path in sorted(tmp_path.rglob("*")) if (tmp_path / "cache") not in (path, *path.parents)]
    assert left == [path for path in around if (tmp_path / "cache") not in (path, *path.parents)]
    assert not (tmp_path / "cache/evil-1-0").exists(), "it does not stay in the cache"


def test_two_packages_that_reach_out_together_are_refused(tmp_path: Path) -> None:
    """One has a link inside of the prefix, the other a link behind it, which by its own words stays inside, too."""
    built = tmp_path / "built"
    packages = [
        hostile_package(built, "one", ["share/one"], {"a/b/top": "../.."}),
        hostile_package(built, "two", ["share/two"], {"a/b/top/link": "../.."}, depends=["one"]),
    ]
    LocalChannel(root=tmp_path / "channel").add([(package, "linux-64") for package in packages])
    code = quickly(tmp_path, "two", "--from", str(tmp_path / "channel"))
    assert code == UnsafePackage.exit_code
    assert not (tmp_path / "prefix").exists()


def test_links_that_stay_inside_are_installed(tmp_path: Path) -> None:
    links = {
        "lib/a.so": "a.so.1",
        "lib/python/nvidia/cuda": "../../..",
        "lib64": "lib",
        "current": "share/../share/fine",
    }
    package = hostile_package(tmp_path / "built", "fine", ["share/fine"], links)
    LocalChannel(root=tmp_path / "channel").add([(package, "linux-64")])
    code = quickly(tmp_path, "fine", "--from", str(tmp_path / "channel"))
    assert code == 0
    assert {name: str((tmp_path / "prefix" / name).readlink()) for name in links} == links


def test_a_prefix_with_records_of_paths_outside_is_refused(channel: Path, tmp_path: Path) -> None:
    """With a package, the files that its record names are removed."""
    assert kiln(tmp_path, "app", "--from", str(channel)).returncode == 0
    letter = tmp_path / "letter"
    letter.write_text("dear")
    place = tmp_path / "prefix/conda-meta/library-2-0.json"
    told = json.loads(place.read_text())
    told["files"].append("../letter")
    told["paths_data"]["paths"].append({**told["paths_data"]["paths"][0], "_path": "../letter"})
    place.write_text(json.dumps(told))
    done = kiln(tmp_path, "library <2", "--from", str(channel))
    assert done.returncode == UnsafePackage.exit_code, done.stderr
    assert "'../letter'" in done.stderr
    assert letter.read_text() == "dear"


def test_a_folder_that_is_not_a_prefix_is_refused(channel: Path, tmp_path: Path) -> None:
    (tmp_path / "prefix").mkdir()
    (tmp_path / "prefix/letter").write_text("dear")
    done = kiln(tmp_path, "app", "--from", str(channel))
    assert done.returncode == NotWritable.exit_code
    assert state(tmp_path) == {"letter": b"dear"}


def test_a_missing_channel_is_reported(tmp_path: Path) -> None:
    done = kiln(tmp_path, "app", "--from", (tmp_path / "nowhere").as_uri())
    assert done.returncode == DownloadFailed.exit_code, done.stderr


@pytest.mark.parametrize("index", ["", "{", "[]", '{"packages": {}, "packages.conda": {"app-1-0.conda": {}}}'])
def test_an_invalid_index_is_reported(
    channel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], index: str
) -> None:
    (channel / "linux-64/repodata.json").write_text(index)
    for packed in (channel / "linux-64").glob("repodata*.zst"):
        packed.unlink()
    assert quickly(tmp_path, "app", "--from", str(channel)) == BrokenIndex.exit_code
    assert f"the index of a channel of {channel.as_uri()} cannot be read" in capsys.readouterr().err


@pytest.mark.parametrize("place", ["cache", "prefix"])
def test_a_place_below_a_file_cannot_be_written(
    channel: Path, tmp_path: Path, capsys: pytest.CaptureFixture[str], place: str
) -> None:
    (tmp_path / "file").write_text("")
    where = {"prefix": tmp_path / "prefix", "cache": tmp_path / "cache"} | {place: tmp_path / "file/below"}
    words = [word for name, path in where.items() for word in (f"--{name}", str(path))]
    assert main.run(["install", "app", "--from", str(channel), *words]) == NotWritable.exit_code
    assert "cannot be written" in capsys.readouterr().err


@pytest.fixture(scope="module")
def tensorflow(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """This feedstock's twelve configs as an index."""
    own = rendered()
    return write(tmp_path_factory.mktemp("tensorflow"), [*own, *stand_ins(own)])


def refusal(tensorflow: Path, folder: Path, *specs: str, cuda: str) -> str:
    """Return the error for specs that a machine cannot have."""
    asked = InstallRequest(
        prefix=folder / "prefix",
        specs=specs,
        channels=(tensorflow.as_uri(),),
        machine=target_machine_of_environment({"CONDA_OVERRIDE_CUDA": cuda}),
    )
    with pytest.raises(SolveFailed) as refused:
        plan_install(asked)
    assert "the solver says\n    | Cannot solve the request" in refused.value.why
    assert not (folder / "prefix").exists()
    return str(refused.value)


@pytest.mark.parametrize("cuda", ["", "11.8"])
def test_without_a_new_enough_driver_the_one_that_is_needed_is_named(
    tensorflow: Path, tmp_path: Path, cuda: str
) -> None:
    told = refusal(tensorflow, tmp_path, "tensorflow-gpu", cuda=cuda)
    assert "tensorflow-gpu cannot run here: this needs an NVIDIA driver 525.60.13 or newer, for CUDA 12.0" in told
    assert f"CONDA_OVERRIDE_CUDA says that this machine has {'CUDA 11.8' if cuda else 'no driver'}" in told
    assert "request tensorflow-cpu, which needs no GPU" in told
    assert "on a login node" in told


@pytest.mark.parametrize("cuda", ["", "11.8", "12.9"])
def test_the_cpu_and_gpu_builds_together_are_refused_by_name(tensorflow: Path, tmp_path: Path, cuda: str) -> None:
    told = refusal(tensorflow, tmp_path, "tensorflow-gpu", "tensorflow-cpu", cuda=cuda)
    assert "tensorflow-gpu and tensorflow-cpu exclude each other, on any machine" in told
    assert "tensorflow alone selects the build for the machine" in told


@pytest.mark.parametrize(
    ("spec", "build"),
    [("small=1.2=cpu*", "cpu_0"), ("small[build=cuda*]", "cuda_0"), ("small 1.2 cpu_0", "cpu_0"), ("small", "cuda_0")],
)
def test_the_command_line_takes_any_form_of_a_spec(
    spec: str, build: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    builds = [
        release_package(tmp_path, "small", "1.2", f"{name}_0", build_number=n) for n, name in enumerate(("cpu", "cuda"))
    ]
    channel = LocalChannel(root=tmp_path / "channel")
    channel.add([(package, "linux-64") for package in builds])
    assert quickly(tmp_path, spec, "--from", channel.url, "--dry-run", "--json") == 0
    assert [package["build"] for package in json.loads(capsys.readouterr().out)["packages"]] == [build]


@pytest.mark.parametrize("spec", ["app >>1", "small >=1,,<2"])
def test_an_invalid_spec_is_reported_before_a_channel_is_read(
    tmp_path: Path, capsys: pytest.CaptureFixture[str], spec: str
) -> None:
    assert quickly(tmp_path, spec, "--from", "https://nowhere.invalid/c") == UsageError.exit_code
    assert f"{spec!r} is not a match spec" in capsys.readouterr().err


def test_an_invalid_override_is_reported(tensorflow: Path, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="CONDA_OVERRIDE_CUDA='twelve' is not a version"):
        refusal(tensorflow, tmp_path, "tensorflow", cuda="twelve")
