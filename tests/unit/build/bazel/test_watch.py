"""A build is followed: its file is read as it grows, its pace measured, its stall and its failure reported."""

from __future__ import annotations

import json
import os
import shutil
import subprocess
from typing import TYPE_CHECKING

import pytest

from kiln.base import process_table
from kiln.base.errors import BuildFailed, UnsafeTemplate
from kiln.base.process_table import parse_proc_stat, processes_with_descendants
from kiln.base.text import RemainingTimeEstimate
from kiln.build.bazel import watch
from kiln.build.bazel.watch import BuildEventFile, BuildWatch, StallDetector, awaited_processes_text, watch_build
from kiln.build.engine.failures import ENGINE_FOLDER
from kiln.conda.provenance import bazel_repositories
from tests import waiting
from tests.unit.build.bazel.test_events import EVENTS

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.state.results import Progress


def watch_of(name: str, told: list[Progress] | None = None) -> BuildWatch:
    return BuildWatch(
        file=BuildEventFile(EVENTS / f"{name}.json"),
        on_progress=([] if told is None else told).append,
        stall=StallDetector(60),
    )


def test_a_file_is_read_as_it_grows_whole_lines_alone(tmp_path: Path) -> None:
    content, path = (EVENTS / "first.json").read_bytes(), tmp_path / "events.json"
    file = BuildEventFile(path)
    file.read_new_events()
    assert file.build.events == 0
    seen = []
    with path.open("wb", buffering=0) as growing:
        for start in range(0, len(content), 1000):
            growing.write(content[start : start + 1000])
            file.read_new_events()
            seen.append(file.build.done)
    assert seen == sorted(seen)
    assert seen[-1] == 8
    assert len(set(seen)) > 3
    assert file.build.events == len(content.splitlines())


