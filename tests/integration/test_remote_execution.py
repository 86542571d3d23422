"""A compile whose actions run on the workers of a remote executor: BuildGrid, as far as kiln and Bazel talk to it."""

from __future__ import annotations

import json
import os
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import BuildFailed
from tests import remote_executor, small_tensorflow, warm
from tests.integration.test_compile import CHAIN_CONFIG, bazel_image, write_feedstock

if TYPE_CHECKING:
    from pathlib import Path

__all__ = ["bazel_image"]
pytestmark = [
    pytest.mark.trial,
    pytest.mark.slow("a database, a server and a compile in a container"),
    pytest.mark.needs("docker", "mmdebstrap", "apt-get", "runuser"),
    pytest.mark.skipif(remote_executor.programs() is None, reason="PostgreSQL is not installed"),
    pytest.mark.skipif(os.geteuid() != 0, reason="the server of the database runs as a user of its own"),
]
ACTIONS = 8
BUILD = """\
set -e
bazel() { command bazel --output_user_root="$SRC_DIR/bazel" "$@"; }
trap 'bazel shutdown' EXIT
bazel build --remote_executor="$BAZEL_REMOTE_EXECUTOR" --remote_default_exec_properties=OSFamily=linux \\
    --remote_retries=1 --spawn_strategy=remote --build_event_json_file="$BAZEL_BUILD_EVENTS" //:all
mkdir dist
cp bazel-bin/*.txt dist
"""
RULES = f"""\
[genrule(name = "part%d" % part, outs = ["part%d.txt" % part], cmd = "echo %d >$@" % part) for part in range({ACTIONS})]
"""


@pytest.mark.usefixtures("bazel_image")
def test_all_actions_run_on_the_executors_worker_and_without_the_executor_the_build_says_so(tmp_path: Path) -> None:
    def build(name: str, url: str) -> tuple[int, dict[str, Any], str]:
        write_feedstock(tmp_path / name, BUILD, RULES)
        words = ("-C", str(tmp_path / name), "build", CHAIN_CONFIG, "--container", "docker", "--json")
        ended = warm.kiln(*words, "--remote-executor", url, timeout=600)
        return ended.returncode, json.loads(ended.stdout or "{}"), ended.stderr

    place = small_tensorflow.STORE / f"buildgrid-{remote_executor.REQUIREMENTS[0]}"
    with remote_executor.served(tmp_path, place) as executor:
        code, report, said = build("first", executor.url)
        assert code == 0, said
        (compiled,) = (step["compile"] for step in report["configs"][0]["steps"] if step["title"] == "compile")
        assert (compiled["hits"], compiled["remote"]) == (0, ACTIONS), compiled
        assert sorted(path.rpartition("/")[2] for path in executor.outputs()) == [
            f"part{number}.txt" for number in range(ACTIONS)
        ]
        _, report, _ = build("second", executor.url)
        (compiled,) = (step["compile"] for step in report["configs"][0]["steps"] if step["title"] == "compile")
        assert (compiled["hits"], compiled["remote"]) == (ACTIONS, 0), "the executor's cache knows them"
        assert len(executor.outputs()) == ACTIONS
        executor.server.kill()
        code, _, said = build("third", executor.url)
        assert code == BuildFailed.exit_code
        assert executor.url.partition("//")[2] in said or "UNAVAILABLE" in said, said
