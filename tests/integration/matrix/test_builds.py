"""The matrix of the small feedstock, built, built again, and built in part."""

from __future__ import annotations

import os
import time
from typing import TYPE_CHECKING

import pytest

from kiln.base import files
from kiln.base.errors import AlreadyRunning, BuildFailed, DownloadFailed, TestsFailed
from kiln.conda.package_reader import read_info_json
from kiln.state.results import ConfigState
from tests.integration.matrix.helpers import (
    CPU_311,
    CPU_312,
    CUDA_311,
    CUDA_312,
    HOLD,
    assert_whole,
    kiln,
    packages,
    replace,
    report,
    started,
    states,
    wait_for,
    working_in,
)

if TYPE_CHECKING:
    from pathlib import Path

pytestmark = pytest.mark.slow("a small matrix is built, in some tests twice")


def test_a_config_is_built_tested_and_put_into_the_channel(small: Path, where: str) -> None:
    began = time.strftime("%Y-")
    ended = kiln(small, CPU_311, "--container", where, sha="abc")
    assert ended.returncode == 0, ended.stderr
    artifacts = small / "build_artifacts"
    (app,) = (artifacts / "linux-64").glob("small-1.2-*.conda")
    (library,) = (artifacts / "linux-64").glob("libsmall-1.2-*.conda")
    assert read_info_json(app, "index.json")["depends"] == [
        f"libsmall 1.2 {library.stem.removeprefix('libsmall-1.2-')}"
    ]
    assert read_info_json(app, "about.json")["extra"]["sha"] == "abc"
    prefixes = {item["_path"]: item.get("file_mode") for item in read_info_json(library, "paths.json")["paths"]}
    assert prefixes == {"lib/libsmall.txt": None, "lib/where.txt": "text"}
    assert (artifacts / f"conda-forge-build-done-{CPU_311}").is_file()
    assert not (artifacts / "work" / CPU_311).exists()
    assert {path.stat().st_uid for path in artifacts.rglob("*")} == {os.getuid()}
    (config,) = report(small).configs
    assert [step.title for step in config.steps] == [
        *("render", "compile", "build libsmall", "build small", "test libsmall", "test small"),
    ]
    assert config.log is not None
    log = config.log.read_text()
    assert "compiling with 3.11 is over" in log
    assert log.startswith((began, time.strftime("%Y-")))
    assert_whole(small)


def test_what_a_script_leaves_running_is_ended(small: Path) -> None:
    with (small / "recipe" / "build.sh").open("a") as script:
        script.write("sleep 300 >/dev/null 2>&1 </dev/null &\n")
    ended = kiln(small, CPU_311, "--container", "none")
    assert ended.returncode == 0, ended.stderr
    assert working_in(small / "build_artifacts") == []


def test_the_whole_matrix_is_built_once_and_then_cached(small: Path, where: str) -> None:
    ended = kiln(small, "--all", "-j", "2", "--container", where)
    assert ended.returncode == 0, ended.stderr
    assert set(states(small).values()) == {ConfigState.DONE}
    assert len(packages(small)) == 6, "both configs of a CUDA version make the same library"
    told = [package.artifact for config in report(small).configs for package in config.packages]
    assert {item.path: item.sha256 for item in told} == {item.path: files.sha256(item.path) for item in told}
    groups = {config.group for config in report(small).configs[:2] if config.cold}
    assert groups == {"cpu", "cuda12.9"}
    for config in report(small).configs:
        titles = [step.title for step in config.steps]
        assert ("build libsmall" if config.cold else "take libsmall") in titles
        assert ("test libsmall" in titles) is config.cold
        notes = {package.artifact.name: package.tests.notes for package in config.packages}
        whose = CUDA_311 if config.group == "cuda12.9" else CPU_311
        assert notes == {"libsmall": () if config.cold else (f"made and tested by {whose}",), "small": ()}
    before = {file: file.stat().st_mtime_ns for file in (small / "build_artifacts").glob("*/*.conda")}
    again = kiln(small, "--all", "-j", "2", "--container", where)
    assert again.returncode == 0
    assert set(states(small).values()) == {ConfigState.CACHED}
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert_whole(small)


