"""Run one playbook by ansible-runner, in a process of the fleet's environment that reports as lines of JSON.

``python -I -m kiln.fleet.ansible.playbook_child SPEC`` runs the playbook of a JSON file. It ends on a signal, and
also when its parent is gone: ansible-runner's own children ignore the loss of their terminal, and would run for ever.

ansible-runner writes the environment of its child to the disk. So it gets one without secrets, and its child is this
module again (``--exec``), which takes them from the environment of its parent and becomes ansible-playbook.
"""

from __future__ import annotations

import importlib
import json
import os
import re
import shlex
import shutil
import signal
import sys
import threading
from functools import partial
from pathlib import Path
from typing import Any

from kiln.base import serialization
from kiln.base.process import Program
from kiln.fleet.ansible import playbooks

SECRET = re.compile(r"AWS_|OS_|PIP_|ANSIBLE_VAULT_|KILN_SECRET_")  # names that ansible-runner must not see
LOOK = 1  # seconds between two checks for the end
# ansible-runner's own default is to check no host keys.
SETTINGS = {"ANSIBLE_HOST_KEY_CHECKING": "True", "ANSIBLE_NOCOLOR": "1", "ANSIBLE_RETRY_FILES_ENABLED": "False"}


def main(arguments: list[str]) -> int:
    """Run a playbook, or become ansible-playbook."""
    if arguments[0] == "--exec":
        become_ansible_playbook(arguments[1:])
    return run_playbook(json.loads(Path(arguments[0]).read_text(encoding="utf-8")))


def become_ansible_playbook(arguments: list[str]) -> None:
    """Become ansible-playbook, with the environment that the parent was started with."""
    inherited = Path(f"/proc/{os.getppid()}/environ").read_bytes().split(b"\0")
    pairs = [entry.decode("utf-8", "surrogateescape").partition("=") for entry in inherited if b"=" in entry]
    secrets = {name: value for name, _, value in pairs if SECRET.match(name)}
    program = str(Path(sys.executable).with_name("ansible-playbook"))
    os.execve(program, [program, *arguments], {**os.environ, **secrets})  # noqa: S606 - no shell is wanted


def run_playbook(spec: dict[str, Any]) -> int:
    """Run a playbook to its end and report its events; return its exit code."""
    ansible_runner = importlib.import_module("ansible_runner")  # in the fleet's environment alone
    stopped = threading.Event()
    parent = spec["parent"]
    for name in [name for name in os.environ if SECRET.match(name)]:
        del os.environ[name]  # /proc keeps the environment that this process was started with
    for number in (signal.SIGTERM, signal.SIGINT):
        signal.signal(number, lambda *_: stopped.set())
    send_to_parent(kind="hello", pid=os.getpid())
    folder = Path(spec["folder"])
    scratch = folder / "tmp"  # a playbook that is killed removes nothing, and by default uses the user's home and /tmp
    scratch.mkdir()
    try:
        run = ansible_runner.run(
            private_data_dir=str(folder),
            binary=sys.executable,
            cmdline=shlex.join(ansible_playbook_arguments(spec)),
            envvars={**SETTINGS, "ANSIBLE_LOCAL_TEMP": str(scratch), "TMPDIR": str(scratch)},
            settings={"pexpect_timeout": LOOK, "suppress_output_file": True},
            suppress_env_files=True,
            quiet=True,
            event_handler=partial(report_ansible_event, answer=Path(spec["answer"])),
            cancel_callback=lambda: stopped.is_set() or os.getppid() != parent,
        )
        send_to_parent(kind="end", status=str(run.status), rc=run.rc)
        return playbook_exit_code(str(run.status), run.rc)
    finally:
        # Ansible's workers have their own sessions, which a signal to the process group does not reach.
        if os.getppid() != parent:
            playbooks.end_processes_of_run(Path(os.environ[playbooks.MARK]))
        shutil.rmtree(folder, ignore_errors=True)


def playbook_exit_code(status: str, rc: int | None) -> int:
    """Return 0 for a playbook that succeeded; ansible-runner has no ``rc`` for one that was killed."""
    return 0 if (status, rc) == ("successful", 0) else rc or 1


def ansible_playbook_arguments(spec: dict[str, Any]) -> list[str]:
    """Return the command for ansible-runner: this module again, with ansible-playbook's arguments."""
    words = list(Program.PLAYBOOK.script_command("--exec", spec["playbook"], isolated=True)[1:])
    words += [word for variables in spec["variables"] for word in ("-e", f"@{variables}")]
    words += [word for inventory in spec["inventory"] for word in ("-i", inventory)]
    return words + (["--limit", ",".join(spec["limit"])] if spec["limit"] else [])


def report_ansible_event(event: dict[str, Any], *, answer: Path) -> bool:
    """Report an event of Ansible's; return False, so that ansible-runner does not write it to the disk.

    The statistics that the playbook has set become the file ``answer``: in a line of output, secrets would be masked.
    """
    for line in str(event.get("stdout") or "").splitlines():
        if line.strip():
            send_to_parent(kind="line", text=line)
    data = event.get("event_data") or {}
    match event.get("event"):
        case "playbook_on_task_start":
            send_to_parent(kind="task", name=str(data.get("task", "")))
        case "playbook_on_stats" if data.get("artifact_data"):
            answer.write_text(json.dumps(data["artifact_data"]), encoding="utf-8")
        case "runner_on_failed" if data.get("ignore_errors"):
            pass
        case "runner_on_failed" | "runner_on_unreachable" as name:
            place = {"host": str(data.get("host")), "task": str(data.get("task"))}
            send_to_parent(kind=name.removeprefix("runner_on_"), **place, reason=task_failure_reason(data))
    return False


def task_failure_reason(data: dict[str, Any]) -> str:
    """Return why a task failed, as far as Ansible may log it."""
    result = data.get("res") or {}
    words = [str(result.get(key)) for key in ("msg", "reason", "stderr") if result.get(key)]
    failed = [item for item in result.get("results", ()) if isinstance(item, dict) and item.get("failed")]
    words += [str(item.get("msg")) for item in failed if item.get("msg")]
    return "; ".join(dict.fromkeys(word.strip() for word in words)) or "no reason was given"


def send_to_parent(**message: Any) -> None:
    """Send a message to the parent process."""
    serialization.write_line(sys.stdout, serialization.encode(message))


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
