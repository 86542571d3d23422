"""Event files of real builds, by Bazel 4.2.3: their actions, caches and failures, with times."""

from __future__ import annotations

import base64
import gzip
import json
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.base.errors import UsageError
from kiln.build.bazel import events
from kiln.build.bazel.events import (
    BazelBuildState,
    parse_critical_and_queue_seconds,
    parse_process_counts,
    total_action_seconds,
)
from kiln.state.results import CompileReport, sum_of_reports

EVENTS = Path(__file__).parents[3] / "fixtures" / "bazel-events"


def built(name: str) -> BazelBuildState:
    """A build whose whole event file was read."""
    build = BazelBuildState()
    for line in (EVENTS / f"{name}.json").read_bytes().splitlines():
        build.handle_event_line(line)
    return build


def test_a_first_build_runs_all_and_a_second_finds_all() -> None:
    first, again = built("first"), built("again")
    assert first.compile_report() == CompileReport(
        hits=0, misses=6, internal=2, seconds=15.053, work=None, critical=1.44, queued=0.0
    )
    assert again.compile_report() == CompileReport(
        hits=6, misses=0, internal=2, seconds=9.276, work=None, critical=0.26, queued=0.0
    )
    assert (first.done, first.total) == (8, 8)
    assert str(again.compile_report()) == "6 actions: 6 from the cache, 0 run, 2 internal"


def test_a_newer_bazel_counts_in_its_metrics() -> None:
    """As Bazel 7 writes it: build_event_stream.proto in its sources, ActionSummary.RunnerCount."""
    counts = {"total": 12, "disk cache hit": 5, "remote cache hit": 1, "internal": 2, "processwrapper-sandbox": 4}
    rows = [{"name": name, "count": count, "execKind": "Local"} for name, count in counts.items()]
    metrics = {"actionSummary": {"runnerCount": rows}, "timingMetrics": {"wallTimeInMs": "2500"}}
    build = BazelBuildState()
    build.handle_event_line(json.dumps({"id": {"buildMetrics": {}}, "buildMetrics": metrics}).encode())
    assert build.compile_report() == CompileReport(hits=6, misses=4, internal=2, seconds=2.5)


def test_remote_actions_their_queue_and_the_critical_path() -> None:
    """As Bazel 4.2 wrote it on two workers."""
    path = (
        "Critical Path: 10.00s, Remote (99.94% of the time): [parse: 1.20%, queue: 70.94%, other: 3.79%]\n"
        "  9.82s, Remote (99.96% of the time): [parse: 1.23%, queue: 72.92%] action 'Executing genrule //:slow4'\n"
    )
    logs = {"process stats": "11 processes: 1 internal, 1 processwrapper-sandbox, 9 remote.", "critical path": path}
    log = [{"name": name, "contents": base64.b64encode(text.encode()).decode()} for name, text in logs.items()]
    build = BazelBuildState()
    build.handle_event_line(json.dumps({"id": {"buildToolLogs": {}}, "buildToolLogs": {"log": log}}).encode())
    report = build.compile_report()
    assert report is not None
    assert (report.misses, report.remote, report.critical) == (10, 9, 10.0)
    assert report.queued == pytest.approx(7.094)
    assert str(report) == (
        "10 actions: 0 from the cache, 10 run (9 remotely, 1 here), 1 internal; "
        "critical path 10 s, 7 s of it in the queue"
    )
    twice = sum_of_reports([report, report])
    assert (twice.remote, twice.critical, twice.work) == (18, 20.0, None)
    assert twice.queued == pytest.approx(14.188)
    assert parse_critical_and_queue_seconds("Critical Path: 0.35s") == (0.35, None)
    assert parse_critical_and_queue_seconds("no such text") == (None, None)
    counts = parse_process_counts("31,207 processes: 31,000 disk cache hit, 207 local.")
    assert counts == {"disk cache hit": 31000, "local": 207}


def test_a_failed_action_is_told_with_its_target_and_its_kind() -> None:
    (failure,) = built("failed").failures
    assert str(failure) == "CppCompile of //:bad ended with exit code 1"


def test_what_an_action_said_is_read_from_where_bazel_put_it(tmp_path: Path) -> None:
    said = tmp_path / "std err"
    noise = "1795.1: src/main/tools/linux-sandbox.cc:233: child exited normally"
    said.write_text(f"{noise}\nbad.cc:1:21: error: 'nothing' was not declared\n")
    build = BazelBuildState()
    action = {"type": "CppCompile", "label": "//:bad", "exitCode": 1, "stderr": {"uri": said.as_uri()}}
    build.handle_event_line(json.dumps({"id": {"actionCompleted": {}}, "action": action}).encode())
    assert [failure.text for failure in build.failures] == ["bad.cc:1:21: error: 'nothing' was not declared"]


def test_a_build_that_never_begins_leaves_its_complaints() -> None:
    build = built("refused")
    assert any("Connection refused" in complaint for complaint in build.complaints)
    assert build.compile_report() is None


