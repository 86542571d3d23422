"""Calls of the playbooks by Ansible's own program, and what its recap says."""

from __future__ import annotations

import json
import os
import re
import select
import subprocess
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from types import MappingProxyType
from typing import TYPE_CHECKING, Any, NamedTuple

if TYPE_CHECKING:
    from collections.abc import Iterator, Mapping

ROOT = Path(__file__).parents[1]
SECRET = "planted-secret-0451"
CEILING = 900  # seconds; machines of CI are slow, and none of these tests waits for time to pass
NOTHING: Mapping[str, str] = MappingProxyType({})


class PlaybookResult(NamedTuple):
    """The exit code of a call, and its output."""

    returncode: int
    stdout: str


@dataclass(frozen=True, slots=True)
class PlaybookCaller:
    """Runs playbooks with variables, which it writes into a folder; their output must not hold a secret."""

    ansible: subprocess.Popen[str]  # of `tests/forked_ansible.py`
    folder: Path

    def __call__(
        self, *books: str, check: bool = False, env: Mapping[str, str] = NOTHING, ceiling: int = CEILING, **more: object
    ) -> PlaybookResult:
        """Run playbooks; the run's folder is ``run`` if no variable says otherwise."""
        variables, output = self.folder / "variables.json", self.folder / "output"
        variables.write_text(json.dumps({"kiln_run_dir": str(self.folder / "run"), "kiln_poll_interval": 1, **more}))
        argv = ["ansible-playbook", "-vv", "--extra-vars", f"@{variables}", *(["--check"] if check else [])]
        argv += [str(ROOT / "ansible" / f"{book}.yml") for book in books]
        call = {"argv": argv, "env": {**os.environ, **env}, "output": str(output)}
        assert self.ansible.stdin is not None
        assert self.ansible.stdout is not None
        self.ansible.stdin.write(f"{json.dumps(call)}\n")
        self.ansible.stdin.flush()
        if not select.select([self.ansible.stdout], [], [], ceiling)[0]:
            self.ansible.terminate()  # its next answer would be that to this call
            raise TimeoutError(f"{books} took longer than {ceiling} s: {output.read_text()[-6000:]}")
        code = int(self.ansible.stdout.readline())
        text = output.read_text()
        output.unlink()
        assert SECRET not in text
        assert "PRIVATE KEY" not in text
        return PlaybookResult(code, text)


@contextmanager
def forked_ansible(python: Path) -> Iterator[subprocess.Popen[str]]:
    """Yield the process in whose forks playbooks run, by the Python of the fleet's environment."""
    argv = (str(python), str(ROOT / "tests" / "forked_ansible.py"))
    environment = {**os.environ, "ANSIBLE_NOCOLOR": "1"}
    with subprocess.Popen(
        argv, env=environment, cwd=ROOT, text=True, stdin=subprocess.PIPE, stdout=subprocess.PIPE
    ) as ansible:
        try:
            yield ansible
        finally:
            ansible.terminate()  # it waits for calls


def answer_of(done: PlaybookResult) -> dict[str, Any]:
    """Return the statistics that playbooks have set; ``ansible.cfg`` has them shown after each one's recap."""
    *_, text = re.findall(r"^\tRUN: (\{.*\})$", succeed(done), re.MULTILINE)
    answer: dict[str, Any] = json.loads(text)
    return answer


def succeed(done: PlaybookResult) -> str:
    """Return the output of playbooks that did not fail."""
    assert done.returncode == 0, done.stdout[-8000:]
    return done.stdout


def changes(told: str) -> int:
    """Return the number of tasks that changed something, over all hosts of a recap."""
    return sum(int(number) for number in re.findall(r"\bchanged=(\d+)", told.rpartition("PLAY RECAP")[2]))
