"""The whole matrix, built for real on the host, in Docker and in Podman: stopped, killed, failing, and going on."""

from __future__ import annotations

import json
import os
import shutil
import signal
import subprocess
import sys
import threading
import time
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln import files, image
from kiln.archive import read_info
from kiln.channel import Channel
from kiln.container import choose
from kiln.errors import (
    AlreadyRunning,
    BuildFailed,
    DiskFull,
    DownloadFailed,
    Interrupted,
    MissingTool,
    OutOfMemory,
    TestsFailed,
)
from kiln.ledger import Ledger
from kiln.model.feedstock import Feedstock
from kiln.model.run import CellState
from kiln.pipeline.layout import Layout
from tests.waiting import CEILING, until

if TYPE_CHECKING:
    from collections.abc import Iterator

    from kiln.model.run import MatrixReport

ROOT = Path(__file__).parents[2]
SMALL = ROOT / "tests" / "fixtures" / "small-feedstock"
CELLS = sorted(file.stem for file in (SMALL / ".ci_support").glob("*.yaml"))
CUDA_311, CUDA_312, CPU_311, CPU_312 = CELLS
BASE = image.default_tag("bookworm")

# A script that goes on only once a file is gone, wherever the feedstock is seen.
HOLD = (
    'for root in "$RECIPE_DIR/.." /home/conda/feedstock_root; do while [ -e "$root/hold" ]; do sleep 0.1; done; done\n'
)


@pytest.fixture
def small(tmp_path: Path) -> Iterator[Path]:
    """A copy of the small feedstock; a test that fails half-way leaves no process at work there."""
    root = Path(shutil.copytree(SMALL, tmp_path / "small-feedstock"))
    yield root
    for pid in working_in(root):
        with suppress(ProcessLookupError):
            os.kill(pid, signal.SIGKILL)


@pytest.fixture(params=["none", "docker", "podman"])
def where(request: pytest.FixtureRequest) -> str:
    """The host and each container engine in turn."""
    return usable(request.param)


@pytest.fixture
def docker() -> str:
    """Docker alone."""
    return usable("docker")


def usable(name: str) -> str:
    """An engine that answers and has the base image; a test is skipped where it does not."""
    try:
        engine = choose(name, env=os.environ).engine
        if engine is not None:
            folder = Feedstock(root=ROOT).artifacts / "images"
            image.base(engine, image.recipe(), tag=BASE, folder=folder, env=os.environ)
    except MissingTool as missing:
        pytest.skip(missing.what)
    return name


def words(root: Path, *more: str) -> tuple[str, ...]:
    return (sys.executable, "-m", "kiln", "-C", str(root), "build", *more)


def kiln(root: Path, *more: str, **variables: str) -> subprocess.CompletedProcess[str]:
    """Run ``kiln build`` to its end."""
    return subprocess.run(
        words(root, *more),
        cwd=ROOT,
        text=True,
        capture_output=True,
        check=False,
        env={**os.environ, **variables},
        timeout=CEILING,
    )


@contextmanager
def started(root: Path, *more: str) -> Iterator[subprocess.Popen[str]]:
    """Run ``kiln build`` beside the test; one that hangs is ended, so that who waits for a word of it fails."""
    with subprocess.Popen(words(root, *more), cwd=ROOT, text=True, stderr=subprocess.PIPE) as process:
        end = threading.Timer(CEILING, process.kill)
        end.start()
        try:
            yield process
        finally:
            end.cancel()
            process.kill()


def wait_for(process: subprocess.Popen[str], text: str) -> list[str]:
    """Read what a run says until a line has a text."""
    assert process.stderr is not None
    said = []
    for line in process.stderr:
        said.append(line)
        if text in line:
            return said
    raise AssertionError(f"never said {text!r}, but {''.join(said)}")


def nobody_builds(root: Path, config: str) -> bool:
    """Whether a cell's lock is free: its process has tidied up, its container is gone."""
    try:
        with files.locked(Layout.of(Feedstock(root=root)).lock(config)):
            return True
    except AlreadyRunning:
        return False