def test_a_failing_config_does_not_stop_the_rest_and_is_retried_alone(small: Path) -> None:
    broken = 'if [ "$cuda_compiler_version$interpreter" = None3.12 ]; then echo no luck; exit 3; fi\n'
    replace(small, "build.sh", "mkdir", f"{broken}mkdir")
    ended = kiln(small, "--all", "-j", "2", "--container", "none")
    assert ended.returncode == BuildFailed.exit_code
    assert "could not be built: its script ended with exit code 3" in ended.stderr
    shown = [line for line in ended.stderr.splitlines() if line.startswith("    | ")]
    assert shown[-1] == "    | no luck", "bash's trace and the engine's advice are left out"
    good = dict.fromkeys((CUDA_311, CUDA_312, CPU_311), ConfigState.DONE)
    assert states(small) == {**good, CPU_312: ConfigState.FAILED}
    assert not (small / "build_artifacts" / f"conda-forge-build-done-{CPU_312}").exists()
    assert not [name for name in packages(small) if name.startswith("small-1.2-cpu_py312")]
    assert kiln(small, "--failed", "--container", "none").returncode == BuildFailed.exit_code
    assert states(small) == {CPU_312: ConfigState.FAILED}


def test_a_config_begins_at_a_step_and_takes_what_came_before_as_it_is(small: Path) -> None:
    replace(small, "install-app.sh", "mkdir", "exit 3\nmkdir")
    run = (small, CPU_311, "--container", "none")
    assert kiln(*run).returncode == BuildFailed.exit_code
    refused = kiln(*run, "--from-step", "test small")
    assert "the step 'build small' before it is not finished" in refused.stderr
    replace(small, "install-app.sh", "exit 3\n", "")
    assert kiln(*run, "--from-step", "build small").returncode == 0
    (config,) = report(small).configs
    again = {"render": False, "build small": False, "test libsmall": False, "test small": False}
    assert {step.title: step.reused for step in config.steps} == {**again, "compile": True, "build libsmall": True}
    assert [step.title for step in config.steps if step.notes] == ["compile", "build libsmall"]
    assert kiln(*run, "--from-step", "test small").returncode == 0
    assert report(small).configs[0].steps[-2].reused, "the test of the library has passed before"
    assert kiln(*run).returncode == 0
    assert states(small) == {CPU_311: ConfigState.DONE}, "made in part of an older recipe, it is not a finished config"
    assert kiln(*run, "--from-step", "test small").returncode == 2, "a finished config keeps no steps"


def test_an_unknown_step_is_refused_with_the_valid_ones(small: Path) -> None:
    ended = kiln(small, CPU_311, "--container", "none", "--from-step", "build smal")
    assert ended.returncode == 2
    assert "has no step 'build smal'" in ended.stderr
    assert "'compile', 'build libsmall', 'build small', 'test libsmall', 'test small'" in ended.stderr
    assert "did you mean 'build small'" in ended.stderr


@pytest.mark.sampled
def test_when_a_cold_build_fails_the_groups_next_build_is_cold(small: Path) -> None:
    broken = 'if [ "$cuda_compiler_version$interpreter" = None3.11 ]; then exit 3; fi\n'
    replace(small, "build.sh", "mkdir", f"{broken}mkdir")
    assert kiln(small, CPU_311, CPU_312, "-j", "2", "--container", "none").returncode == BuildFailed.exit_code
    first, second = sorted(report(small).configs, key=lambda config: config.started or 0.0)
    assert (first.config, first.cold, first.state) == (CPU_311, True, ConfigState.FAILED)
    assert (second.config, second.cold, second.state) == (CPU_312, True, ConfigState.DONE)
    assert (second.started or 0.0) >= (first.finished or 0.0) > 0.0
    assert "build libsmall" in [step.title for step in second.steps]


def test_a_package_whose_tests_fail_does_not_get_into_the_channel(small: Path) -> None:
    replace(small, "check.sh", "a patched greeting", "something else")
    ended = kiln(small, CPU_311, "--container", "none")
    assert ended.returncode == TestsFailed.exit_code, ended.stderr
    assert packages(small) == set()


@pytest.mark.sampled
def test_a_failed_steps_folder_is_kept_on_request(small: Path) -> None:
    replace(small, "install-app.sh", "mkdir", "exit 3\nmkdir")
    folder = small / "build_artifacts" / "work" / CPU_311
    kiln(small, CPU_311, "--container", "none")
    assert [path.name for path in folder.glob("small-*")] == []
    kiln(small, CPU_311, "--container", "none", "--keep-failed")
    assert len(list(folder.glob("small-*/output/bld/*/work/conda_build.sh"))) == 1


