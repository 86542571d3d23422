"""The tests of built packages on a worker, such as one with a GPU, which is terminated however they end."""

from __future__ import annotations

import contextlib
import dataclasses
import json
import shlex
import threading
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln import files
from kiln.errors import ProvisionRefused, TestsFailed, WorkersLost
from kiln.fleet import run as fleet
from kiln.fleet import stale_processes
from kiln.fleet.executor_state import NO_CONNECTION, PlaybookSession
from kiln.model.fleet import FleetRun, WorkerRecord, WorkerState

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    from kiln.fleet.playbook_runner import PlaybookSite
    from kiln.ledger.fleet import FleetLedger
    from kiln.model.fleet import MachineType

PROJECT = "/var/lib/kiln/project"  # kiln_home of the playbooks
ARTIFACTS = f"{PROJECT}/build_artifacts"
SECONDS = 7200.0  # for the tests of a config that has no time limit
RENEWALS = 12  # of a lease during its length
REASON_LENGTH = 2000


@dataclass(frozen=True, slots=True, kw_only=True)
class ConfigTestResult:
    """The tests of a config's packages: ``reports`` are those of ``kiln test --json``, ``exit_code`` is kiln's."""

    config: str
    exit_code: int
    seconds: float
    reports: tuple[Mapping[str, Any], ...] = ()
    reason: str = ""


@dataclass(frozen=True, slots=True, kw_only=True)
class WorkerTestInputs:
    """What is tested, and where: ``packages`` are files below ``channel``, by config.

    With ``gpu`` the worker must have a GPU, and the tests are refused without one. ``limits`` are the seconds that
    the tests of configs may take. ``lease`` is the seconds after which an abandoned worker shuts down.
    """

    run: str
    site: PlaybookSite
    machine_type: MachineType
    channel: Path
    packages: Mapping[str, Sequence[Path]]
    limits: Mapping[str, float]
    gpu: bool
    spot: bool
    lease: float

    @property
    def worker(self) -> str:
        """The name of the worker."""
        return f"kiln-{self.run}-1"

    def argv(self, config: str) -> str:
        """Return the command on the worker that tests a config's packages."""
        python = f"{PROJECT}/.venv/bin/python"
        paths = [f"{ARTIFACTS}/{path.relative_to(self.channel)}" for path in self.packages[config]]
        words = (python, "-I", "-m", "kiln", "-C", PROJECT, "test", "--json", *(["--gpu"] if self.gpu else []), *paths)
        return shlex.join(("sudo", "runuser", "-u", "kiln", "--", "env", "HOME=/var/lib/kiln", *words))


def execute(
    tests: WorkerTestInputs, ledger: FleetLedger, on_line: Callable[[str], None]
) -> tuple[ConfigTestResult, ...]:
    """Test the packages of all configs on a worker, and terminate it, however that ends.

    Raises:
        ProvisionRefused: when the provider has no such worker.
        WorkersLost: when it could not be prepared, or was lost.
        TeardownIncomplete, MachinesUnknown, CredentialsRefused: when it may remain.
    """
    tests.site.folder.mkdir(parents=True, exist_ok=True, mode=0o700)
    stale_processes.end(tests.site.folder)
    session = PlaybookSession.of(tests.site)
    ledger.begin_fleet(_record_of(tests))
    try:
        _provision(tests, session, ledger, on_line)
        with _renewals(tests, session):
            _send(tests, session, on_line)
            return tuple(_test(tests, session, config, on_line) for config in tests.packages)
    finally:
        on_line(f"terminate {tests.worker}")
        fleet.down(tests.site, tests.run)
        files.remove(tests.site.folder / "runner")
        ledger.end_fleet(tests.run)


def _record_of(tests: WorkerTestInputs) -> FleetRun:
    kind = tests.machine_type
    return FleetRun(
        id=tests.run,
        provider=kind.provider,
        type=kind.type,
        started=time.time(),
        finished=None,
        number=0,
        lives=True,
        key="tests",
    )


