"""The ledger under build_artifacts/: a database of finished steps, and of every run over the matrix with its configs.

Every change is one SQLite transaction, so a process that is killed at any moment leaves the whole record or none. A
step is identified by a key over everything that decides its result, and stored only once it has succeeded. A run is
stored while it runs: the state of each config with its time and cost.
"""

from __future__ import annotations

import dataclasses
import json
import time
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from kiln.base.serialization import from_json_values, to_json
from kiln.state.ledger.database import Database, decoding_errors_as_damage, retry_after_repair, write_config_backup
from kiln.state.results import ConfigRun, ConfigState, MatrixReport, RunCost

if TYPE_CHECKING:
    import sqlite3
    from collections.abc import Mapping


FINISHED_CONFIG = "config"  # the title of the step that a finished config is
STEP_COLUMNS = ("key", "config", "title", "finished", "seconds", "detail")
ARTIFACT_COLUMNS = ("path", "sha256", "size", "modified", "config", "inputs")


@dataclass(frozen=True, slots=True, kw_only=True)
class FinishedStep:
    """A step that succeeded: ``finished`` is in seconds since the epoch, ``detail`` holds the step's own values."""

    key: str
    config: str
    title: str
    finished: float
    seconds: float
    detail: Mapping[str, Any]


@dataclass(frozen=True, slots=True, kw_only=True)
class StoredArtifact:
    """A package file in the channel, as it was when it was stored.

    ``modified`` is in nanoseconds since the epoch, ``inputs`` is a hash over the inputs common to all configs.
    """

    path: str
    sha256: str
    size: int
    modified: int
    config: str
    inputs: str


@dataclass(frozen=True, slots=True, kw_only=True)
class BuildDuration:
    """The duration of a config's last build, ``cold`` or warm, on a number of ``cores``; 0 is unknown."""

    config: str
    cold: bool
    seconds: float
    cores: float