def test_a_second_call_of_bazel_begins_anew(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    file = BuildEventFile(path)
    path.write_bytes((EVENTS / "failed.json").read_bytes())
    file.read_new_events()
    assert file.build.failures
    path.unlink()
    path.write_bytes((EVENTS / "again.json").read_bytes())
    file.read_new_events()
    assert not file.build.failures


def test_the_report_counts_the_actions_of_earlier_calls_that_were_put_aside(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    for name in ("events.json.wheel", "events.json"):
        shutil.copy(EVENTS / "again.json", tmp_path / name)
    once = BuildEventFile(EVENTS / "again.json")
    once.read_new_events()
    single = once.build.compile_report()
    both = BuildWatch(file=BuildEventFile(path), on_progress=print, stall=StallDetector(60)).compile_report()
    assert single is not None
    assert both is not None
    assert (both.hits, both.misses) == (2 * single.hits, 2 * single.misses)
    assert single.misses + single.hits > 0


def test_progress_is_told_once_and_only_when_it_has_changed() -> None:
    told: list[Progress] = []
    watch = watch_of("again", told)
    watch.poll_events(100.0)
    watch.poll_events(100.5)
    assert [(item.done, item.total) for item in told] == [(8, 8)]


def test_the_pace_of_the_last_minutes_counts() -> None:
    pace = RemainingTimeEstimate(600)
    assert pace.remaining_seconds(0.0, 0, None) is None
    assert pace.remaining_seconds(10.0, 100, 1000) == pytest.approx(90.0)
    later = [pace.remaining_seconds(float(second), 100 + second // 10, 1000) for second in range(20, 800, 10)]
    assert later[-1] == pytest.approx((1000 - 179) * 10, rel=0.02), "an action every ten seconds"


def test_a_standstill_is_noticed_only_without_events_and_without_work() -> None:
    stall = StallDetector(60.0)
    assert [stall.stalled_seconds(now, 1, lambda: 5.0) for now in (0.0, 1.0, 59.0)] == [None] * 3
    assert stall.stalled_seconds(62.0, 1, lambda: 5.0) == pytest.approx(61.0)
    assert stall.stalled_seconds(63.0, 2, lambda: 5.0) is None, "an event has come"
    busy = iter((64.0, 124.0, 190.0))
    assert [stall.stalled_seconds(now, 2, busy.__next__) for now in (64.0, 124.0, 190.0)] == [None] * 3, (
        "a linker works"
    )
    waiting_server = StallDetector(60.0)
    little = iter((0.0, 0.0, 80 * 0.005))
    times = [waiting_server.stalled_seconds(now, 1, little.__next__) for now in (0.0, 0.5, 80.0)]
    assert times == [None, None, pytest.approx(79.5)], "a server that only waits does not work"


def test_a_failure_is_told_by_the_action_and_by_its_cause() -> None:
    watch = watch_of("refused")
    watch.file.read_new_events()
    error = watch.explained_error(BuildFailed("the script failed", why="the end of the log"))
    assert error.what.startswith("the compile failed: download failed\n")
    assert "Connection refused" in error.what
    assert "--distdir" in error.hint
    assert error.why == "the end of the log"


def test_the_sources_have_the_name_that_the_log_has_for_them(tmp_path: Path) -> None:
    began = (EVENTS / "refused.json").read_text().splitlines()[0]
    aborted = {"id": {"pattern": {}}, "aborted": {"description": "/home/conda/tiny/BUILD:6:10: no such target"}}
    (tmp_path / "events.json").write_text(f"{began}\n{json.dumps(aborted)}\n")
    watch = BuildWatch(file=BuildEventFile(tmp_path / "events.json"), on_progress=print, stall=StallDetector(60))
    error = watch.explained_error(BuildFailed("the script failed"))
    assert "$SRC_DIR/BUILD:6:10: no such target" in error.what
    assert "/home/conda" not in error.what


def test_a_failure_without_events_is_told_by_what_the_log_says_if_that_is_known() -> None:
    watch = BuildWatch(file=BuildEventFile(EVENTS / "none.json"), on_progress=print, stall=StallDetector(60))
    unknown = BuildFailed("the script failed", why="no luck", hint="read the log")
    assert watch.explained_error(unknown) is unknown
    known = watch.explained_error(
        BuildFailed("the script failed", why="g++: error: unrecognized command-line option '-x'")
    )
    assert known.what == "the compile failed: compiler rejects a flag"


def test_what_bazel_writes_last_is_read_before_it_is_asked_for(tmp_path: Path) -> None:
    path = tmp_path / "events.json"
    with watch_build(path, on_progress=lambda _: None, stall=60.0) as watch:
        path.write_bytes((EVENTS / "again.json").read_bytes())
        report = watch.compile_report()
    assert report is not None
    assert report.hits == 6


def test_a_process_whose_children_have_all_ended_is_at_work() -> None:
    parent, child = (
        parse_proc_stat(f"{pid} (worker) {state} {parent}" + " 0" * 9 + " 0 0 0 0 0 0 0 0 100")
        for pid, state, parent in ((7, "S", 1), (8, "Z", 7))
    )
    assert awaited_processes_text([parent, child]).startswith("worker (process 7, since")


def test_this_process_is_below_itself_and_at_work() -> None:
    here = processes_with_descendants(os.getpid())
    (own,) = (process for process in here if process.pid == os.getpid())
    assert f"(process {os.getpid()}, since" in awaited_processes_text(
        [own]
    )  # others' orphans are below the first process of a container
    assert awaited_processes_text(here, without={process.pid for process in here}) == ""


def test_a_build_in_another_container_is_judged_by_what_it_says(tmp_path: Path) -> None:
    watch = BuildWatch(
        file=BuildEventFile(tmp_path / "none"),
        on_progress=lambda _: None,
        stall=StallDetector(60),
        same_container=False,
    )
    assert [watch.stall_description(now) for now in (0.0, 1.0, 30.0)] == [""] * 3
    assert watch.stall_description(130.0) == "no output of Bazel for 2 min"


DECLARED = 'http_archive(name = "eigen_archive", url = "https://github.com/libeigen/eigen/archive/3.4.0.zip")'


@pytest.fixture
def step_folder(tmp_path: Path) -> Path:
    work = tmp_path / ENGINE_FOLDER / "rattler-build_a" / "work"
    work.mkdir(parents=True)
    (work / "WORKSPACE").write_text(DECLARED)
    return tmp_path


def test_the_repositories_of_a_step_are_recorded(step_folder: Path, tmp_path: Path) -> None:
    watch.write_repository_record(tmp_path / "without")
    assert watch.read_repository_record(tmp_path / "without") == []
    watch.write_repository_record(step_folder)
    (repository,) = watch.read_repository_record(step_folder)
    assert (repository["name"], repository["url"]) == (
        "eigen_archive",
        "https://github.com/libeigen/eigen/archive/3.4.0.zip",
    )


def test_a_source_beyond_the_limits_is_a_line_in_the_log(
    step_folder: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    def refuse(_: object) -> None:
        raise UnsafeTemplate("it needs more than 10 s")

    monkeypatch.setattr(bazel_repositories, "external_repositories", refuse)
    watch.write_repository_record(step_folder)
    assert "not recorded: it needs more than 10 s" in capsys.readouterr().out
    assert watch.read_repository_record(step_folder) == []


def test_of_several_steps_the_first_repository_of_a_name_counts() -> None:
    own, of_compile = [{"name": "a", "version": "1"}], [{"name": "a", "version": "2"}, {"name": "b", "version": "3"}]
    assert watch.merged_repositories(own, of_compile) == [*own, of_compile[1]]


# A stand-in for the client: it reports an interrupt as Bazel does, by exit code 8, and ends by itself later.
CLIENT = """\
#!/bin/bash
trap 'echo "$1 interrupted" >>"$REPORT"; exit 8' INT
echo "$1 began" >>"$REPORT"
for _ in {1..18000}; do sleep 0.05; [ -e "$REPORT.$1" ] && exit 0; done
"""


@pytest.mark.processes
@pytest.mark.skipif(not process_table.has_proc_files(), reason="processes are read from /proc")
def test_bazels_client_is_interrupted_and_its_shutdown_is_not(tmp_path: Path) -> None:
    client, report = tmp_path / "bazel", tmp_path / "report"
    client.write_text(CLIENT)
    client.chmod(0o755)
    script = tmp_path / "script"
    calls = f"bazel() {{ (exec -a bazel bash {client} $1); }}\ntrap 'bazel shutdown' EXIT\nbazel build\n"
    build = f"{calls}echo $? >>$REPORT\nwait\n"
    script.write_text(watch.interrupt_bazel_lines(tmp_path / "stop") + build)
    process = subprocess.Popen(("bash", str(script)), env={"REPORT": str(report), "PATH": "/usr/bin:/bin"})
    waiting.until(lambda: report.exists() and "build began" in report.read_text(), "the build began", process)
    (tmp_path / "stop").touch()
    waiting.until(lambda: "shutdown began" in report.read_text(), "the shutdown began", process)
    (tmp_path / "report.shutdown").touch()
    assert process.wait(timeout=waiting.CEILING) == 0
    assert report.read_text().split("\n")[:4] == ["build began", "build interrupted", "8", "shutdown began"]
    assert "shutdown interrupted" not in report.read_text()


@pytest.mark.processes
def test_the_lines_hold_neither_the_scripts_output_nor_its_wait(tmp_path: Path) -> None:
    script = f"set -eux\n{watch.interrupt_bazel_lines(tmp_path / 'stop')}wait\necho done\n"
    ended = subprocess.run(("bash", "-c", script), capture_output=True, text=True, timeout=waiting.CEILING, check=True)
    assert ended.stdout == "done\n"
