"""Reports a detached run on its controller: ``kiln-controller gate`` becomes this program.

``python -I -m kiln.fleet.detached.server FEEDSTOCK FOLDER RUN REQUEST...`` answers a request of the
run's key: ``state``, ``follow``, ``log CONFIG`` or ``export``.
"""

from __future__ import annotations

import contextlib
import json
import os
import shutil
import sys
import time
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files, serialization
from kiln.base import process as base_process
from kiln.base.patterns import escaped_for_terminal
from kiln.base.serialization import read_json_object, to_json
from kiln.fleet.ansible.handlers import STEP
from kiln.fleet.records import FleetLedger
from kiln.recipe.feedstock import Feedstock
from kiln.recipe.variants.space import config_labels
from kiln.state.store.layout import ArtifactLayout

if TYPE_CHECKING:
    from kiln.fleet.model import FleetRun
    from kiln.state.results import MatrixReport

UNIT = "kiln-controller.service"
TESTS = ".test.log"  # the end of the names of logs of tests
LOOK = 1.0  # seconds between two looks at the ledger
PULSE = 20.0  # seconds after which a message is sent in any case, so that a lost connection is noticed
LINES = 50  # of a log that are sent at a time; the rest of what came in between is left out
LONGEST = 60_000  # characters of a message
OVER = frozenset({"ended", "failed"})


@dataclass(slots=True)
class SentLogPosition:
    """The part of a log that was sent: up to ``offset``, in ``step``."""

    offset: int = 0
    step: str = ""

    def lines_with_steps(self, lines: list[str]) -> list[tuple[str, str]]:
        """Return lines with their steps; that which begins a step is empty."""
        result = []
        for line in lines:
            match = STEP.fullmatch(line)
            self.step = self.step if match is None else escaped_for_terminal(match["title"])
            result.append((self.step, "" if match else escaped_for_terminal(line)[:1000]))
        return result


class RunReporter:
    """The reports of one detached run."""

    def __init__(self, root: Path, folder: Path, run: str) -> None:
        self.feedstock = Feedstock(root=root)
        self.layout = ArtifactLayout.for_feedstock(self.feedstock)
        self.folder = folder
        self.run = run

    def run_state(self) -> dict[str, Any]:
        """Return the state of the run, with its report and its workers as the ledger has them."""
        from kiln.feedstock import config_file

        process, exit_code, until = self._process_state()
        report: MatrixReport | None = None
        fleet: FleetRun | None = None
        if self.layout.ledger.exists():
            with FleetLedger(self.layout.ledger) as ledger:
                fleet = ledger.fleet_run(self.run)
                report = None if fleet is None else ledger.run_report(fleet.number)
        configs = [] if report is None else [config.config for config in report.configs]
        entries = config_file.read_configs(self.feedstock, configs) if configs else ()
        names = config_labels(configs, {entry.name: entry.variant for entry in entries})
        return {
            "kind": "state",
            "run": self.run,
            "process": process,
            "exit_code": exit_code,
            "until": until,
            "labels": dict(names),
            "report": to_json(report),
            "fleet": to_json(fleet),
            "output": last_lines_of_file(self.folder / "output.log"),
        }

    def _process_state(self) -> tuple[str, int | None, float | None]:
        """Return the state of the run's process, its exit code, and until when its packages are kept."""
        ended = read_json_object(self.folder / "ended.json")
        if ended:
            keep = read_json_object(Path("/etc/kiln-controller")).get("keep", 0.0)
            return "ended", ended["exit_code"], ended["ended"] + keep
        result = base_process.capture(("systemctl", "is-active", UNIT), env=os.environ)
        return ("failed" if result.stdout.strip() == "failed" else "running"), None, None

    def latest_log(self, config: str) -> Path | None:
        """Return the latest log of a config: of its build, or of its tests on a worker."""
        return max(self._log_paths(config), key=lambda path: path.stat().st_mtime, default=None)

    def _log_paths(self, config: str) -> list[Path]:
        folder = self.layout.safe_path("fleet", self.run, "logs")
        return [path for path in folder.glob("*.log") if path.name.rpartition(".log")[0].rpartition(".")[0] == config]

    def send_messages_until_run_ends(self) -> None:
        """Send the run's state whenever it changes, and the new lines of the logs, until the run is over."""
        sent: dict[str, str] = {}
        logs: dict[Path, SentLogPosition] = {}
        pulse = time.monotonic()
        while True:
            state = self.run_state()
            lines = {name: serialization.encode(message) for name, message in state_messages(state)}
            changes = [line for name, line in lines.items() if sent.get(name) != line]
            for line in changes:
                send_line(line)
            if changes:
                sent, pulse = lines, time.monotonic()
                send_line(serialization.encode({"kind": "shown"}))
            configs = () if state["report"] is None else state["report"]["configs"]
            for config in [item["config"] for item in configs if item["state"] == "running"]:
                for step, text in self._new_log_lines(config, logs):
                    send_line(serialization.encode({"kind": "line", "config": config, "step": step, "text": text}))
            if state["process"] in OVER:
                send_line(serialization.encode({"kind": "over"}))
                return
            if time.monotonic() - pulse > PULSE:
                pulse = time.monotonic()
                send_line(serialization.encode({"kind": "pulse"}))
            time.sleep(LOOK)

    def _new_log_lines(self, config: str, logs: dict[Path, SentLogPosition]) -> list[tuple[str, str]]:
        """Return the new lines of a config's log with their steps; of a log that is new to the reader its last step."""
        path = self.latest_log(config)
        if path is None:
            return []
        is_new = path not in logs
        place = logs.setdefault(path, SentLogPosition())
        with path.open("rb") as file:
            size = file.seek(0, os.SEEK_END)
            start = max(place.offset, size - LONGEST)
            file.seek(start)
            data = file.read(size - start)
        whole = data[: data.rfind(b"\n") + 1]
        place.offset = start + len(whole)
        lines = place.lines_with_steps(whole.decode("utf-8", "replace").splitlines())
        return [(place.step, "")] if is_new else lines[-LINES:]

    def export_results(self) -> dict[str, Any]:
        """Gather what is collected in a folder, by hard links, and return the run's state.

        Nothing is removed from the folder, of which another computer may be fetching a copy.
        """
        target = self.folder / "export"
        target.mkdir(mode=0o700, exist_ok=True)
        with files.held_folder_lock(target):
            state = self.run_state()
            self._link_results_into(target, state)
            text, path = json.dumps(state), target / "state.json"
            if not (path.exists() and path.read_text(encoding="utf-8") == text):
                files.write_text(path, text)
            return state

    def _link_results_into(self, target: Path, state: dict[str, Any]) -> None:
        for config in () if state["report"] is None else state["report"]["configs"]:
            for package in config["packages"]:
                path = Path(package["artifact"]["path"])
                link_result_file(path, target / "packages" / package["artifact"]["subdir"] / path.name)
            logs = sorted(self._log_paths(config["config"]), key=lambda path: path.stat().st_mtime)
            last = {f"{config['config']}{TESTS if log.name.endswith(TESTS) else '.log'}": log for log in logs}
            for name, log in last.items():
                link_result_file(log, target / "logs" / name)
        link_result_file(self.folder / "output.log", target / "output.log")
        link_result_file(self.layout.safe_path("fleet", self.run, "playbooks.log"), target / "playbooks.log")


