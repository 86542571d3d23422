"""The controller of a detached run, asked over ssh with the run's key."""

from __future__ import annotations

import contextlib
import json
import shlex
import tempfile
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import interprocess_messages, process_runner
from kiln.errors import BrokenPackage, MachinesUnknown
from kiln.fleet.detached.attach_key import USER, RunKey
from kiln.fleet.executor_shared_state import NO_CONNECTION

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence


SECONDS = 120.0  # for an answer


class ControllerClient:
    """A run's controller; ``words`` is the command line of ssh that reaches it."""

    def __init__(self, key: RunKey, words: Sequence[str], environment: Mapping[str, str]) -> None:
        self.key = key
        self.words = tuple(words)
        self.environment = environment

    def run_state(self) -> dict[str, Any]:
        """Return the state of the run."""
        return self._request_json("state")

    def export_results_on_controller(self) -> dict[str, Any]:
        """Have the results gathered for `fetch_exported_files`, and return the state of the run."""
        return self._request_json("export")

    def send_request(self, request: str) -> process_runner.ProcessResult:
        """Have something done, such as the run stopped (``stop``), and return the answer; raises MachinesUnknown."""
        return self._require_success(
            process_runner.capture((*self.words, request), env=self.environment, timeout=SECONDS)
        )

    def confirm_collected(self) -> bool:
        """Say that all is collected, which ends the controller; return whether it waits for others who fetch it."""
        return interprocess_messages.decode(self.send_request("collected").stdout.strip() or "{}") == {"waits": True}

    def is_answering(self) -> bool:
        """Return whether the controller still lets the run's key in."""
        return process_runner.capture((*self.words, "state"), env=self.environment, timeout=SECONDS).ok

    def stream_config_log(self, config: str, on_line: Callable[[str], None]) -> None:
        """Send the lines of a config's latest log; raises MachinesUnknown."""
        self._require_success(
            process_runner.run((*self.words, f"log {shlex.quote(config)}"), env=self.environment, on_line=on_line)
        )

    def stream_run_messages(self, on_message: Callable[[dict[str, Any]], None]) -> process_runner.ProcessResult:
        """Send the messages of the run as they arrive, until the run or the connection ends."""

        def pass_on_message(line: str) -> None:
            message = interprocess_messages.decode(line)
            if message is not None and "kind" in message:
                on_message(message)

        return process_runner.run((*self.words, "follow"), env=self.environment, on_line=pass_on_message)

    def fetch_exported_files(self, folder: Path) -> None:
        """Copy what was exported into a folder; a copy that was interrupted goes on.

        Raises:
            MachinesUnknown: when it failed.
        """
        folder.mkdir(parents=True, exist_ok=True, mode=0o700)
        shell, host = shlex.join(self.words[:-1]), self.words[-1]
        options = ("--recursive", "--times", "--partial", "--timeout=120", f"--rsh={shell}")
        argv = ("rsync", *options, f"{host}:export/", f"{folder}/")
        self._require_success(process_runner.capture(argv, env=self.environment))

    def _request_json(self, request: str) -> dict[str, Any]:
        try:
            answer = json.loads(self.send_request(request).stdout)
        except ValueError as error:
            what = f"the controller of the run {self.key.run} sent an invalid answer"
            raise BrokenPackage(what, why=str(error)) from error
        if not isinstance(answer, dict):
            raise BrokenPackage(f"the controller of the run {self.key.run} sent an invalid answer")
        return answer

    def _require_success(self, result: process_runner.ProcessResult) -> process_runner.ProcessResult:
        if result.ok:
            return result
        where = f"{self.key.address}:{self.key.port}"
        if result.exit_code in NO_CONNECTION:
            what = f"the controller of the run {self.key.run} cannot be reached ({where})"
            hint = "see whether it still exists: it ends some time after the run, and when its packages are collected"
            raise MachinesUnknown(what, why=result.tail[-500:], hint=hint)
        raise MachinesUnknown(f"the controller of the run {self.key.run} ({where}) refused", why=result.tail[-500:])


@contextlib.contextmanager
def controller_connection(key: RunKey, environment: Mapping[str, str]) -> Iterator[ControllerClient]:
    """Yield a run's controller; its private key is in a folder of its own meanwhile."""
    with tempfile.TemporaryDirectory(prefix="kiln-key-") as name:
        folder = Path(name)
        private, hosts = folder / "key", folder / "known_hosts"
        private.touch(mode=0o600)
        private.write_text(key.private_key, encoding="utf-8")
        hosts.write_text(f"{key.machine} {key.host_key.strip()}\n", encoding="utf-8")
        yield ControllerClient(key, ssh_command_line(key, private=private, hosts=hosts), environment)


def ssh_command_line(key: RunKey, *, private: Path, hosts: Path) -> tuple[str, ...]:
    """Return the command line of ssh: one key, one host key, nothing from the user's own files."""
    options = {
        "Port": str(key.port),
        **key.options,
        "IdentityFile": f'"{private}"',
        "IdentitiesOnly": "yes",
        "IdentityAgent": "none",
        "HostKeyAlias": key.machine,
        "UserKnownHostsFile": f'"{hosts}"',
        "GlobalKnownHostsFile": "/dev/null",
        "StrictHostKeyChecking": "yes",
        "UpdateHostKeys": "no",
        "BatchMode": "yes",
        "ConnectTimeout": "15",
        "ServerAliveInterval": "15",
        "ServerAliveCountMax": "4",
        "ControlPath": "none",
    }
    words = ("ssh", "-F", "/dev/null", "-T", "-x", "-a", *(f"-o{name}={text}" for name, text in options.items()))
    return (*words, "-l", USER, key.address)