def _provision(
    tests: WorkerTestInputs, session: PlaybookSession, ledger: FleetLedger, on_line: Callable[[str], None]
) -> None:
    """Provision and prepare the worker; each state is stored before it is asked for."""
    kind, name = tests.machine_type, tests.worker
    record = WorkerRecord(
        name=name,
        type=kind.type,
        state=WorkerState.REQUESTED,
        requested=time.time(),
        hourly=kind.price(spot=tests.spot),
        egress=kind.egress,
        billed=kind.billed,
        currency=kind.currency,
    )
    ledger.keep_worker(tests.run, record)
    on_line(f"provision {name} ({kind.type})")
    request = {"name": name, "type": kind.type, "spot": tests.spot, **({"needs": {"gpus": 1}} if tests.gpu else {})}
    result = session.playbooks.play("provision.yml", variables={"kiln_machines": [request]})
    if not result.ok:
        reason = result.reason("localhost")
        ledger.keep_worker(tests.run, dataclasses.replace(record, state=WorkerState.REFUSED, reason=reason))
        hint = "choose another --type, have the quota raised, or try again later"
        raise ProvisionRefused(f"the provider refused {name}", why=reason, hint=hint)
    record = dataclasses.replace(record, state=WorkerState.PREPARING, provisioned=time.time())
    ledger.keep_worker(tests.run, record)
    on_line(f"prepare {name}")
    result = session.playbooks.play("prepare.yml", worker=name, variables={"kiln_build_options": []})
    if not result.ok:
        raise WorkersLost(f"{name} could not be prepared", why=result.reason(name), hint="try again")
    ledger.keep_worker(tests.run, dataclasses.replace(record, state=WorkerState.READY))


@contextlib.contextmanager
def _renewals(tests: WorkerTestInputs, session: PlaybookSession) -> Iterator[None]:
    """Renew the worker's lease while the tests run."""
    ended = threading.Event()

    def renew() -> None:
        while not ended.wait(tests.lease / RENEWALS):
            session.ssh(tests.worker, f"sudo kiln-lease renew {int(tests.lease)}")

    thread = threading.Thread(target=renew, daemon=True)
    thread.start()
    try:
        yield
    finally:
        ended.set()
        thread.join()


def _send(tests: WorkerTestInputs, session: PlaybookSession, on_line: Callable[[str], None]) -> None:
    """Copy the packages to the worker, each once."""
    paths = list(dict.fromkeys(path for packages in tests.packages.values() for path in packages))
    size = sum(path.stat().st_size for path in paths)
    on_line(f"send {len(paths)} packages ({files.size_text(size)}) to {tests.worker}")
    result = session.send(
        tests.worker, [f"{tests.channel}/./{path.relative_to(tests.channel)}" for path in paths], ARTIFACTS
    )
    if not result.ok:
        raise WorkersLost(f"the packages could not be sent to {tests.worker}", why=result.tail[-500:], hint="try again")


def _test(
    tests: WorkerTestInputs, session: PlaybookSession, config: str, on_line: Callable[[str], None]
) -> ConfigTestResult:
    """Test the packages of a config; its output is kept in the run's folder."""
    on_line(f"test {config} on {tests.worker}")
    began = time.monotonic()
    result = session.ssh(tests.worker, tests.argv(config), seconds=tests.limits.get(config, SECONDS))
    seconds = time.monotonic() - began
    log = tests.site.folder / "logs" / f"{config}.test.log"
    log.parent.mkdir(exist_ok=True)
    files.write_text(log, f"{result.tail}\n{result.stdout}")
    if result.exit_code in NO_CONNECTION:
        reason = (
            f"{tests.worker} did not answer, or the tests took longer than {tests.limits.get(config, SECONDS):.0f} s"
        )
        return ConfigTestResult(config=config, exit_code=WorkersLost.exit_code, seconds=seconds, reason=reason)
    reports = _reports(result.stdout) if result.ok else ()
    if result.ok and not reports:
        return ConfigTestResult(
            config=config, exit_code=TestsFailed.exit_code, seconds=seconds, reason="the worker sent an invalid report"
        )
    return ConfigTestResult(
        config=config,
        exit_code=result.exit_code,
        seconds=seconds,
        reports=reports,
        reason="" if result.ok else result.tail[-REASON_LENGTH:].strip(),
    )


def _reports(text: str) -> tuple[Mapping[str, Any], ...]:
    """Return the reports in a worker's answer, which is not trusted; none if it is something else."""
    with contextlib.suppress(ValueError, TypeError, KeyError):
        reports = json.loads(text)
        if isinstance(reports, list):
            return tuple(
                {
                    "package": str(report["package"]),
                    "verdict": str(report["verdict"]),
                    "tests": int(report["tests"]),
                    "seconds": float(report["seconds"]),
                    "gpus": [str(gpu) for gpu in report.get("gpus", [])],
                }
                for report in reports
            )
    return ()
