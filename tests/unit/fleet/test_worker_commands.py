"""The jobs of a worker are resumed only if they build the same inputs."""

from __future__ import annotations

from kiln.fleet.worker_commands import job_settings, jobs_of


def test_jobs_of_other_inputs_are_left_out() -> None:
    status = {
        "one": {"state": "running", "key": "a"},
        "two": {"state": "ended", "key": "b"},
        "three": {"state": "ended"},
    }
    keys = {"one": "a", "two": "other", "three": "c"}
    assert jobs_of(status, keys) == {"one": "running", "three": "ended"}


def test_the_settings_of_a_job_hold_its_key() -> None:
    assert (job_settings("a1"), job_settings("")) == ("KILN_FLEET_KEY=a1\n", "")