def last_lines_of_file(path: Path, lines: int = 20) -> list[str]:
    """Return the last lines of a file."""
    with contextlib.suppress(OSError):
        return files.end_of_file(path, 16384).decode("utf-8", "replace").splitlines()[-lines:]
    return []


def link_result_file(path: Path, target: Path) -> None:
    """Link a file into the folder of results, if it exists; several configs may have made the same package."""
    if path.is_file() and not path.is_symlink() and not (target.exists() and target.samefile(path)):
        target.parent.mkdir(parents=True, exist_ok=True)
        files.link_or_copy(path, target)


def state_messages(state: dict[str, Any]) -> list[tuple[str, dict[str, Any]]]:
    """Return a state as messages: the run, and each config by itself with its expected times, as long as a line may be.

    The expected times of hundreds of configs would make the message of the run too long.
    """
    report = state["report"]
    cost = report and report["cost"]
    starts, ends = (cost["config_starts"], cost["config_ends"]) if cost else ({}, {})
    short = report and {**report, "configs": [], "cost": cost and {**cost, "config_starts": {}, "config_ends": {}}}
    items = [("", {**state, "kind": "run", "fleet": None, "report": short})]
    for config in () if report is None else report["configs"]:
        message = {"kind": "config", "config": config}
        if len(serialization.encode(message)) > LONGEST:
            message = {
                "kind": "config",
                "config": {**config, "steps": [], "packages": [], "reason": config["reason"][:2000]},
            }
        name = config["config"]
        items.append((name, {**message, "expected": [starts.get(name), ends.get(name)]}))
    return items


def send_line(line: str) -> None:
    """Send a message to the other end of the connection."""
    serialization.write_line(sys.stdout, line)


def main(words: list[str]) -> int:
    """Answer a request."""
    reporter = RunReporter(Path(words[0]), Path(words[1]), words[2])
    match words[3:]:
        case ["state"]:
            send_line(json.dumps(reporter.run_state()))
        case ["export"]:
            send_line(json.dumps(reporter.export_results()))
        case ["follow"]:
            reporter.send_messages_until_run_ends()
        case ["log", config] if path := reporter.latest_log(config):
            with path.open("rb") as file:
                shutil.copyfileobj(file, sys.stdout.buffer)
        case ["log", config]:
            sys.stderr.write(f"the run {reporter.run} has no log of {config}\n")
            return 1
        case _:
            sys.stderr.write(__doc__ or "")
            return 2
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