def test_the_time_of_all_actions_comes_from_the_profile(tmp_path: Path) -> None:
    profile = tmp_path / "command.profile.gz"
    rows = [("action processing", 1_500_000), ("action processing", 500_000), ("skyframe evaluator", 9_000_000)]
    events = [{"cat": cat, "dur": duration, "ph": "X"} for cat, duration in rows]
    profile.write_bytes(gzip.compress(json.dumps({"traceEvents": events}).encode()))
    assert total_action_seconds(profile) == 2.0
    profile.write_bytes(b"no gzip")
    assert total_action_seconds(profile) is None


NAMES = ("id", "progress", "actionCompleted", "action", "buildMetrics", "buildToolLogs", "stderr", "log")


KEYS = st.sampled_from(NAMES)


JSON = st.recursive(st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(KEYS, inner))


@given(st.lists(JSON.map(lambda value: json.dumps(value).encode()) | st.binary()))
def test_no_line_of_a_broken_file_stops_the_reading(lines: list[bytes]) -> None:
    build = BazelBuildState()
    for line in lines:
        build.handle_event_line(line)
    build.handle_event_line(b'{"id": {"started": {}}, "started": {"serverPid": 7}}')
    assert build.server == 7


PEM = "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n"


def folder(place: Path, **files: str) -> Path:
    place.mkdir()
    for name, text in files.items():
        path = place / name.replace("_", ".")
        path.write_text(text)
        path.chmod(0o600)
    return place


def test_all_files_are_in_the_variable_and_its_secrets_are_masked_one_by_one(tmp_path: Path) -> None:
    headers = "authorization: Bearer t0ken:1\n\nx-api-key:  k3y\n"
    place = folder(tmp_path / "c", ca_pem=PEM, client_pem=PEM, client_key=f"{PEM}k", headers=headers)
    variable = events.encode_credentials_folder(place)
    assert json.loads(base64.b64decode(variable)) == {
        "ca": PEM,
        "certificate": PEM,
        "key": f"{PEM}k",
        "headers": [["authorization", "Bearer t0ken:1"], ["x-api-key", "k3y"]],
    }
    assert events.is_encoded_credentials(variable)
    assert not events.is_encoded_credentials(str(place))
    assert not events.is_encoded_credentials(base64.b64encode(b'{"token": "a"}').decode())
    assert events.secrets_in_encoded_credentials(variable) == ("Bearer t0ken:1", "k3y", "t0ken:1", f"{PEM}k")
    secrets = events.with_secrets_inside_credentials({events.CREDENTIALS: variable})
    assert set(secrets.values()) == {variable, "Bearer t0ken:1", "k3y", "t0ken:1", f"{PEM}k"}
    assert events.with_secrets_inside_credentials({"A": "b"}) == {"A": "b"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no files"),
        ({"notes_txt": "a"}, "unknown file notes.txt"),
        ({"client_pem": PEM}, "needs both or none"),
        ({"ca_pem": "s3cret"}, "is not a PEM file"),
        ({"headers": "x-key: a\ns3cret\n"}, "headers:2: not a header"),
        ({"headers": "x-key: a\x07s3cret\n"}, "headers:1: not a header"),
        ({"ca_pem": "s3cret" * 20_000}, "larger than"),
    ],
)
def test_invalid_files_are_refused_without_their_content(tmp_path: Path, files: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        events.encode_credentials_folder(folder(tmp_path / "c", **files))
    assert "s3cret" not in str(error.value)


def test_files_that_are_too_large_for_a_variable_together_are_refused(tmp_path: Path) -> None:
    large = 600 * PEM
    with pytest.raises(UsageError, match="too large together"):
        events.encode_credentials_folder(
            folder(tmp_path / "c", ca_pem=large, client_pem=large, client_key=large, headers="a: b")
        )
    variable = events.encode_credentials_folder(
        folder(tmp_path / "d", ca_pem=large, client_pem=large, client_key=large[:3000])
    )
    assert 90_000 < len(variable) < 1 << 17  # MAX_ARG_STRLEN of Linux


@pytest.mark.parametrize("name", ["headers", "client.key"])
def test_secrets_that_others_can_read_are_refused(tmp_path: Path, name: str) -> None:
    place = folder(tmp_path / "c", headers="a: b", client_key=PEM, client_pem=PEM, ca_pem=PEM)
    (place / "ca.pem").chmod(0o644)
    events.encode_credentials_folder(place)
    (place / name).chmod(0o640)
    with pytest.raises(UsageError, match="others can read") as error:
        events.encode_credentials_folder(place)
    assert error.value.hint == f"chmod 600 {place / name}"


def test_a_missing_folder_and_an_invalid_variable(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the folder of credentials"):
        events.encode_credentials_folder(tmp_path / "none")
    assert events.secrets_in_encoded_credentials("") == events.secrets_in_encoded_credentials("?") == ()
