"""Wheels are used with the hash of the lock, or not at all."""

from __future__ import annotations

import hashlib
import os
import queue
import re
import sys
import threading
from dataclasses import replace
from pathlib import Path

import pytest
from packaging.utils import parse_wheel_filename

from kiln.base import files, process
from kiln.base.errors import DiskFull, DownloadFailed, HashMismatch, UnsupportedPython, VariantFault
from kiln.build.rehearsal import wheel_download
from kiln.build.rehearsal.wheel_download import (
    LOCKS,
    PYTHONS,
    cuda_versions,
    known_upstream_wheel_gaps,
    other_platforms,
    plan_from_locks,
    read_lock,
    upstream_wheel_gaps,
)
from kiln.build.rehearsal.wheels import LockedWheel
from kiln.conda import pypi
from kiln.recipe import feedstock


def locked(name: str, content: bytes = b"content", platform: str = "any") -> LockedWheel:
    return LockedWheel(
        name=name,
        version="1.0",
        file=f"{name}-1.0-py3-none-{platform}.whl",
        size=len(content),
        sha256=hashlib.sha256(content).hexdigest(),
        pythons=("3.11", "3.12"),
    )


ONE = locked("one")


class Pip:
    """Stands where processes start: writes what the test says pip brings, and notes how it was called."""

    def __init__(self, brings: dict[str, bytes], *, exit_code: int = 0, says: str = "") -> None:
        self.brings, self.exit_code, self.says = brings, exit_code, says
        self.calls: list[tuple[tuple[str, ...], dict[str, str]]] = []

    def __call__(self, argv: tuple[str, ...], *, env: dict[str, str], **_: object) -> process.ProcessResult:
        self.calls.append((argv, env))
        folder = Path(argv[argv.index("--dest") + 1])
        for name, data in self.brings.items():
            (folder / name).write_bytes(data)
        return process.ProcessResult(argv=argv, exit_code=self.exit_code, tail=self.says, seconds=0.1)


def put(monkeypatch: pytest.MonkeyPatch, pip: Pip) -> Pip:
    monkeypatch.setattr(process, "run", pip)
    return pip


def test_pip_is_asked_for_the_exact_files_of_another_python() -> None:
    expected = [locked("one"), locked("two", platform="manylinux2014_x86_64.manylinux_2_17_x86_64")]
    assert wheel_download.download_command(expected, Path("/r.txt"), Path("/d")) == (
        *(sys.executable, "-m", "pip", "download", "--no-input", "--disable-pip-version-check", "--progress-bar=off"),
        *("--no-deps", "--only-binary=:all:", "--require-hashes", "--retries=3"),
        *("--python-version=3.11", "--implementation=cp", "--abi=cp311", "--abi=abi3", "--abi=none"),
        *("--platform=manylinux2014_x86_64", "--platform=manylinux_2_17_x86_64"),
        *("--dest", "/d", "--requirement", "/r.txt"),
    )


