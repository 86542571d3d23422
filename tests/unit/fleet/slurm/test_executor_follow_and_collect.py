"""A build that is followed ends by its stored result, or by what Slurm lists once a result can no longer come."""

from __future__ import annotations

import json
from types import SimpleNamespace
from typing import TYPE_CHECKING, Any, cast

from kiln.fleet.protocol import BuildFinished, FollowBuild
from kiln.fleet.slurm.executor import BuildFollower
from kiln.fleet.slurm.site import QueuedJob
from tests.unit.fleet.slurm.test_attempts import CONFIG, attempt_of, site_of

if TYPE_CHECKING:
    from pathlib import Path

COMPLETED = QueuedJob(id="41", state="COMPLETED", name="w", nodes="n1", comment=(), folder="", reason="None")
ENDED = {"state": "ended", "exit_code": 0, "ended": 7.0}


def test_a_result_that_comes_after_the_state_was_read_is_waited_for(tmp_path: Path) -> None:
    """Slurm lists the job as completed by then; without the result, the config would be built again."""
    attempt = attempt_of(site_of(tmp_path))
    session: Any = SimpleNamespace(ended=set(), reasons={}, site=SimpleNamespace(sizes={}))
    command = FollowBuild(worker="w", config=CONFIG, log=tmp_path / "log")
    follower = BuildFollower(session, command, attempt, cast("Any", None))
    (attempt.folder / "state.json").write_text(json.dumps(ENDED))
    assert follower._finished_event({"state": "running"}, COMPLETED, answered=True) is None
    assert follower._finished_event(ENDED, COMPLETED, answered=True) == BuildFinished(
        worker="w", config=CONFIG, exit_code=0, reason="", at=7.0
    )
