"""The output of a build for people and programs: its lines, JUnit's XML, runs, logs, the progress of a compile."""

from __future__ import annotations

import json
import os
import re
import shlex
import shutil
import signal
import subprocess
import sys
from pathlib import Path
from xml.etree import ElementTree as ET

import pytest

from kiln.base.errors import BuildFailed, Interrupted
from tests import warm
from tests.integration.matrix.helpers import CPU_311, CPU_312, HOLD, ROOT, kiln, replace, started, wait_for


def command(root: Path, *arguments: str) -> str:
    return warm.kiln("-C", str(root), *arguments, check=True).stdout


@pytest.mark.slow("a feedstock is built twice")
def test_a_failed_build_is_read_again_by_its_run_and_its_log(small: Path, tmp_path: Path) -> None:
    broken = 'if [ "$interpreter" = 3.12 ]; then echo "  no luck"; exit 3; fi\n'
    replace(small, "build.sh", "mkdir", f"{broken}mkdir")
    junit = tmp_path / "junit.xml"
    arguments = (CPU_311, CPU_312, "--container", "none", "--junit", str(junit))
    verbose = kiln(small, *arguments, "-v", sha="0123456789abcdef")
    assert verbose.returncode == BuildFailed.exit_code
    assert " |   no luck\n" in verbose.stderr
    assert re.search(r": compile \(\d/\d+\)\n", verbose.stderr), "the number of steps is known"
    report = json.loads(command(small, "report", "1", "--json", "--out", str(tmp_path / "run.html")))
    phases = {phase["name"] for step in report["configs"][0]["steps"] for phase in step["phases"]}
    assert {"download", "install", "script", "pack"} <= phases
    assert sum(report["phases"].values()) > 0
    page = (tmp_path / "run.html").read_text()
    assert "<pre>no luck</pre>" in page
    assert f"build {CPU_312} --container none" in page
    assert (tmp_path / "run-1.html").is_file()
    suites = {suite.get("name"): suite for suite in ET.parse(junit).getroot()}
    assert [suites[config].get("failures") for config in (CPU_311, CPU_312)] == ["0", "1"]
    (failure,) = suites[CPU_312].iter("failure")
    assert "no luck" in (failure.text or "")
    quiet = kiln(small, *arguments, "--quiet")
    states = [line for line in quiet.stderr.splitlines() if "running" in line or "▸" in line]
    assert states == []
    assert "run 2 ended: 1 failed, 1 cached" in quiet.stderr
    error, *commands = quiet.stderr.splitlines()[-3:]
    assert error == f"error: 1 of 2 configs not built: {CPU_312}"
    repeat, shell = (shlex.split(line.replace("try:", "")) for line in commands)
    assert repeat[0].rpartition("/")[2] == "kiln"
    assert repeat[1:] == ["-C", str(small), "build", "--failed", "--container", "none"]
    assert shell == [repeat[0], "-C", str(small), "build", CPU_312, "--debug", "--container", "none"]
    again = subprocess.run(repeat, cwd=ROOT, text=True, capture_output=True, check=False)
    assert again.returncode == BuildFailed.exit_code
    assert "run 3 ended: 1 failed" in again.stderr
    _, second, first = json.loads(command(small, "runs", "--json"))
    assert (first["commit"], first["verdict"]) == ("0123456789abcdef", "failed")
    assert second["configs"] == {CPU_311: "cached", CPU_312: "failed"}
    assert "  no luck\n" in command(small, "log", CPU_312)
    log = json.loads(command(small, "log", CPU_311, "--json"))
    assert log["run"] == 1, "in the second run it was cached"


@pytest.mark.slow("a feedstock is built twice")
@pytest.mark.sampled
def test_an_interrupted_build_has_junits_xml(small: Path, tmp_path: Path) -> None:
    replace(small, "build.sh", "mkdir", f"{HOLD.strip()}\nmkdir")
    (small / ".ci_support" / "hold").touch()
    with started(small, CPU_312, "--container", "none", "--junit", str(tmp_path / "junit.xml")) as process:
        wait_for(process, ": compile")
        process.send_signal(signal.SIGINT)
        process.wait()
    assert process.returncode == Interrupted.exit_code
    (suite,) = ET.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("name"), suite.get("errors")) == (CPU_312, "1")


REPLAY = """\
mkdir -p dist
echo "compiled for CUDA $cuda_compiler_version with $(cat greeting.txt)" >dist/small.txt
head -n 25 "$RECIPE_DIR/events.json" >"$BAZEL_BUILD_EVENTS"
read -r _ <"{go_on}" # nothing runs meanwhile
cp "$RECIPE_DIR/events.json" "$BAZEL_BUILD_EVENTS"
echo "compiling with $interpreter is over"
"""


@pytest.fixture
def replaying(small: Path) -> Path:
    """The small feedstock, whose compile replays Bazel's events and waits until somebody writes into ``go-on``."""
    shutil.copy(ROOT / "tests" / "fixtures" / "bazel-events" / "again.json", small / "recipe" / "events.json")
    os.mkfifo(small.parent / "go-on")  # kiln refuses pipes in a feedstock
    (small / "recipe" / "build.sh").write_text(REPLAY.replace("{go_on}", str(small.parent / "go-on")))
    return small


@pytest.mark.sampled
def test_a_stalled_compile_is_reported_and_continues(replaying: Path) -> None:
    words = ("build", CPU_311, "--container", "none", "--stall", "0.03", "--json")
    run = (sys.executable, "-m", "kiln", "-C", str(replaying), *words)
    with subprocess.Popen(run, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "stalled at" in line:
                break
        assert "at work: " in said[-1], "".join(said)
        (replaying.parent / "go-on").write_text("now\n")
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "compiled 6 actions: 6 from the cache, 0 run, 2 internal" in err
    (config,) = json.loads(out)["configs"]
    (step,) = (step for step in config["steps"] if step["title"] == "compile")
    assert (step["compile"]["hits"], step["compile"]["misses"]) == (6, 0)
    log = Path(config["log"]).read_text()
    assert "stalled at" in log
    assert "Bazel: 6 actions: 6 from the cache, 0 run, 2 internal" in log
