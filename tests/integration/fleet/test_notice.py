"""The notice to a spot worker, read from its metadata."""

from __future__ import annotations

import threading
from typing import TYPE_CHECKING

import pytest

from kiln.build.job.messages import termination_time_in_notice
from tests.instance_metadata import MetadataServer
from tests.playbook_programs import WORKER_PROGRAMS, load

if TYPE_CHECKING:
    from collections.abc import Iterator
    from pathlib import Path

pytestmark = pytest.mark.sampled


@pytest.fixture
def metadata(tmp_path: Path) -> Iterator[MetadataServer]:
    server = MetadataServer(("127.0.0.1", 0), tmp_path / "announced")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    yield server
    server.shutdown()
    thread.join()
    server.server_close()


def test_a_worker_records_the_notice_of_its_provider_and_reports_it_with_its_jobs(
    metadata: MetadataServer, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job = load(f"{WORKER_PROGRAMS}/kiln-job")
    for name in ("NOTICE", "JOBS", "MEMORY", "METADATA"):
        monkeypatch.setattr(job, name, tmp_path / name.lower())
    monkeypatch.setattr(job, "active", lambda _: True)
    (tmp_path / "jobs" / "config").mkdir(parents=True)
    job.begun("config")
    assert job.main(["notice"]) == 0, "another provider has no metadata of this kind"
    (tmp_path / "metadata").write_text(f"http://127.0.0.1:{metadata.server_port}\n")
    assert job.main(["notice"]) == 0, "no notice yet"
    assert job.state_of("config")["reclaimed_at"] is None
    metadata.notice.write_text('{"action": "terminate", "time": "2026-11-21T08:22:00Z"}')
    assert job.main(["notice"]) == 0
    assert job.state_of("config")["reclaimed_at"] == 1795249320.0
    (tmp_path / "notice").unlink()
    metadata.notice.write_text("not JSON")
    with pytest.raises(OSError, match="invalid notice"):
        job.main(["notice"])
    assert job.state_of("config")["reclaimed_at"] is None


def test_a_build_is_told_when_its_worker_ends_and_one_that_cannot_be_continued_is_stopped(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    job, jobs = load(f"{WORKER_PROGRAMS}/kiln-job"), tmp_path / "jobs"
    stopped: list[str] = []
    monkeypatch.setattr(job, "JOBS", jobs)
    monkeypatch.setattr(job.shutil, "chown", lambda *_: None)
    monkeypatch.setattr(job, "stop", stopped.append)
    (jobs / "config").mkdir(parents=True)
    (jobs / "config" / "environment").write_text("KILN_FLEET_KEY=a\n")
    assert job.main(["save", "config", "1795249320"]) == 0
    assert (stopped, (jobs / "config" / "notice").exists()) == (["config"], False)
    (jobs / "config" / "environment").write_text(f"KILN_JOB_OPTIONS=--notice {jobs}/config/notice\n")
    (tmp_path / "victim").write_text("of another user")
    (jobs / "config" / "notice").symlink_to(tmp_path / "victim")
    assert job.main(["save", "config", "1795249320"]) == 0
    assert termination_time_in_notice((jobs / "config" / "notice").read_text()) == 1795249320.0
    assert (stopped, (tmp_path / "victim").read_text()) == (["config"], "of another user")
    (jobs / "config" / "handover").symlink_to(tmp_path)
    assert job.main(["clear", "config"]) == 0
    assert {path.name for path in (jobs / "config").iterdir()} == {"environment"}
    assert (tmp_path / "victim").exists()
    assert job.main(["save", "config"]) == 2