def report(root: Path) -> MatrixReport:
    with Ledger(root / "build_artifacts" / "ledger.sqlite") as ledger:
        found = ledger.report()
    assert found is not None
    return found


def states(root: Path) -> dict[str, CellState]:
    return {cell.config: cell.state for cell in report(root).cells}


def packages(root: Path) -> set[str]:
    return {file.name for file in Channel(root=root / "build_artifacts").packages()}


def assert_whole(root: Path) -> None:
    """Every package of the channel can be read and stands in its index, and the other way round."""
    channel = Channel(root=root / "build_artifacts")
    names = {read_info(package, "index.json") and package.name for package in channel.packages()}
    index: dict[str, Any] = json.loads((channel.root / "linux-64" / "repodata.json").read_text())
    assert set(index["packages.conda"]) == names


def replace(root: Path, file: str, old: str, new: str) -> None:
    path = root / "recipe" / file
    text = path.read_text()
    assert old in text
    path.write_text(text.replace(old, new))


def test_a_cell_is_built_tested_and_put_into_the_channel(small: Path, where: str) -> None:
    ended = kiln(small, CPU_311, "--container", where, sha="abc")
    assert ended.returncode == 0, ended.stderr
    artifacts = small / "build_artifacts"
    (app,) = (artifacts / "linux-64").glob("small-1.2-*.conda")
    (library,) = (artifacts / "linux-64").glob("libsmall-1.2-*.conda")
    assert read_info(app, "index.json")["depends"] == [f"libsmall 1.2 {library.stem.removeprefix('libsmall-1.2-')}"]
    assert read_info(app, "about.json")["extra"]["sha"] == "abc"
    prefixes = {each["_path"]: each.get("file_mode") for each in read_info(library, "paths.json")["paths"]}
    assert prefixes == {"lib/libsmall.txt": None, "lib/where.txt": "text"}
    assert (artifacts / f"conda-forge-build-done-{CPU_311}").is_file()
    assert not (artifacts / "work" / CPU_311).exists()
    assert {path.stat().st_uid for path in artifacts.rglob("*")} == {os.getuid()}
    (cell,) = report(small).cells
    assert [step.title for step in cell.steps] == [
        *("render", "compile", "build libsmall", "build small", "test libsmall", "test small"),
    ]
    assert cell.log is not None
    log = cell.log.read_text()
    assert "compiling with 3.11 is over" in log
    assert log.startswith(time.strftime("%Y-"))
    assert_whole(small)


def test_the_whole_matrix_is_built_once_and_then_found(small: Path, where: str) -> None:
    ended = kiln(small, "--all", "-j", "2", "--container", where)
    assert ended.returncode == 0, ended.stderr
    assert set(states(small).values()) == {CellState.DONE}
    assert len(packages(small)) == 6, "both cells of a CUDA version make the same library"
    told = [package.artifact for cell in report(small).cells for package in cell.packages]
    assert {each.path: each.sha256 for each in told} == {each.path: files.sha256(each.path) for each in told}
    leaders = {cell.group for cell in report(small).cells[:2] if cell.leader}
    assert leaders == {"cpu", "cuda12.9"}
    for cell in report(small).cells:
        titles = [step.title for step in cell.steps]
        assert ("build libsmall" if cell.leader else "take libsmall") in titles
        assert ("test libsmall" in titles) is cell.leader
        notes = {package.artifact.name: package.tests.notes for package in cell.packages}
        whose = CUDA_311 if cell.group == "cuda12.9" else CPU_311
        assert notes == {"libsmall": () if cell.leader else (f"made and tested by {whose}",), "small": ()}
    before = {file: file.stat().st_mtime_ns for file in (small / "build_artifacts").glob("*/*.conda")}
    again = kiln(small, "--all", "-j", "2", "--container", where)
    assert again.returncode == 0
    assert set(states(small).values()) == {CellState.FOUND}
    assert {file: file.stat().st_mtime_ns for file in before} == before
    assert_whole(small)


