"""A compile over a chain of jobs for real: Bazel in Docker, stopped by actions, by a kill and by time, on new machines.

Each machine is a copy of a feedstock whose actions write their names to a list when they begin.
"""

from __future__ import annotations

import os
import signal
import subprocess
import sys
from dataclasses import dataclass
from pathlib import Path

import pytest

from kiln.base import files
from kiln.base.errors import BudgetSpent, MissingTool
from kiln.image import apt, worker
from kiln.state.store import cache, handover
from kiln.state.store.layout import ArtifactLayout
from tests import shared_inputs, small_tensorflow, waiting

pytestmark = [pytest.mark.trial, pytest.mark.needs("docker", "mmdebstrap", "apt-get", "dpkg-deb")]

ROOT = Path(__file__).parents[2]
CONFIG, ACTIONS, LIST = "linux_64_", 8, "begun"
META = """\
package: {name: counted, version: '1'}
source: {path: source}
outputs:
  - name: counted
    script: pack.sh
"""
BUILD = f"""\
set -e
bazel() {{ command bazel --output_user_root="$SRC_DIR/bazel" "$@"; }}
trap 'bazel shutdown' EXIT
bazel build --disk_cache="$BAZEL_DISK_CACHE" --build_event_json_file="$BAZEL_BUILD_EVENTS" --jobs=1 \\
    --spawn_strategy=local --action_env=LIST="$BAZEL_DISK_CACHE/{LIST}" //:all
mkdir dist
cp bazel-bin/*.txt dist
"""
# While the file "begun.wait" exists, no action ends.
COMMAND = "echo part%d >>$$LIST; sleep 0.5; while [ -e $$LIST.wait ]; do sleep 0.1; done; echo %d >$@"
RULES = f"""\
[genrule(
    name = "part%d" % part,
    outs = ["part%d.txt" % part],
    cmd = "{COMMAND}" % (part, part),
) for part in range({ACTIONS})]
"""


@dataclass(frozen=True, slots=True)
class Machine:
    """A machine with a checkout of the feedstock, and nothing that another one has made but the folder of the chain."""

    root: Path
    chain: Path

    def words(self, *more: str) -> tuple[str, ...]:
        """The command of each job."""
        kiln = (sys.executable, "-m", "kiln", "-C", str(self.root), "build", CONFIG, "--container", "docker", "-q")
        return (*kiln, "--handover", str(self.chain), *more)

    def build(self, *more: str) -> subprocess.CompletedProcess[str]:
        """Run a job to its end."""
        return subprocess.run(
            self.words(*more), cwd=ROOT, env=environment(), text=True, capture_output=True, check=False
        )

    def begun(self) -> list[str]:
        """The actions that began here, in order."""
        lists = list((self.root / "build_artifacts" / "compile-cache").glob(f"*/{LIST}"))
        return lists[0].read_text().split() if lists else []

    def slow_down(self) -> None:
        """Have no action finish here any more."""
        (folder,) = (self.root / "build_artifacts" / "compile-cache").glob("*/")
        (folder / f"{LIST}.wait").touch()

    def kill_after(self, actions: int) -> None:
        """Kill a job when some actions have begun, and wait until its processes and containers have ended."""
        job = subprocess.Popen(self.words(), cwd=ROOT, env=environment(), stderr=subprocess.DEVNULL)
        waiting.until(lambda: len(self.begun()) >= actions, f"{actions} actions", job)
        job.send_signal(signal.SIGKILL)
        job.wait()
        lock = ArtifactLayout(root=self.root / "build_artifacts").lock_file(CONFIG)
        with cache.hold_lock(lock, seconds=60):
            pass

    def package(self) -> str:
        """The hash of the package."""
        (package,) = (self.root / "build_artifacts").glob("*/counted-*.conda")
        return files.sha256(package)


def environment() -> dict[str, str]:
    return {**os.environ, "SOURCE_DATE_EPOCH": "1700000000"}


def machine(folder: Path, chain: Path) -> Machine:
    contents = {
        "recipe/meta.yaml": META,
        "recipe/build.sh": BUILD,
        "recipe/pack.sh": 'cp "$SRC_DIR"/dist/*.txt "$PREFIX"\n',
        "recipe/source/WORKSPACE": "",
        "recipe/source/BUILD": RULES,
        "conda-forge.yml": "provider: {linux_64: github_actions}\n",
        f".ci_support/{CONFIG}.yaml": f"docker_image:\n- {small_tensorflow.IMAGE}\ntarget_platform:\n- linux-64\n",
    }
    for name, text in contents.items():
        files.write_text(folder / name, text)
    return Machine(folder, chain)


@pytest.fixture(scope="module")
def bazel_image() -> None:
    """Have the image with Debian's Bazel."""
    try:
        engine = shared_inputs.docker_engine()
    except MissingTool as missing:
        pytest.skip(missing.what)
    if not apt.sources_list_lines("trixie", env=os.environ):
        pytest.skip("this machine's apt knows no mirror of Debian")
    recipe = worker.base_image_recipe("trixie", (*small_tensorflow.BAZEL, *small_tensorflow.FINDERS))
    shared_inputs.provide_image(engine, recipe, small_tensorflow.IMAGE)


@pytest.mark.usefixtures("bazel_image")
def test_a_chain_of_stopped_and_killed_jobs_runs_no_finished_action_again(tmp_path: Path) -> None:
    chain = tmp_path / "chain"
    first, second, third = (machine(tmp_path / name, chain) for name in ("first", "second", "third"))
    at_once = machine(tmp_path / "at-once", tmp_path / "of-its-own")
    in_one_go = subprocess.Popen(
        at_once.words(), cwd=ROOT, env=environment(), stdout=subprocess.DEVNULL, stderr=subprocess.DEVNULL
    )

    ended = first.build("--budget", "2 actions")
    assert ended.returncode == BudgetSpent.exit_code, ended.stderr
    left = [(path.name, files.sha256(path)) for path in sorted(chain.iterdir())]

    second.kill_after(2)
    assert [(path.name, files.sha256(path)) for path in sorted(chain.iterdir())] == left
    by_the_killed = second.begun()

    second.slow_down()
    ended = second.build("--budget", "15s")
    assert ended.returncode == BudgetSpent.exit_code, ended.stderr
    by_the_stopped = second.begun()[len(by_the_killed) :]

    ended = third.build("--budget", "10m")
    assert ended.returncode == 0, ended.stderr
    links = [first.begun(), by_the_killed, by_the_stopped, third.begun()]
    # A stopped job's last action was not finished, or not for certain.
    finished = [name for link in links[:-1] for name in link[:-1]] + links[-1]
    assert sorted(finished) == sorted(set(finished)), links
    assert {name for link in links for name in link} == {f"part{number}" for number in range(ACTIONS)}
    assert first.begun()[:-1]
    assert third.begun()

    record = handover.read_handover_record(chain)
    assert record is not None
    assert [name for name, _ in record.packages]
    assert [path.name for path in chain.iterdir()] == [handover.RECORD]

    assert in_one_go.wait(timeout=120) == 0
    assert sorted(at_once.begun()) == sorted(f"part{number}" for number in range(ACTIONS))
    assert third.package() == at_once.package()

    again = machine(tmp_path / "again", chain).build()
    assert (again.returncode, again.stdout) == (0, "")
    assert "is already finished: 1 package after" in again.stderr
