"""A container is left over when its maker is known to be gone, and only then."""

from __future__ import annotations

import dataclasses
import os
import subprocess
import sys

import pytest
from hypothesis import given
from hypothesis import strategies as st

from kiln.container.images import OwnerProcess, has_ended

HERE = OwnerProcess(machine="here", boot="boot", namespace="pid:[1]", pid=7, started="100")
OTHER = dataclasses.replace(HERE, pid=8, started="50")


@pytest.mark.parametrize(
    ("owner", "now", "expected"),
    [
        (HERE, HERE, False),
        (OTHER, OTHER, False),
        (OTHER, None, True),
        (OTHER, dataclasses.replace(OTHER, started="90"), True),
        (dataclasses.replace(OTHER, boot="earlier"), OTHER, True),
        (dataclasses.replace(OTHER, machine="elsewhere"), None, False),
        (dataclasses.replace(OTHER, machine="elsewhere", boot="its own"), None, False),
        (dataclasses.replace(OTHER, namespace="pid:[2]"), None, False),
    ],
    ids=["me", "runs", "ended", "number reused", "rebooted", "elsewhere", "elsewhere, its boot", "cannot be seen"],
)
def test_who_is_gone(owner: OwnerProcess, now: OwnerProcess | None, expected: bool) -> None:
    assert has_ended(owner, HERE, now) is expected


WORDS = st.text(st.characters(exclude_characters="/", exclude_categories=("Cs", "Cc")))


@given(machine=WORDS, boot=WORDS, namespace=WORDS, pid=st.integers(min_value=1), started=WORDS)
def test_an_owner_survives_being_a_label(machine: str, boot: str, namespace: str, pid: int, started: str) -> None:
    owner = OwnerProcess(machine=machine, boot=boot, namespace=namespace, pid=pid, started=started)
    assert OwnerProcess.parse(str(owner)) == owner


@pytest.mark.parametrize("label", ["", "somebody else's", "a/b/c/x/e", "a/b/c/1"])
def test_another_label_has_no_owner(label: str) -> None:
    assert OwnerProcess.parse(label) is None


def test_this_process_is_here() -> None:
    assert OwnerProcess.of_this_process() == OwnerProcess.of_process(os.getpid())


@pytest.mark.processes
def test_a_zombie_is_gone() -> None:
    process = subprocess.Popen([sys.executable, "-c", "input()"], stdin=subprocess.PIPE)
    try:
        owner = OwnerProcess.of_process(process.pid)
        assert owner is not None
        assert not has_ended(owner, OwnerProcess.of_this_process(), OwnerProcess.of_process(process.pid))
        process.kill()
        os.waitid(os.P_PID, process.pid, os.WEXITED | os.WNOWAIT)  # ended, and still in the table
        assert has_ended(owner, OwnerProcess.of_this_process(), OwnerProcess.of_process(process.pid))
    finally:
        process.kill()
        process.communicate()