def test_a_killed_run_goes_on_where_it_was_and_nothing_of_it_is_left(small: Path, where: str) -> None:
    replace(small, "install-app.sh", "mkdir", f"{HOLD}mkdir")
    (small / "hold").touch()
    with started(small, CPU_311, "--container", where) as process:
        wait_for(process, "build small")
        process.send_signal(signal.SIGKILL)
        process.wait()
    until(lambda: nobody_builds(small, CPU_311), "the cell's process ends")  # its script would go on without the hold
    assert states(small) == {CPU_311: CellState.INTERRUPTED}
    assert packages(small) == set()
    (small / "hold").unlink()
    ended = kiln(small, CPU_311, "--container", where)
    assert ended.returncode == 0, ended.stderr
    (cell,) = report(small).cells
    assert {step.title: step.reused for step in cell.steps if step.title[:4] in {"comp", "buil"}} == {
        "compile": True,
        "build libsmall": True,
        "build small": False,
    }
    assert_whole(small)
    if where != "none":
        engine = choose(where, env=os.environ).engine
        assert engine is not None
        running = engine.ask("ps", "--all", "--filter", "label=kiln.owner", "--format", "{{.Mounts}}").stdout
        assert str(small) not in running


def test_everything_killed_at_once_leaves_no_process_at_work(small: Path) -> None:
    """As when the machine runs out of memory: the run, the cell's process and the builder, each with kill -9."""
    replace(small, "install-app.sh", "mkdir", f"{HOLD}mkdir")
    (small / "hold").touch()
    with started(small, CPU_311, "--container", "none") as process:
        wait_for(process, "build small")
        until(lambda: any(is_script(pid) for pid in below(process.pid)), "the script runs")
        for pid in [*below(process.pid), process.pid]:
            if not is_script(pid):
                with suppress(ProcessLookupError):
                    os.kill(pid, signal.SIGKILL)
    (small / "hold").unlink()
    assert kiln(small, CPU_311, "--container", "none").returncode == 0
    assert [pid for pid in working_in(small) if pid != os.getpid()] == []


@pytest.mark.parametrize(
    ("number", "whom"),
    [
        (signal.SIGINT, "run"),
        (signal.SIGTERM, "run"),
        (signal.SIGKILL, "run"),
        (signal.SIGTERM, "cell"),
        (signal.SIGKILL, "cell"),
        (signal.SIGKILL, "both"),
    ],
)
def test_whoever_is_ended_takes_the_script_along(small: Path, number: signal.Signals, whom: str) -> None:
    """On the host, where no container ends it."""
    replace(small, "install-app.sh", "mkdir", f"{HOLD}mkdir")
    (small / "hold").touch()
    with started(small, CPU_311, "--container", "none") as process:
        wait_for(process, "build small")
        until(lambda: any(is_script(pid) for pid in below(process.pid)), "the script runs")
        (cell,) = (pid for pid in below(process.pid) if "kiln.pipeline.cell" in command_line(pid))
        for pid in {"run": (process.pid,), "cell": (cell,), "both": (cell, process.pid)}[whom]:
            os.kill(pid, number)  # the run last: it is this process's child, and stays there to be killed
        process.communicate()
    until(lambda: working_in(small) == [], "no process is at work")


def below(root: int) -> list[int]:
    """The processes below one, the deepest first."""
    found: list[int] = []
    for file in Path(f"/proc/{root}/task").glob("*/children"):
        with suppress(OSError):  # it has ended meanwhile
            found += map(int, file.read_text().split())
    return [deeper for pid in found for deeper in (*below(pid), pid)]


def is_script(pid: int) -> bool:
    """Whether a process is the script of the output ``small``, by itself."""
    return command_line(pid).startswith("bash -e") and "install-app" in command_line(pid)


def command_line(pid: int) -> str:
    try:
        return Path(f"/proc/{pid}/cmdline").read_text().replace("\0", " ")
    except OSError:
        return ""


def working_in(folder: Path) -> list[int]:
    found = []
    for entry in Path("/proc").glob("[0-9]*"):
        try:
            if (entry / "cwd").readlink().is_relative_to(folder):
                found.append(int(entry.name))
        except OSError:
            continue
    return found