class Ledger(Database):
    """The ledger of steps, packages and runs; safe for several threads and processes."""

    # Steps

    @retry_after_repair
    def finished_step(self, key: str) -> FinishedStep | None:
        """Return a finished step; None when it is not stored."""
        row = self._fetch_step_row(key)
        return row and self._step_from_row(row)

    def store_step(self, key: str, *, config: str, title: str, seconds: float, detail: Mapping[str, Any]) -> None:
        """Store a step that has succeeded; a later record of the same key replaces an earlier one."""
        row = (key, config, title, time.time(), seconds, json.dumps(detail, sort_keys=True))
        with self._write_transaction() as connection:
            connection.execute("INSERT OR REPLACE INTO step VALUES (?, ?, ?, ?, ?, ?)", row)

    def back_up_finished_config(self, key: str, *artifacts: StoredArtifact) -> None:
        """Write a finished config and its packages into a file next to the ledger, too, in case the ledger is damaged.

        Only keys that are hashes are written: the others are never looked up.
        """
        step = self._fetch_step_row(key)
        if step is not None and key.isalnum():
            write_config_backup(self.path.parent, key, step, map(dataclasses.astuple, artifacts))

    def delete_step(self, key: str) -> None:
        """Delete a step whose result is gone."""
        with self._write_transaction() as connection:
            connection.execute("DELETE FROM step WHERE key = ?", (key,))

    @retry_after_repair
    def latest_steps(self, title: str, config: str | None = None) -> tuple[FinishedStep, ...]:
        """Return the finished steps with a title, of one config or of all, the latest first."""
        rows = self._fetch_rows(
            f"SELECT {', '.join(STEP_COLUMNS)} FROM step"  # noqa: S608 - constants
            " WHERE title = ? AND config = coalesce(?, config) ORDER BY finished DESC",
            title,
            config,
        )
        return tuple(map(self._step_from_row, rows))

    def _fetch_step_row(self, key: str) -> Any:
        return self._fetch_row(f"SELECT {', '.join(STEP_COLUMNS)} FROM step WHERE key = ?", key)  # noqa: S608 - constants

    def _step_from_row(self, row: tuple[Any, ...]) -> FinishedStep:
        with decoding_errors_as_damage():
            fields = dict(zip(STEP_COLUMNS, row, strict=True))
            return from_json_values(FinishedStep, {**fields, "detail": json.loads(row[5])})

    # Packages

    def store_artifacts(self, *artifacts: StoredArtifact) -> None:
        """Store package files that are in the channel now."""
        rows = map(dataclasses.astuple, artifacts)
        with self._write_transaction() as connection:
            connection.executemany("INSERT OR REPLACE INTO artifact VALUES (?, ?, ?, ?, ?, ?)", rows)

    @retry_after_repair
    def stored_artifact(self, path: str) -> StoredArtifact | None:
        """Return a package file of the channel; None when it is not stored."""
        query = f"SELECT {', '.join(ARTIFACT_COLUMNS)} FROM artifact WHERE path = ?"  # noqa: S608 - constants
        row = self._fetch_row(query, path)
        return row and StoredArtifact(**dict(zip(ARTIFACT_COLUMNS, row, strict=True)))

    # Runs

    def begin_run(self, report: MatrixReport) -> int:
        """Store that a run of this process begins, with all of its configs, and return its number."""
        from kiln.container.images import OwnerProcess
        from kiln.state.ledger import json_columns

        detail = json_columns.detail_column_json(report)
        row = (report.command, report.started, str(OwnerProcess.of_this_process()), detail)
        details = [json_columns.detail_column_json(config) for config in report.configs]
        with self._write_transaction() as connection:
            query = "INSERT INTO run (command, started, owner, detail) VALUES (?, ?, ?, ?)"
            number = int(connection.execute(query, row).lastrowid or 0)
            for config, detail in zip(report.configs, details, strict=True):
                _write_config_row(connection, number, config, detail)
        return number

    def update_config(self, run: int, config: ConfigRun) -> None:
        """Store the state of a config."""
        from kiln.state.ledger import json_columns

        # Before other processes have to wait.
        detail = json_columns.detail_column_json(config)
        with self._write_transaction() as connection:
            _write_config_row(connection, run, config, detail)

    def update_cost(self, run: int, cost: RunCost) -> None:
        """Store the cost of a run on workers; a repair may have lost the run."""
        with self._write_transaction() as connection:
            for (detail,) in connection.execute("SELECT detail FROM run WHERE id = ?", (run,)).fetchall():
                changed = json.dumps({**json.loads(detail), "cost": to_json(cost)})
                connection.execute("UPDATE run SET detail = ? WHERE id = ?", (changed, run))

    def end_run(self, run: int, *, at: float | None = None) -> None:
        """Store that a run is over: now, or since ``at``."""
        with self._write_transaction() as connection:
            moment = time.time() if at is None else at
            connection.execute("UPDATE run SET finished = ? WHERE id = ?", (moment, run))

    @retry_after_repair
    def run_numbers(self) -> tuple[int, ...]:
        """Return the numbers of all runs, the latest first."""
        return tuple(number for (number,) in self._fetch_rows("SELECT id FROM run ORDER BY id DESC"))

    @retry_after_repair
    def run_report(self, run: int | None = None) -> MatrixReport | None:
        """Return the report of a run, by default of the latest, or None.

        Configs that were running when their run was killed are reported as interrupted.
        """
        from kiln.state.ledger import json_columns

        columns = ", ".join(json_columns.RUN_COLUMNS)
        query = f"SELECT {columns}, owner FROM run WHERE id = coalesce(?, id) ORDER BY id DESC LIMIT 1"  # noqa: S608 - constants
        row = self._fetch_row(query, run)
        if row is None:
            return None
        number, _, _, finished, _, owner = row
        columns = ", ".join(json_columns.CONFIG_COLUMNS)
        query = f"SELECT {columns} FROM config_run WHERE run = ? ORDER BY position"  # noqa: S608 - constants
        killed = finished is None and not self._is_owner_process_alive(owner)
        rows = self._fetch_rows(query, number)
        with decoding_errors_as_damage():
            configs = tuple(json_columns.config_from_columns(row, killed=killed) for row in rows)
            return json_columns.run_from_columns(row[:-1], configs)

    def latest_config_states(self, *, rehearsal: bool = False) -> dict[str, ConfigState]:
        """Return each config's state in the last run that has a result of it, for rehearsals or for builds.

        A config without one has the state of the last run.
        """
        states: dict[str, ConfigState] = {}
        known: set[str] = set()
        for number in self.run_numbers():
            report = self.run_report(number)
            for config in report.configs if report and report.rehearsal is rehearsal else ():
                if config.has_result and config.config not in known:
                    states[config.config] = config.state
                    known.add(config.config)
                states.setdefault(config.config, config.state)
        return states

    @retry_after_repair
    def last_build_seconds(self, *, rehearsal: bool = False) -> dict[str, float]:
        """Return the duration of each config's last build, or rehearsal, in seconds; of a chain of jobs, their sum."""
        rows = self._fetch_rows(
            "SELECT config, duration FROM known WHERE rehearsal = ? AND state = ? AND started IS NOT NULL ORDER BY run",
            rehearsal,
            ConfigState.DONE.value,
        )
        return dict(rows)

    @retry_after_repair
    def last_build_disk_use(self) -> dict[str, int]:
        """Return the bytes of disk that each config's last build took."""
        return {step.config: int(step.detail.get("disk", 0)) for step in reversed(self.latest_steps(FINISHED_CONFIG))}

    @retry_after_repair
    def last_build_durations(self) -> tuple[BuildDuration, ...]:
        """Return the durations of each config's last cold and last warm build.

        Rehearsals do not count, nor builds with remote actions: the machine's own cores do not explain their time.
        """
        rows = self._fetch_rows(
            "SELECT known.config, known.detail, known.duration, run.detail FROM known"
            " JOIN run ON run.id = known.run"
            " WHERE NOT known.rehearsal AND known.state = ? AND known.started IS NOT NULL ORDER BY run.id",
            ConfigState.DONE.value,
        )
        latest = {}
        for config, detail, seconds, run_detail in rows:
            with decoding_errors_as_damage():
                entry, run = json.loads(detail), json.loads(run_detail)
                compiles = [step.get("compile") or {} for step in entry.get("steps", ())]
                cores = float(run["cores"]) and max(1.0, float(run["cores"]) / max(1, int(run["jobs"])))
                cold = bool(entry["cold"])
            if any(report.get("remote") for report in compiles):
                continue
            latest[config, cold] = BuildDuration(config=config, cold=cold, seconds=seconds, cores=cores)
        return tuple(latest.values())

    @retry_after_repair
    def last_build_peak_memory_by_config(self, *, rehearsal: bool = False) -> dict[str, int]:
        """Return the peak memory of each config's last build, or rehearsal, in bytes."""
        query = "SELECT config, peak_memory FROM known WHERE rehearsal = ? AND peak_memory IS NOT NULL ORDER BY run"
        return dict(self._fetch_rows(query, rehearsal))

    @retry_after_repair
    def was_last_build_killed(self, config: str, *, rehearsal: bool = False) -> bool:
        """Return whether the last run that built a config was killed."""
        row = self._fetch_row(
            "SELECT owner FROM known WHERE rehearsal = ? AND config = ? AND state = ? ORDER BY run DESC LIMIT 1",
            rehearsal,
            config,
            ConfigState.RUNNING.value,
        )
        return row is not None and not self._is_owner_process_alive(row[0])

    @staticmethod
    def _is_owner_process_alive(label: str) -> bool:
        from kiln.container.images import OwnerProcess, has_ended

        owner = OwnerProcess.parse(label)
        return owner is not None and not has_ended(
            owner, OwnerProcess.of_this_process(), OwnerProcess.of_process(owner.pid)
        )


def _write_config_row(connection: sqlite3.Connection, run: int, config: ConfigRun, detail: str) -> None:
    """Store the record of a config, a new one after the others of its run."""
    key = (run, config.config)
    values = (config.state.value, config.started, config.finished, config.peak_memory, detail)
    # Replacing the row would need its position, by a query, and delete the row before it is inserted anew.
    updated = connection.execute(
        "UPDATE config_run SET state = ?, started = ?, finished = ?, peak_memory = ?, detail = ?"
        " WHERE run = ? AND config = ?",
        (*values, *key),
    )
    if updated.rowcount == 0:
        connection.execute(
            "INSERT INTO config_run (run, config, position, state, started, finished, peak_memory, detail)"
            " SELECT ?, ?, count(*), ?, ?, ?, ?, ? FROM config_run WHERE run = ?",
            (*key, *values, run),
        )
