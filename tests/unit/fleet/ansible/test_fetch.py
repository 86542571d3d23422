"""What is fetched from a worker: the files that its build reported, and no others."""

from __future__ import annotations

import hashlib
import json
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BrokenPackage, MachinesUnknown, MissingTool, SystemFault
from kiln.fleet.ansible import fetch

if TYPE_CHECKING:
    from pathlib import Path


def report(path: str, sha256: str = "0" * 64, log: str = "/x/build_artifacts/logs/0001/config.log") -> dict[str, Any]:
    artifact = {"path": path, "sha256": sha256, "size": 3}
    return {"configs": [{"config": "config", "log": log, "packages": [{"artifact": artifact}]}]}


def test_a_report_names_packages_and_logs_below_the_folder_of_finished_ones() -> None:
    packages, logs = fetch.reported_files(report("/home/x/build_artifacts/linux-64/a-1-0.conda"), "config")
    assert packages == [{"path": "linux-64/a-1-0.conda", "sha256": "0" * 64, "size": 3}]
    assert logs == ["logs/0001/config.log"]
    assert fetch.reported_files(report("/home/x/build_artifacts/linux-64/a-1-0.conda"), "another") == ([], [])
    wheel = "wheels/cuda12.9/a-1-cp311-cp311-manylinux_2_27_x86_64.whl"
    (result,), _ = fetch.reported_files(report(f"/home/x/build_artifacts/{wheel}"), "config")
    assert result["path"] == wheel


@pytest.mark.parametrize(
    "path",
    [
        "/x/build_artifacts/linux-64/../../../.ssh/authorized_keys.conda",
        "/etc/passwd",
        "/x/build_artifacts/wheels/../../../.ssh/a.whl",
        "/x/build_artifacts/wheels/cuda../a.whl",
        "/x/build_artifacts/linux-64/a.conda\0/etc/passwd",
        "/x/build_artifacts/linux-64/-e sh.conda",
        "/x/build_artifacts/linux-64/a.conda\n",
    ],
)
def test_a_report_cannot_name_another_file(path: str) -> None:
    with pytest.raises(BrokenPackage, match="is not the path of a package"):
        fetch.reported_files(report(path), "config")


@pytest.mark.parametrize("log", ["/etc/shadow", "/x/build_artifacts/logs/1/../../../etc/x.log"])
def test_a_log_outside_of_the_folder_of_logs_is_not_collected(log: str) -> None:
    assert fetch.reported_files(report("/x/build_artifacts/noarch/a-1-0.conda", log=log), "config")[1] == []


def test_a_file_with_another_hash_and_a_link_are_wrong(tmp_path: Path) -> None:
    (tmp_path / "good").write_bytes(b"abc")
    (tmp_path / "bad").write_bytes(b"abd")
    (tmp_path / "link").symlink_to(tmp_path / "good")
    digest = hashlib.sha256(b"abc").hexdigest()
    rows = [{"path": name, "sha256": digest} for name in ("good", "bad", "link", "missing")]
    assert fetch.wrong_packages(rows, tmp_path) == ["bad", "link", "missing"]


@pytest.mark.parametrize("size", [-1, -(10**15), 1.5, "3", None, True])
def test_a_size_that_no_file_has_is_refused(size: object) -> None:
    lying = report("/x/build_artifacts/noarch/a-1-0.conda")
    lying["configs"][0]["packages"][0]["artifact"]["size"] = size
    with pytest.raises(BrokenPackage, match="cannot have"):
        fetch.reported_files(lying, "config")


def program(folder: Path, name: str, text: str) -> dict[str, str]:
    """Return an environment in which a program of this name is another one."""
    (folder / "bin").mkdir(exist_ok=True)
    (folder / "bin" / name).write_text(f"#!/bin/sh\n{text}\n")
    (folder / "bin" / name).chmod(0o755)
    return {"PATH": f"{folder / 'bin'}:/usr/bin:/bin"}


@pytest.mark.processes
@pytest.mark.needs("rsync")
def test_a_worker_cannot_fill_the_disk(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    """Of an endless log the end is kept, a package that is larger than it claims is not, nor a part of it."""
    env = program(tmp_path, "ssh", 'while [ "$1" != one ]; do shift; done; shift; exec sh -c "$*"')
    monkeypatch.setenv("PATH", env["PATH"])
    job, package = tmp_path / "jobs/config", tmp_path / "project/build_artifacts/linux-64/a-1-0.conda"
    for folder in (job, package.parent):
        folder.mkdir(parents=True)
    monkeypatch.setattr(fetch, "LONGEST", 1024)
    monkeypatch.setattr(fetch, "HOME", str(tmp_path))
    monkeypatch.setattr(fetch, "TRIES", 2)
    (job / "log").write_bytes(b"x" * 5000 + b"the end")
    (job / "state.json").write_text("{}")
    package.write_bytes(b"y" * 5000)
    digest = hashlib.sha256(package.read_bytes()).hexdigest()
    (job / "report.json").write_text(json.dumps(report(f"/x/build_artifacts/linux-64/{package.name}", digest, log="")))
    (tmp_path / "run").mkdir()
    assert fetch.main([str(tmp_path / "run"), "one", "config"]) == 1
    assert "cannot collect config from one: not what the build reported" in capsys.readouterr().err
    got = {path.name: path.stat().st_size for path in (tmp_path / "run").rglob("*") if path.is_file()}
    assert got == {"log": 1024, "report.json": (job / "report.json").stat().st_size, "state.json": 2}
    assert (tmp_path / "run/collected/one/config/log").read_bytes().endswith(b"the end")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("code", "error"), [*((code, MachinesUnknown) for code in (10, 12, 30, 35, 255)), (23, SystemFault)]
)
def test_a_lost_connection_is_told_from_other_failures(tmp_path: Path, code: int, error: type[Exception]) -> None:
    env = program(tmp_path, "rsync", f"echo broken >&2; exit {code}")
    results = fetch.BuildResults(run_folder=tmp_path, worker="one", config="config", environment=env)
    with pytest.raises(error, match=f"rsync ended with exit code {code}\n  why: broken"):
        results.fetch()


def test_a_missing_rsync_is_named(tmp_path: Path) -> None:
    results = fetch.BuildResults(run_folder=tmp_path, worker="one", config="config", environment={"PATH": "/nowhere"})
    with pytest.raises(MissingTool, match="'rsync' is not on this machine"):
        results.fetch()