@pytest.mark.parametrize("numbers", [(signal.SIGINT,), (signal.SIGTERM, signal.SIGTERM)])
def test_a_stopped_run_ends_its_cells_and_keeps_what_is_finished(
    small: Path, numbers: tuple[signal.Signals, ...]
) -> None:
    replace(small, "build.sh", "mkdir", f'if [ "$interpreter" = 3.12 ]; then {HOLD.strip()}; fi\nmkdir')
    (small / "hold").touch()
    with started(small, "--all", "-j", "2", "--container", "none") as process:
        said = "".join(wait_for(process, "3.12: compile"))
        for number in numbers:
            process.send_signal(number)
        assert process.stderr is not None
        said += process.stderr.read()
        process.wait()
    assert process.returncode == Interrupted.exit_code
    told = states(small)
    assert CellState.INTERRUPTED in told.values()
    assert CellState.RUNNING not in told.values()
    assert sum("✓" in line for line in said.splitlines()) == sum(state is CellState.DONE for state in told.values())
    (small / "hold").unlink()
    assert kiln(small, "--all", "--container", "none").returncode == 0
    assert set(states(small).values()) <= {CellState.DONE, CellState.FOUND}


def test_a_failing_cell_does_not_stop_the_rest_and_is_retried_alone(small: Path) -> None:
    broken = 'if [ "$cuda_compiler_version$interpreter" = None3.12 ]; then echo no luck; exit 3; fi\n'
    replace(small, "build.sh", "mkdir", f"{broken}mkdir")
    ended = kiln(small, "--all", "-j", "2", "--container", "none")
    assert ended.returncode == BuildFailed.exit_code
    assert "could not be built: its script ended with exit code 3" in ended.stderr
    shown = [line for line in ended.stderr.splitlines() if line.startswith("    | ")]
    assert "    | no luck" in shown  # before or after bash's own trace, which comes by another pipe
    assert shown[-1] == "    | Script failed with status 3", "the engine's advice is left out"
    good = dict.fromkeys((CUDA_311, CUDA_312, CPU_311), CellState.DONE)
    assert states(small) == {**good, CPU_312: CellState.FAILED}
    assert not (small / "build_artifacts" / f"conda-forge-build-done-{CPU_312}").exists()
    assert not [name for name in packages(small) if name.startswith("small-1.2-cpu_py312")]
    assert kiln(small, "--failed", "--container", "none").returncode == BuildFailed.exit_code
    assert states(small) == {CPU_312: CellState.FAILED}


def test_a_cell_begins_at_a_step_and_takes_what_came_before_as_it_is(small: Path) -> None:
    replace(small, "install-app.sh", "mkdir", "exit 3\nmkdir")
    run = (small, CPU_311, "--container", "none")
    assert kiln(*run).returncode == BuildFailed.exit_code
    refused = kiln(*run, "--from-step", "test small")
    assert "'build small', which comes before it, is not finished" in refused.stderr
    replace(small, "install-app.sh", "exit 3\n", "")
    assert kiln(*run, "--from-step", "build small").returncode == 0
    (cell,) = report(small).cells
    again = {"render": False, "build small": False, "test libsmall": False, "test small": False}
    assert {step.title: step.reused for step in cell.steps} == {**again, "compile": True, "build libsmall": True}
    assert [step.title for step in cell.steps if step.notes] == ["compile", "build libsmall"]
    assert kiln(*run, "--from-step", "test small").returncode == 0
    assert report(small).cells[0].steps[-2].reused, "the test of the library has passed before"
    assert kiln(*run).returncode == 0
    assert states(small) == {CPU_311: CellState.DONE}, "made in part of an older recipe, it is no finished cell"
    assert kiln(*run, "--from-step", "test small").returncode == 2, "a finished cell keeps no steps"


def test_a_step_that_is_none_is_told_with_those_that_are(small: Path) -> None:
    ended = kiln(small, CPU_311, "--container", "none", "--from-step", "build smal")
    assert ended.returncode == 2
    assert "has no step 'build smal'" in ended.stderr
    assert "'compile', 'build libsmall', 'build small', 'test libsmall', 'test small'" in ended.stderr
    assert "did you mean 'build small'" in ended.stderr