@pytest.mark.sampled
def test_of_two_runs_at_once_each_config_is_built_by_one(small: Path) -> None:
    replace(small, "install-app.sh", "mkdir", f'if [ "$cuda_compiler_version" = 12.9 ]; then {HOLD.strip()}; fi\nmkdir')
    (small / ".ci_support" / "hold").touch()
    with started(small, CUDA_311, "--container", "none") as first:
        wait_for(first, "build small")
        second = kiln(small, CUDA_311, CPU_311, "--container", "none")
        assert second.returncode == AlreadyRunning.exit_code
        assert states(small) == {CUDA_311: ConfigState.LOCKED, CPU_311: ConfigState.DONE}
        (small / ".ci_support" / "hold").unlink()
        first.communicate()
    assert first.returncode == 0
    assert kiln(small, CUDA_311, CPU_311, "--container", "none").returncode == 0
    assert set(states(small).values()) == {ConfigState.CACHED}


def test_a_config_is_built_again_on_request_and_when_inputs_change(small: Path) -> None:
    run = (small, CPU_311, "--container", "none")

    def again(*more: str) -> ConfigState:
        ended = kiln(*run, *more)
        assert ended.returncode == 0, ended.stderr
        (state,) = states(small).values()
        return state

    assert [again(), again(), again("--rebuild"), again()] == [
        *(ConfigState.DONE, ConfigState.CACHED, ConfigState.DONE, ConfigState.CACHED),
    ]
    (app,) = (small / "build_artifacts" / "linux-64").glob("small-*.conda")
    os.utime(app)
    assert again() is ConfigState.CACHED, "its time alone has changed"
    content = app.read_bytes()
    app.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert again() is ConfigState.DONE
    app.unlink()
    assert again() is ConfigState.DONE
    replace(small, "build.sh", "compiled for", "made for")
    assert kiln(*run).returncode == TestsFailed.exit_code, "the recipe has changed, and its test has not"


def test_a_dry_run_shows_the_plan_and_builds_nothing(small: Path) -> None:
    told = kiln(small, "--all", "-j", "2", "--container", "none", "--dry-run")
    assert told.returncode == 0
    assert [line.split()[-1] for line in told.stdout.splitlines()[:4]] == [CUDA_311, CPU_311, CUDA_312, CPU_312]
    assert "4 to build, 2 at a time, on the host" in told.stdout
    assert packages(small) == set()
    assert kiln(small, CPU_311, "--container", "none").returncode == 0
    told = kiln(small, "--all", "--container", "none", "--dry-run")
    assert told.stdout.startswith(f"done     {CPU_311}\n")


@pytest.mark.sampled
def test_an_unreachable_channel_is_tried_again_and_reported(small: Path) -> None:
    """Port 9 of this machine stands for every channel that cannot be reached."""
    replace(
        small,
        "meta.yaml",
        "    requirements:\n      run:\n",
        "    requirements:\n      host:\n        - zlib\n      run:\n",
    )
    config = small / ".ci_support" / f"{CPU_311}.yaml"
    config.write_text(f"channel_sources:\n- http://127.0.0.1:9/c\n{config.read_text()}")
    ended = kiln(small, CPU_311, "--container", "none")
    assert ended.returncode == DownloadFailed.exit_code, ended.stderr
    (entry,) = report(small).configs
    assert [note[:16] for note in entry.steps[-1].notes] == ["attempt 1 of 3: ", "attempt 2 of 3: "]


@pytest.mark.sampled
def test_a_cache_that_the_run_used_loses_its_oldest_entries_and_is_not_removed(small: Path) -> None:
    caches = small / "build_artifacts" / "compile-cache"
    assert kiln(small, CPU_311, "--container", "none").returncode == 0
    (cache,) = (folder for folder in caches.iterdir() if folder.is_dir())
    for number in (1, 2):
        entry = cache / "cas" / str(number)
        entry.parent.mkdir(exist_ok=True)
        entry.write_bytes(bytes(1_000_000))
        os.utime(entry, (number, number))
    assert kiln(small, CPU_311, "--container", "none", "--cache-size", "1500kB").returncode == 0
    assert [file.name for file in sorted((cache / "cas").iterdir())] == ["1", "2"], "nothing was built"
    ended = kiln(small, CPU_311, "--container", "none", "--cache-size", "1500kB", "--rebuild")
    assert ended.returncode == 0, ended.stderr
    assert [file.name for file in (cache / "cas").iterdir()] == ["2"]
