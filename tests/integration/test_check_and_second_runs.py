"""With ``--check`` no playbook changes anything, and a second run changes nothing more, with each provider.

One worker of the providers without a cloud goes through its whole life, a container that boots as machines do.
test_playbooks.py has the clouds, as far as a machine is not needed.
"""

from __future__ import annotations

import getpass
import json
import os
import re
import socket
from contextlib import contextmanager
from dataclasses import dataclass
from typing import TYPE_CHECKING

import pytest

from kiln.base import files
from kiln.image import worker
from tests import shared_inputs
from tests.integration.fleet.helpers import AUTHORITIES, SMALL, docker, existing_machines
from tests.playbook_calls import changes
from tests.playbook_changes import LAST, PLAYBOOKS
from tests.waiting import until

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping
    from pathlib import Path

    from tests.playbook_calls import PlaybookResult

pytestmark = [pytest.mark.slow("every playbook runs three times"), pytest.mark.trial]

CONFIG = "linux_64_cuda_compiler_versionNoneinterpreter3.11"
LIST = "the provider's list"
LOST = {"kiln-fleet": "true", "kiln-run": "lost", "kiln-owner": "lost", "kiln-worker": "kiln-lost-1"}
# The path, mode and time of change of each file, without those of the project's environment; and the hashes.
WORKER_FILES = r"""
set -- /etc /usr/local/sbin
for path in /var/lib/kiln /run/kiln-lease; do test ! -e "$path" || set -- "$@" "$path"; done
find "$@" -name .venv -prune -o -type f -printf '%p\t%m %u %C@\n' -o -printf '%p\t%m %u %y %l\n'
"""
WORKER_HASHES = r"""
find "$@" -name .venv -prune -o -type f -exec sha256sum {} + | sed 's/^\([0-9a-f]*\)  \(.*\)/\2\t\1/'
"""
# With the others site.yml runs without configs, and not again: it takes longest, what it imports was run with each
# provider, and leaves them as they were.
WHOLE_SITE = "local"


@dataclass(frozen=True, slots=True, kw_only=True)
class ProviderUnderTest:
    """A provider: its variables, what it has, and the container of the run's worker, if that exists.

    ``lose`` lets a run of the past, which nobody knows any more, have an expired worker there.
    """

    variables: Mapping[str, object]
    listing: Callable[[], object]
    container: Callable[[], str | None]
    lose: Callable[[], object]
    environment: Mapping[str, str]


def expired(user: str, kind: str) -> dict[str, str]:
    """Return the tags of an expired worker."""
    return {**LOST, "kiln-user": user, "kiln-type": kind, "kiln-expires": "1"}


def trust_in(folder: Path) -> list[str]:
    """Return the options of Docker with which containers reach the package index as this computer does."""
    if not AUTHORITIES.exists():
        return []
    files.write_text(folder / "pip.conf", f"[global]\ncert={AUTHORITIES}\n")
    return [f"--volume={folder}/pip.conf:/etc/pip.conf:ro", f"--volume={AUTHORITIES}:{AUTHORITIES}:ro"]


@contextmanager
def local(folder: Path, run: str) -> Iterator[ProviderUnderTest]:
    tags = {
        **expired(run, "small"),
        "kiln-run": f"{run}-lost",
        "kiln-worker": f"kiln-{run}-lost",
    }  # others run tests, too
    labels = [f"--label={key}={text}" for key, text in tags.items()]
    mine = ("ps", "--all", "--filter", f"label=kiln-user={run}", "--format")

    def container() -> str | None:
        return next((name for name in docker(*mine, "{{.Names}}").split() if name == f"kiln-{run}-1"), None)

    def lose() -> None:
        docker("create", f"--name=kiln-{run}-lost", *labels, worker.worker_recipe().tag, "true")

    try:
        yield ProviderUnderTest(
            variables={"kiln_account_user": run, "kiln_local_options": trust_in(folder)},
            environment={},
            listing=lambda: docker(*mine, "{{.ID}} {{.Names}} {{.State}} {{.Labels}}"),
            container=container,
            lose=lose,
        )
    finally:
        if left := docker(*mine, "{{.Names}}").split():
            docker("rm", "--force", "--volumes", *left)


@contextmanager
def static(folder: Path, run: str) -> Iterator[ProviderUnderTest]:
    with existing_machines(folder, 1) as (host,):
        name = host.pop("name")

        def lose() -> None:
            user = f"{getpass.getuser()}@{socket.gethostname()}"
            note = f"run=lost\nowner=lost\nmachine=kiln-lost-1\nexpires=1\nfrom={user}:/lost\n"
            docker("exec", name, "sh", "-c", f"printf %s '{note}' >/etc/kiln-owner")

        yield ProviderUnderTest(
            variables={"kiln_static_hosts": [host], "kiln_type": "static"},
            environment={},
            listing=lambda: docker("exec", name, "sh", "-c", "cat /etc/kiln-owner || true"),
            container=lambda: name,
            lose=lose,
        )


CONTEXTS = {"local": local, "static": static}