def test_only_what_is_missing_is_fetched(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    two = locked("two")
    (tmp_path / ONE.file).write_bytes(b"content")
    pip = put(monkeypatch, Pip({two.file: b"content"}))
    assert wheel_download.missing_wheels([ONE, two], tmp_path) == (two,)
    result = wheel_download.fetch_wheels([ONE, two], tmp_path, env={"PIP_INDEX_URL": "x"})
    assert result == (tmp_path / ONE.file, tmp_path / two.file)
    assert all(path.read_bytes() == b"content" for path in result)
    ((_, env),) = pip.calls
    assert env["PIP_INDEX_URL"] == "x"
    assert Path(env["TMPDIR"]).parent == tmp_path


def test_nothing_is_started_and_nothing_read_again_when_all_is_there(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    put(monkeypatch, Pip({ONE.file: b"content"}))
    wheel_download.fetch_wheels([ONE], tmp_path, env={})
    pip = put(monkeypatch, Pip({}))
    monkeypatch.setattr(files, "sha256", lambda path: pytest.fail(f"{path} was read again"))
    wheel_download.fetch_wheels([ONE], tmp_path, env={})
    assert pip.calls == []


def test_a_fetched_file_with_another_hash_is_never_kept(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, Pip({ONE.file: b"another"}))
    with pytest.raises(HashMismatch, match=ONE.file) as caught:
        wheel_download.fetch_wheels([ONE], tmp_path, env={})
    assert ONE.sha256 in str(caught.value)
    assert hashlib.sha256(b"another").hexdigest() in str(caught.value)
    assert [path.name for path in tmp_path.iterdir()] == []


def test_a_file_that_was_changed_is_found_out_and_removed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, Pip({ONE.file: b"content"}))
    (path,) = wheel_download.fetch_wheels([ONE], tmp_path, env={})
    path.write_bytes(b"CONTENT")
    os.utime(path, ns=(0, 0))
    with pytest.raises(HashMismatch, match=ONE.file):
        wheel_download.fetch_wheels([ONE], tmp_path, env={})
    assert not path.exists()
    assert wheel_download.fetch_wheels([ONE], tmp_path, env={}) == (path,)


def test_damaged_notes_of_what_was_verified_only_cost_time(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, Pip({ONE.file: b"content"}))
    wheel_download.fetch_wheels([ONE], tmp_path, env={})
    for damage in ("{", "[]", '{"one": 1}'):
        (tmp_path / ".verified.json").write_text(damage)
        assert wheel_download.fetch_wheels([ONE], tmp_path, env={}) == (tmp_path / ONE.file,)


def test_what_a_killed_run_left_is_removed_before_the_space_is_checked(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    found: list[list[Path]] = []
    monkeypatch.setattr(
        "kiln.base.files.require_disk_space", lambda store, *_, **__: found.append([*store.rglob("*.whl")])
    )
    (tmp_path / ".fetch-killed").mkdir()
    (tmp_path / ".fetch-killed" / ONE.file).write_bytes(b"half")
    put(monkeypatch, Pip({ONE.file: b"content"}))
    wheel_download.fetch_wheels([ONE], tmp_path, env={})
    assert found == [[]]
    assert sorted(path.name for path in tmp_path.iterdir()) == [".verified.json", ONE.file]


def test_pips_own_refusal_names_the_file_and_both_hashes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    says = (
        "Collecting one==1.0\n"
        "ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. If you have updated the package\n"
        "    one==1.0 from file:///x/one-1.0.whl#sha256=bb (from -r requirements.txt (line 1)):\n"
        f"        Expected sha256 {ONE.sha256}\n"
        f"             Got        {'b' * 64}\n"
    )
    put(monkeypatch, Pip({}, exit_code=1, says=says))
    with pytest.raises(HashMismatch, match=ONE.file) as caught:
        wheel_download.fetch_wheels([ONE], tmp_path, env={})
    assert ONE.sha256 in caught.value.why
    assert "b" * 64 in caught.value.why


@pytest.mark.parametrize(
    ("says", "why"),
    [
        ("ERROR: No matching distribution found for one==1.0\n", "No matching distribution found"),
        (
            "WARNING: Retrying (2) after connection broken by 'NewConnectionError(\"refused\")': /one/\nERROR: None\n",
            'NewConnectionError("refused")',
        ),
        ("Traceback\n  deep\nValueError: odd\n", "ValueError: odd"),
        ("ERROR: [Errno 28] No space left on device", ""),
        ("", ""),
    ],
)
def test_what_pip_says_last_is_the_reason(says: str, why: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    put(monkeypatch, Pip({}, exit_code=1 if says else 0, says=says))
    error = DiskFull if "Errno 28" in says else DownloadFailed
    match = "while fetching" if error is DiskFull else "pip could not fetch" if says else "pip did not download one"
    with pytest.raises(error, match=match) as caught:
        wheel_download.fetch_wheels([locked("one")], tmp_path, env={})
    assert why in caught.value.why


def test_the_progress_of_a_download_is_reported_with_sizes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    big, small = locked("big", b"x" * 4_000_000), locked("small", b"y" * 1_000_000)
    reports: queue.Queue[tuple[int, int]] = queue.Queue()
    received: list[tuple[int, int]] = []

    class SlowPip(Pip):
        """Downloads half of the big wheel, as pip does to a folder of its own, and waits until that is reported."""

        def __call__(self, argv: tuple[str, ...], *, env: dict[str, str], **more: object) -> process.ProcessResult:
            part = Path(env["TMPDIR"], "pip-unpack-1", big.file)
            part.parent.mkdir()
            half = tmp_path / "half"
            half.write_bytes(b"x" * 2_000_000)
            half.replace(part)  # a report between two writes would count less
            received.extend(reports.get(timeout=60) for _ in range(2))
            return super().__call__(argv, env=env, **more)

    put(monkeypatch, SlowPip({big.file: b"x" * 4_000_000, small.file: b"y" * 1_000_000}))
    monkeypatch.setattr(wheel_download, "_REPORTS", 0.01)
    wheel_download.fetch_wheels(
        [big, small], tmp_path, env={}, on_received=lambda done, total: reports.put((done, total))
    )
    assert received == [(0, 5_000_000), (2_000_000, 5_000_000)]
    assert reports.queue[-1] == (5_000_000, 5_000_000)
    assert not [thread for thread in threading.enumerate() if thread.name == "download progress"]


def test_a_wheel_that_pip_has_moved_counts_once(tmp_path: Path) -> None:
    wheel = locked("a", b"1234")
    (tmp_path / "unpack").mkdir()
    for place in (tmp_path, tmp_path / "unpack"):
        (place / wheel.file).write_bytes(b"1234")
        (place / "another.whl").write_bytes(b"12345678")
    assert wheel_download.received_size([wheel], tmp_path) == 4


def test_two_versions_of_a_project_are_downloaded_one_after_the_other(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    one, two = locked("one", b"1"), locked("two", b"2")
    other = replace(locked("other", b"3"), name="one", version="9")
    batches = []

    def pip(wheels: tuple[LockedWheel, ...], folder: Path, **_: object) -> None:
        batches.append([wheel.file for wheel in wheels])
        for wheel in wheels:
            (folder / wheel.file).write_bytes({ONE.file: b"1", two.file: b"2", other.file: b"3"}[wheel.file])

    monkeypatch.setattr(wheel_download, "_download_wheels", pip)
    assert [path.is_file() for path in wheel_download.fetch_wheels([one, two, other], tmp_path / "s", env={})] == [
        True,
        True,
        True,
    ]
    assert batches == [[ONE.file, two.file], [other.file]]


ALL = ["cpu", *sorted(other_platforms() - {"linux-64"}), *(f"cuda{version}" for version in cuda_versions())]


ROOT = Path(__file__).parents[4]


def versions(wheels: tuple[LockedWheel, ...]) -> dict[str, str]:
    return {wheel.name: wheel.version for wheel in wheels}


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize("cuda", [None, "12.5", "12.9"])
def test_each_config_has_upstreams_wheel_and_each_package_once(python: str, cuda: str | None) -> None:
    planned = plan_from_locks(python=python, cuda=cuda)
    assert planned.upstream is not None
    assert planned.upstream.name == ("tensorflow" if cuda else "tensorflow-cpu")
    assert planned.upstream.version == "2.21.0"
    assert f"cp{python.replace('.', '')}" in planned.upstream.file
    assert len(versions(planned.wheels)) == len(planned.wheels)
    assert {"numpy", "keras", "pip", "setuptools"} <= versions(planned.dependencies).keys()
    assert ("nvidia-cudnn-cu12" in versions(planned.dependencies)) == (cuda is not None)


@pytest.mark.parametrize("cuda", ["12.5", "12.9"])
def test_the_libraries_are_those_of_the_configs_cuda(cuda: str) -> None:
    result = versions(plan_from_locks(python="3.11", cuda=cuda).wheels)
    coupled = ("cublas", "cuda-cupti", "cuda-nvcc", "cuda-nvrtc", "cuda-runtime", "nvjitlink")
    assert all(result[f"nvidia-{name}-cu12"].startswith(f"{cuda}.") for name in coupled)


@pytest.mark.parametrize("python", PYTHONS)
def test_configs_of_one_python_share_their_python_packages(python: str) -> None:
    cpu, *others = (versions(plan_from_locks(python=python, cuda=cuda).dependencies) for cuda in (None, "12.5", "12.9"))
    for other in others:
        assert {name: version for name, version in other.items() if not name.startswith("nvidia-")} == cpu


@pytest.mark.parametrize("lock", ALL)
def test_each_row_is_a_wheel_of_its_package(lock: str) -> None:
    for wheel in read_lock(lock):
        name, version, _, _ = parse_wheel_filename(wheel.file)
        assert (name, str(version)) == (wheel.name, wheel.version)
        assert re.fullmatch(r"[0-9a-f]{64}", wheel.sha256)
        assert wheel.size > 0
        assert set(wheel.pythons) <= set(PYTHONS)
        assert wheel.name in pypi.name_mappings(), "its name in conda is known"
    assert "://" not in (LOCKS / f"{lock}.json").read_text()


@pytest.mark.parametrize("python", PYTHONS)
@pytest.mark.parametrize(
    ("subdir", "tag", "ends"),
    [
        ("linux-aarch64", "manylinux_2_27_aarch64", ("aarch64.whl",)),
        ("osx-arm64", "macosx_12_0_arm64", ("_arm64.whl", "_universal2.whl")),
    ],
)
def test_another_platform_has_wheels_of_its_own_in_the_same_versions(
    subdir: str, tag: str, ends: tuple[str, ...], python: str
) -> None:
    planned, cpu = plan_from_locks(python=python, subdir=subdir), plan_from_locks(python=python)
    assert planned.upstream is not None
    assert re.fullmatch(rf"tensorflow-2\.21\.0-cp3\d+-cp3\d+-{tag}\.whl", planned.upstream.file)
    assert versions(planned.dependencies) == versions(cpu.dependencies)
    assert all(wheel.file.endswith((*ends, "-any.whl")) for wheel in planned.wheels)
    assert (planned.packaged_python, cpu.packaged_python) == ("", python)
    assert planned.notes == (f"a rehearsal has no Python for {subdir}: its packages are not tested",)
    assert dict(planned.summary)["python"] == f"{python}, a package without files"
    with pytest.raises(VariantFault, match=rf"no wheels for CUDA 12\.9 on {subdir}"):
        plan_from_locks(python=python, cuda="12.9", subdir=subdir)


def test_an_unknown_python_or_cuda_is_refused_with_what_there_is() -> None:
    with pytest.raises(UnsupportedPython, match=r"no wheels for Python 3\.9") as python:
        plan_from_locks(python="3.9")
    assert "use Python 3.10, 3.11, 3.12 or 3.13" in str(python.value)
    with pytest.raises(VariantFault, match=r"no wheels for CUDA 11\.8") as cuda:
        plan_from_locks(python="3.11", cuda="11.8")
    assert "CUDA 12.5 or 12.9" in str(cuda.value)


def test_each_row_is_of_an_output_of_this_feedstock_and_has_a_source() -> None:
    names = (feedstock.load(ROOT).root / "outputs.txt").read_text(encoding="utf-8").splitlines()
    assert known_upstream_wheel_gaps()
    for gap in known_upstream_wheel_gaps():
        assert gap.output in names
        assert gap.source


def test_the_gaps_of_outputs_are_described() -> None:
    assert not list(upstream_wheel_gaps(("tensorflow", "small")))
    assert [gap.note for gap in upstream_wheel_gaps(("libtensorflow", "libtensorflow_cc"))] == [
        "upstream's wheel has no libtensorflow.so: libtensorflow is not made",
        "upstream's wheel has no tensorflow::ClientSession: libtensorflow_cc is made without it",
    ]


def test_each_requirement_has_its_one_hash() -> None:
    assert wheel_download.requirements_text([ONE]) == f"one==1.0 --hash=sha256:{ONE.sha256}\n"
