"""Actions that wait, on one, two and four workers of a remote executor: two cores can show that more workers save time.

Debian's Bazel runs in a container with the flags that the recipe's script makes; each build is of new actions. All of
them are ready at once, so that the critical path is the time until the last one has ended.
"""

from __future__ import annotations

import subprocess
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING

from kiln.build.bazel import events
from kiln.build.bazel.watch import BuildEventFile
from tests import remote_execution, shared_inputs, small_tensorflow
from tests.bench.timing import ROOT
from tests.remote_execution import flags

if TYPE_CHECKING:
    from kiln.state.results import CompileReport
    from tests.bench.timing import Row
    from tests.remote_execution import Pool

ACTIONS, SECONDS = 16, 3
WORKERS = (1, 2, 4)
BUILD = f"""\
[genrule(name = "w%d" % n, outs = ["%d" % n], cmd = "sleep {SECONDS}; echo WORKERS >$@") for n in range({ACTIONS})]
"""


def rows() -> list[Row]:
    """Return the critical path, from the first action to the end of the last, with more and more workers."""
    small_tensorflow.ready(shared_inputs.docker_engine())
    reports: dict[int, CompileReport] = {}
    with remote_execution.served() as pool, tempfile.TemporaryDirectory(prefix="kiln-bench-remote-") as scratch:
        for workers in WORKERS:
            pool.start_workers(workers - len(pool.workers), "OSFamily=Linux")
            reports[workers] = built(pool, Path(scratch) / str(workers), workers)
    return [
        (
            f"{report.remote} actions of {SECONDS} s, {workers} workers, {report.queued or 0:.1f} s of it in the queue",
            f"{report.critical or 0:.1f} s",
            f"{2 * ACTIONS * SECONDS / workers:.0f} s",
        )
        for workers, report in reports.items()
    ]


def built(pool: Pool, folder: Path, workers: int) -> CompileReport:
    """Build all actions, and return what Bazel says of them."""
    folder.mkdir()
    (folder / "WORKSPACE").touch()
    (folder / "BUILD").write_text(BUILD.replace("WORKERS", str(workers)))
    flags.write(folder, pool.url, events.encode_credentials_folder(pool.credentials))
    words = ("docker", "run", "--rm", "--network", "host", "--volume", f"{folder}:{folder}", "--workdir", str(folder))
    script = (
        f"bazel --output_user_root=/tmp/out --bazelrc={folder}/bazelrc build --build_event_json_file=events.json :all"
        " && bazel --output_user_root=/tmp/out shutdown"
    )
    ended = subprocess.run(
        (*words, small_tensorflow.IMAGE, "sh", "-c", script), cwd=ROOT, capture_output=True, text=True, check=False
    )
    assert ended.returncode == 0, ended.stderr
    file = BuildEventFile(folder / "events.json")
    file.read_new_events()
    report = file.compile_report()
    assert report is not None
    return report