class Life:
    """The life of a run with a provider, from a worker that another run has lost to the whole run of ``site.yml``.

    ``faults`` are what is not as the rows say: a life takes minutes, so it goes on after the first one.
    """

    def __init__(
        self, name: str, provider: ProviderUnderTest, call: Callable[..., PlaybookResult], folder: Path, run: str
    ) -> None:
        self.name, self.provider, self.call, self.folder = name, provider, call, folder
        self.faults: list[str] = []
        self.known: dict[bool, dict[str, str]] = {}  # the states since the last call, with times and without
        self.variables: Mapping[str, object] = {
            "kiln_provider": name,
            "kiln_run": run,
            "kiln_feedstock": str(SMALL),
            "kiln_build_options": ["--container", "none"],
            "kiln_build_poll_interval": 3,
            "kiln_listing_delay": 1,
            **provider.variables,
        }

    def require(self, condition: bool, fault: str) -> None:
        """Note a fault unless a condition holds."""
        if not condition:
            self.faults.append(fault)

    def play(self, *books: str, check: bool = False) -> str:
        """Run playbooks; return their output. The controller has another address after it has provisioned."""
        controller = "192.0.2.7" if books == ("provision",) else "198.51.100.9"
        self.known.clear()
        configs = [CONFIG] if books != ("site",) or self.name == WHOLE_SITE else []
        variables = {**self.variables, "kiln_controller": controller, "kiln_configs": configs}
        done = self.call(*books, check=check, env=self.provider.environment, **variables)
        self.require(done.returncode == 0, f"{books}, check {check}: {done.stdout[-4000:]}")
        return done.stdout

    def state(self, *, times: bool) -> dict[str, str]:
        """Return what the provider has, the run's folder, and the files of the worker.

        A file that is written again as it was is another one by the time of its change, and the same by its hash.
        """
        if times not in self.known:
            self.known[times] = self._state(times=times)
        return self.known[times]

    def _state(self, *, times: bool) -> dict[str, str]:
        state = {LIST: json.dumps(self.provider.listing(), default=str, sort_keys=True)}
        for path in (self.folder, *self.folder.rglob("*")) if self.folder.exists() else ():
            facts = path.stat()
            content = (facts.st_ctime_ns if times else files.sha256(path)) if path.is_file() else ""
            state[f"the run's {path.relative_to(self.folder)}"] = f"{facts.st_mode} {content}"
        if container := self.provider.container():
            script = WORKER_FILES if times else WORKER_FILES.replace("%C@", "") + WORKER_HASHES
            for line in docker("exec", container, "sh", "-c", script).splitlines():
                name, _, text = line.partition("\t")
                state[name] = f"{state.get(name, '')} {text}"
        return state

    def check(self, *books: str) -> None:
        """Run playbooks with ``--check``: nothing may change, nor any file be written again as it was."""
        before = self.state(times=True)
        self.play(*books, check=True)
        found = changed(before, self.state(times=True))
        self.require(not found, f"--check of {books} changes {found}")

    def first_run(self, book: str) -> None:
        """Run a playbook with ``--check`` and without, and compare with what its row says of it."""
        row = PLAYBOOKS[book][self.name]
        self.check(book)
        before = self.state(times=bool(row.first))
        text = self.play(book)
        if book == "provision" and (container := self.provider.container()):
            until(lambda: "done" in docker("exec", container, "sh", "-c", "cloud-init status || true"), "it has booted")
        found = changed(before, self.state(times=bool(row.first)))
        reported = re.findall(r"^changed: .*", text, re.MULTILINE)
        self.require(bool(changes(text)) == bool(row.first), f"{book}: not '{row.first}', but {reported}")
        self.require(found >= set(row.renewed), f"{book} renews {row.renewed}, and changes {found}")
        self.require(not row.again or LIST not in found, f"{book} leaves its provider otherwise than it was")
        self.require(bool(row.first) or found == set(row.renewed), f"{book} changes {found} and reports nothing")

    def second_run(self, *books: str) -> None:
        """Run playbooks again, and compare what they change with what their rows say."""
        rows = [PLAYBOOKS[book][self.name] for book in books]
        before = self.state(times=False)
        text = self.play(*books)
        found = changed(before, self.state(times=False))
        reported = re.findall(r"^(?:TASK .*|changed: .*)", text, re.MULTILINE)
        again = [row.again for row in rows if row.again]
        self.require(bool(changes(text)) == bool(again), f"{books} again: not {again}, but {reported}")
        self.require(LIST not in found, f"{books} again change {found}")
        renewed = {path for row in rows for path in row.renewed}
        self.require(bool(again) or found == renewed, f"{books} again renew {renewed}, and change {found}")


def changed(before: Mapping[str, str], after: Mapping[str, str]) -> set[str]:
    """Return what two states differ in."""
    return {key for key in before.keys() | after.keys() if before.get(key) != after.get(key)}


@pytest.mark.needs("docker", "rsync", "ssh", "ssh-keygen")
@pytest.mark.parametrize("name", CONTEXTS)
def test_nothing_is_changed_with_check_or_by_a_second_run(
    name: str, play: Callable[..., PlaybookResult], tmp_path: Path
) -> None:
    shared_inputs.worker_image(shared_inputs.docker_engine())
    run = f"c{os.getpid()}"
    possible = [book for book, rows in PLAYBOOKS.items() if not rows[name].impossible]
    others = [book for book in possible if book not in LAST]
    with CONTEXTS[name](tmp_path / "provider", run) as provider:
        life = Life(name, provider, play, tmp_path / "run", run)
        provider.lose()
        for book in others:
            life.first_run(book)
        life.check(*others)
        life.second_run(*others)
        for book in LAST:
            life.first_run(book)
            life.check(book)
            if name == WHOLE_SITE or not PLAYBOOKS[book][name].again:
                life.second_run(book)
    assert life.faults == []
