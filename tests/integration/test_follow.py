"""A compile followed by its events: progress, a standstill, its end, in the view, the log and the report.

The compile step replays the event file of a real build by Bazel, and waits in the middle of it.
"""

from __future__ import annotations

import json
import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

pytestmark = pytest.mark.sampled

ROOT = Path(__file__).parents[2]
FIXTURES = ROOT / "tests" / "fixtures"
CONFIG = "linux_64_cuda_compiler_versionNoneinterpreter3.11"
REPLAY = """\
mkdir -p dist
echo "compiled for CUDA $cuda_compiler_version with $(cat greeting.txt)" >dist/small.txt
head -n 25 "$RECIPE_DIR/events.json" >"$BAZEL_BUILD_EVENTS"
read -r _ <"{go_on}" # nothing runs meanwhile
cp "$RECIPE_DIR/events.json" "$BAZEL_BUILD_EVENTS"
echo "compiling with $interpreter is over"
"""


@pytest.fixture
def feedstock(tmp_path: Path) -> Path:
    """The small feedstock, whose compile replays Bazel's events and waits until somebody writes into ``go-on``."""
    root = Path(shutil.copytree(FIXTURES / "small-feedstock", tmp_path / "small-feedstock"))
    shutil.copy(FIXTURES / "bazel-events" / "again.json", root / "recipe" / "events.json")
    os.mkfifo(tmp_path / "go-on")  # kiln refuses pipes in a feedstock
    (root / "recipe" / "build.sh").write_text(REPLAY.replace("{go_on}", str(tmp_path / "go-on")))
    return root


def test_a_stalled_compile_is_reported_and_continues(feedstock: Path) -> None:
    words = ("build", CONFIG, "--container", "none", "--stall", "0.03", "--json")
    run = (sys.executable, "-m", "kiln", "-C", str(feedstock), *words)
    with subprocess.Popen(run, cwd=ROOT, text=True, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        assert process.stderr is not None
        said = []
        for line in process.stderr:
            said.append(line)
            if "stalled at" in line:
                break
        assert "at work: " in said[-1], "".join(said)
        (feedstock.parent / "go-on").write_text("now\n")
        out, err = process.communicate()
    assert process.returncode == 0, err
    assert "compiled 6 actions: 6 from the cache, 0 run, 2 internal" in err
    (config,) = json.loads(out)["configs"]
    (step,) = (step for step in config["steps"] if step["title"] == "compile")
    assert (step["compile"]["hits"], step["compile"]["misses"]) == (6, 0)
    log = Path(config["log"]).read_text()
    assert "stalled at" in log
    assert "Bazel: 6 actions: 6 from the cache, 0 run, 2 internal" in log