def test_when_the_leader_of_a_group_fails_the_next_cell_leads(small: Path) -> None:
    broken = 'if [ "$cuda_compiler_version$interpreter" = None3.11 ]; then exit 3; fi\n'
    replace(small, "build.sh", "mkdir", f"{broken}mkdir")
    assert kiln(small, CPU_311, CPU_312, "-j", "2", "--container", "none").returncode == BuildFailed.exit_code
    first, second = sorted(report(small).cells, key=lambda cell: cell.started or 0.0)
    assert (first.config, first.leader, first.state) == (CPU_311, True, CellState.FAILED)
    assert (second.config, second.leader, second.state) == (CPU_312, True, CellState.DONE)
    assert (second.started or 0.0) >= (first.finished or 0.0) > 0.0
    assert "build libsmall" in [step.title for step in second.steps]


def test_a_package_whose_tests_fail_does_not_get_into_the_channel(small: Path) -> None:
    replace(small, "check.sh", "a patched greeting", "something else")
    ended = kiln(small, CPU_311, "--container", "none")
    assert ended.returncode == TestsFailed.exit_code, ended.stderr
    assert packages(small) == set()


def test_what_a_failed_step_left_is_kept_when_asked_for(small: Path) -> None:
    replace(small, "install-app.sh", "mkdir", "exit 3\nmkdir")
    folder = small / "build_artifacts" / "work" / CPU_311
    kiln(small, CPU_311, "--container", "none")
    assert [path.name for path in folder.glob("small-*")] == []
    kiln(small, CPU_311, "--container", "none", "--keep-failed")
    assert len(list(folder.glob("small-*/output/bld/*/work/conda_build.sh"))) == 1


def test_a_cell_that_runs_out_of_memory_is_told_as_such(small: Path, docker: str) -> None:
    engine = choose(docker, env=os.environ).engine
    assert engine is not None
    if engine.lacks:
        pytest.skip(engine.lacks[0])
    replace(small, "build.sh", "mkdir", "/usr/bin/python3 -c 'x = bytearray(2_000_000_000)' || exit 1\nmkdir")
    ended = kiln(small, CPU_311, "--container", docker, "--memory", "600MB")
    assert ended.returncode == OutOfMemory.exit_code, ended.stderr
    (cell,) = report(small).cells
    assert (cell.state, cell.peak_memory) == (CellState.OUT_OF_MEMORY, 600_000_000)
    refused = kiln(small, CPU_311, "--container", docker, "--memory", "500MB")
    assert refused.returncode == OutOfMemory.exit_code
    assert "held 600 MB of memory when it was last built" in refused.stderr


def test_memory_is_bounded_on_the_host_too(small: Path) -> None:
    hog = "import time; x = bytearray(900_000_000); time.sleep(600)"
    replace(small, "build.sh", "mkdir", f"/usr/bin/python3 -c '{hog}' || exit 1\nmkdir")
    ended = kiln(small, CPU_311, "--container", "none", "--memory", "600MB")
    assert ended.returncode == OutOfMemory.exit_code, ended.stderr
    assert states(small) == {CPU_311: CellState.OUT_OF_MEMORY}
    assert "needed more memory than 600 MB" in ended.stderr


def test_of_two_runs_at_once_each_cell_is_built_by_one(small: Path) -> None:
    replace(small, "install-app.sh", "mkdir", f'if [ "$cuda_compiler_version" = 12.9 ]; then {HOLD.strip()}; fi\nmkdir')
    (small / "hold").touch()
    with started(small, CUDA_311, "--container", "none") as first:
        wait_for(first, "build small")
        second = kiln(small, CUDA_311, CPU_311, "--container", "none")
        assert second.returncode == AlreadyRunning.exit_code
        assert states(small) == {CUDA_311: CellState.ELSEWHERE, CPU_311: CellState.DONE}
        (small / "hold").unlink()
        first.communicate()
    assert first.returncode == 0
    assert kiln(small, CUDA_311, CPU_311, "--container", "none").returncode == 0
    assert set(states(small).values()) == {CellState.FOUND}


