"""The guard of the unit tests stops what it says it stops."""

from __future__ import annotations

import ctypes
import os
import socket
import subprocess
import sys
from contextlib import suppress

import pytest

from tests.unit.conftest import guarded

NOWHERE = ("127.0.0.1", 9)
TRUE = [sys.executable, "-I", "-c", ""]


def test_the_network_is_refused() -> None:
    with socket.socket() as plug, pytest.raises(pytest.fail.Exception, match=r"socket\.connect"):
        plug.connect(NOWHERE)
    with pytest.raises(pytest.fail.Exception, match=r"socket\.getaddrinfo"):
        socket.getaddrinfo("localhost", 80)


@pytest.mark.processes
def test_the_network_is_refused_where_processes_are_allowed() -> None:
    with socket.socket() as plug, pytest.raises(pytest.fail.Exception, match=r"socket\.connect"):
        plug.connect(NOWHERE)


def test_code_that_catches_every_exception_does_not_swallow_the_refusal() -> None:
    with pytest.raises(pytest.fail.Exception), suppress(Exception):
        subprocess.run(TRUE, check=True)


def test_every_way_of_starting_a_process_is_refused() -> None:
    with pytest.raises(pytest.fail.Exception, match=r"os\.system"):
        os.system("true")
    with pytest.raises(pytest.fail.Exception, match=r"os\.posix_spawn"):
        os.posix_spawn(sys.executable, TRUE, {})
    with pytest.raises(pytest.fail.Exception, match=r"os\.exec"):
        os.execv(sys.executable, TRUE)
    with pytest.raises(pytest.fail.Exception, match=r"os\.fork"):
        os.fork()


@pytest.mark.processes
def test_a_marked_test_may_start_processes() -> None:
    assert subprocess.run(TRUE, check=False).returncode == 0


@pytest.mark.processes
def test_a_process_that_compiled_code_starts_is_noticed() -> None:
    with pytest.raises(pytest.fail.Exception, match="compiled code"), guarded(processes=False):
        assert ctypes.CDLL(None).system(b"true") == 0