def test_a_cell_is_built_again_when_asked_for_or_when_something_changed(small: Path) -> None:
    run = (small, CPU_311, "--container", "none")

    def again(*more: str) -> CellState:
        ended = kiln(*run, *more)
        assert ended.returncode == 0, ended.stderr
        (state,) = states(small).values()
        return state

    assert [again(), again(), again("--rebuild"), again()] == [
        *(CellState.DONE, CellState.FOUND, CellState.DONE, CellState.FOUND),
    ]
    (app,) = (small / "build_artifacts" / "linux-64").glob("small-*.conda")
    os.utime(app)
    assert again() is CellState.FOUND, "its time alone has changed"
    content = app.read_bytes()
    app.write_bytes(content[:-1] + bytes([content[-1] ^ 1]))
    assert again() is CellState.DONE
    app.unlink()
    assert again() is CellState.DONE
    replace(small, "build.sh", "compiled for", "made for")
    assert kiln(*run).returncode == TestsFailed.exit_code, "the recipe has changed, and its test has not"


def test_a_dry_run_tells_and_does_nothing(small: Path) -> None:
    told = kiln(small, "--all", "-j", "2", "--container", "none", "--dry-run")
    assert told.returncode == 0
    assert [line.split()[-1] for line in told.stdout.splitlines()[:4]] == [CUDA_311, CPU_311, CUDA_312, CPU_312]
    assert "4 to build, 2 at a time, on the host" in told.stdout
    assert packages(small) == set()
    assert kiln(small, CPU_311, "--container", "none").returncode == 0
    told = kiln(small, "--all", "--container", "none", "--dry-run")
    assert told.stdout.startswith(f"done     {CPU_311}\n")


@pytest.fixture
def like_conda_forges(docker: str, tmp_path: Path) -> Iterator[str]:
    """An image with an entry point that only root can pass, as conda-forge's have."""
    tag = f"localhost/kiln-test:{tmp_path.name}-{os.getpid()}".lower()
    made = subprocess.run((docker, "create", BASE), check=True, capture_output=True, text=True).stdout.strip()
    entry = 'ENTRYPOINT ["/bin/false"]'
    try:
        subprocess.run((docker, "commit", "--change", entry, made, tag), check=True, capture_output=True)
    finally:
        subprocess.run((docker, "rm", made), check=True, capture_output=True)
    yield tag
    subprocess.run((docker, "rmi", "--force", tag), check=True, capture_output=True)


def test_an_image_without_the_engine_is_lent_kilns_own(small: Path, like_conda_forges: str) -> None:
    """As conda-forge's images are: a Python, an entry point for root, and no rattler-build."""
    replace(small, "check.sh", "\n", '\ntest -z "${PYTHONPATH-}"\n')  # nothing of the lent engine reaches a test
    own = {"DOCKER_IMAGE": like_conda_forges, "CONDA_FORGE_DOCKER_RUN_ARGS": f"--tmpfs {image.ENGINE_HOME}"}
    ended = kiln(small, CPU_311, "--container", "docker", **own)
    assert ended.returncode == 0, ended.stderr
    assert_whole(small)
    assert len([each for each in (small / "build_artifacts" / "engines").iterdir() if each.is_dir()]) == 1


def test_an_image_without_engine_and_python_is_told_by_its_name(small: Path, docker: str) -> None:
    hidden = {"CONDA_FORGE_DOCKER_RUN_ARGS": f"--tmpfs {image.ENGINE_HOME} --tmpfs /usr/lib/python3.11"}
    ended = kiln(small, CPU_311, "--container", docker, **hidden)
    assert ended.returncode == MissingTool.exit_code
    assert f"the image {BASE} has no py-rattler-build" in ended.stderr


def test_nobody_to_ask_means_a_cell_must_be_named(small: Path) -> None:
    ended = kiln(small, "--container", "none")
    assert ended.returncode == 2
    assert "4 cells could be built, and none is named" in ended.stderr


def test_a_filter_that_leaves_one_cell_names_it(small: Path) -> None:
    assert kiln(small, "--filter", "*None*3.11*", "--container", "none").returncode == 0
    assert states(small) == {CPU_311: CellState.DONE}


def test_a_channel_out_of_reach_is_tried_again_and_told_as_such(small: Path) -> None:
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
    (cell,) = report(small).cells
    assert [note[:16] for note in cell.steps[-1].notes] == ["attempt 1 of 3: ", "attempt 2 of 3: "]


def test_outputs_without_a_script_pick_files_that_the_recipe_installed(tmp_path: Path) -> None:
    (tmp_path / "recipe").mkdir()
    (tmp_path / ".ci_support").mkdir()
    (tmp_path / ".ci_support" / "linux_64_.yaml").write_text("target_platform:\n- linux-64\n")
    (tmp_path / "recipe" / "meta.yaml").write_text(PICKING)
    ended = kiln(tmp_path, "linux_64_", "--container", "none")
    assert ended.returncode == 0, ended.stderr
    paths = {
        file.name: read_info(file, "paths.json")["paths"]
        for file in Channel(root=tmp_path / "build_artifacts").packages()
    }
    assert {
        name.rsplit("-", 2)[0]: [(each["_path"], each.get("file_mode")) for each in told]
        for name, told in paths.items()
    } == {
        "picked": [("lib/a.dat", "binary"), ("lib/a.txt", "text")],
        "picked-dev": [("include/a.h", None)],
    }


PICKING = """
package:
  name: many
  version: "3"
build:
  script:
    - mkdir -p $PREFIX/lib $PREFIX/include
    - echo $PREFIX > $PREFIX/lib/a.txt
    - printf 'x\\0%s\\0y' $PREFIX > $PREFIX/lib/a.dat
    - echo hi > $PREFIX/include/a.h
outputs:
  - name: picked
    files:
      - lib/*
    test:
      commands:
        - grep -qF "$PREFIX" $PREFIX/lib/a.txt
        - grep -qF "$PREFIX" $PREFIX/lib/a.dat
  - name: picked-dev
    files:
      - include/*
"""


def test_scripts_get_the_callers_variables_that_the_recipe_names_and_tests_their_sources(
    tmp_path: Path, where: str
) -> None:
    """As conda-build: script_env, test/source_files, and the output that is named as the recipe is."""
    source = tmp_path / "recipe" / "src" / "data"
    source.mkdir(parents=True)
    (source / "a.txt").write_text("from the source\n")
    (tmp_path / ".ci_support").mkdir()
    config = f"docker_image:\n- {BASE}\ntarget_platform:\n- linux-64\n"
    (tmp_path / ".ci_support" / "linux_64_.yaml").write_text(config)
    (tmp_path / "recipe" / "meta.yaml").write_text(NAMED_AS_THE_RECIPE)
    (tmp_path / "recipe" / "part.sh").write_text("mkdir -p $PREFIX/share; echo part > $PREFIX/share/part\n")
    ended = kiln(tmp_path, "linux_64_", "--container", where, TOKEN_OF_OURS="hunter2", NOT_ASKED_FOR="here")
    assert ended.returncode == 0, ended.stderr
    made = {file.name.rsplit("-", 2)[0]: file for file in Channel(root=tmp_path / "build_artifacts").packages()}
    assert {
        name: [each["_path"] for each in read_info(file, "paths.json")["paths"]] for name, file in made.items()
    } == {
        "whole": ["share/length", "share/mode"],
        "part": ["share/part"],
    }
    (cell,) = report(tmp_path).cells
    assert cell.log is not None
    assert "hunter2" not in cell.log.read_text() + ended.stderr
    assert b"hunter2" not in made["whole"].read_bytes()


NAMED_AS_THE_RECIPE = """
package:
  name: whole
  version: "1"
source:
  path: src
build:
  script_env:
    - TOKEN_OF_OURS
    - MODE=quick
    - NEVER_SET
  script:
    - mkdir -p $PREFIX/share
    - test -z "${NOT_ASKED_FOR-}"
    - printf %s "$TOKEN_OF_OURS" | wc -c > $PREFIX/share/length
    - echo $MODE > $PREFIX/share/mode
outputs:
  - name: whole
    test:
      source_files:
        - data/*.txt
      commands:
        - test "$(cat data/a.txt)" = "from the source"
        - test "$(cat $PREFIX/share/length)" = 7
        - test "$(cat $PREFIX/share/mode)" = quick
  - name: part
    script: part.sh
"""


@pytest.mark.parametrize(("engine", "package"), [("conda-build", "conda-build"), ("mambabuild", "boa")])
def test_an_image_without_another_engine_is_told_with_its_package(
    small: Path, docker: str, engine: str, package: str
) -> None:
    ended = kiln(small, CPU_311, "--container", docker, "--engine", engine)
    assert ended.returncode == MissingTool.exit_code
    assert f"the image {BASE} has no {package}" in ended.stderr


def test_another_engine_is_called_as_conda_forge_calls_it_and_what_it_left_is_taken(
    small: Path, tmp_path: Path
) -> None:
    """A program in conda-build's place, which leaves a package that was built before where conda-build would."""
    assert kiln(small, CPU_311, "--container", "none").returncode == 0
    shutil.move(small / "build_artifacts" / "linux-64", tmp_path / "made")
    shutil.rmtree(small / "build_artifacts")
    tools = tmp_path / "bin"
    tools.mkdir()
    (tools / "conda-build").write_text(STAND_IN.format(python=sys.executable, made=tmp_path / "made"))
    (tools / "conda-build").chmod(0o755)
    path = f"{tools}{os.pathsep}{os.environ['PATH']}"
    ended = kiln(small, CPU_311, "--container", "none", "--engine", "conda-build", PATH=path, sha="abc")
    assert ended.returncode == 0, ended.stderr
    assert packages(small) == {file.name for file in (tmp_path / "made").glob("*.conda")}
    assert_whole(small)
    (cell,) = report(small).cells
    assert cell.log is not None
    called = cell.log.read_text().partition("called with ")[2].splitlines()[0].split()
    assert called[:4] == [str(small / "recipe"), "-m", str(small / ".ci_support" / f"{CPU_311}.yaml"), called[3]]
    assert called[3] == "--suppress-variables"
    assert called[-3:] == ["flow_run_id=", "remote_url=", "sha=abc"]


STAND_IN = """#!{python}
import json, os, pathlib, shutil, sys
print("called with", *sys.argv[1:], flush=True)
root = json.loads(pathlib.Path(os.environ["CONDARC"]).read_text())["conda-build"]["root-dir"]
shutil.copytree("{made}", pathlib.Path(root, "linux-64"))
"""


@pytest.fixture
def small_disk(small: Path) -> Iterator[Path]:
    """The small feedstock with its build_artifacts on a file system of its own, of 550 MB."""
    disk = small / "build_artifacts"
    disk.mkdir()
    mounted = subprocess.run(
        ("mount", "-t", "tmpfs", "-o", "size=550m", "none", disk), capture_output=True, check=False
    )
    if mounted.returncode:
        pytest.skip("only root can mount a small disk")
    yield small
    subprocess.run(("umount", disk), check=True)


def test_a_disk_that_becomes_full_is_told_as_such_and_the_cell_goes_on_afterwards(small_disk: Path) -> None:
    fill = 'test -e "$RECIPE_DIR/../room" || head -c 600M /dev/zero >big\n'
    replace(small_disk, "install-app.sh", "mkdir", f"{fill}mkdir")
    ended = kiln(small_disk, CPU_311, "--container", "none")
    assert ended.returncode == DiskFull.exit_code, ended.stderr
    assert states(small_disk) == {CPU_311: CellState.DISK_FULL}
    (small_disk / "room").touch()
    for big in small_disk.rglob("big"):
        big.unlink()
    assert kiln(small_disk, "--failed", "--container", "none").returncode == 0
    (cell,) = report(small_disk).cells
    assert [step.reused for step in cell.steps if step.title in {"compile", "build libsmall"}] == [True, True]


def test_a_disk_without_room_is_told_before_anything_is_built(small_disk: Path) -> None:
    ended = kiln(small_disk, "--all", "-j", "2", "--container", "none")
    assert ended.returncode == DiskFull.exit_code
    assert "building 2 at a time needs 1.0 GB" in ended.stderr
