"""Unit tests reach no network and start no process, held by Python's own audit events rather than by good will.

A test marked ``processes`` may start processes. What compiled code does raises no audit event: so its children are
counted after each test, and its way to the network leads to a closed port.
"""

from __future__ import annotations

import resource
import sys
from contextlib import contextmanager
from typing import TYPE_CHECKING

import pytest

from kiln.base import masking
from kiln.base.limits.errors import BoundedRunState
from kiln.fleet import records

if TYPE_CHECKING:
    from collections.abc import Iterator

NETWORK = frozenset(
    {"socket.connect", "socket.bind", "socket.sendto", "socket.sendmsg", "socket.getaddrinfo", "socket.gethostbyname"}
)
PROCESSES = frozenset(
    {"subprocess.Popen", "os.exec", "os.fork", "os.forkpty", "os.posix_spawn", "os.spawn", "os.system"}
)
CLOSED_PORT = "http://127.0.0.1:9"

_forbidden: frozenset[str] = frozenset()


def _refuse(event: str, args: tuple[object, ...]) -> None:
    if event in _forbidden:
        pytest.fail(f"a unit test came to {event}{args[:2]}; what it does belongs in tests/integration")


sys.addaudithook(_refuse)


def children() -> int:
    """A number that grows with each child process that ended and was waited for, whoever started it."""
    return resource.getrusage(resource.RUSAGE_CHILDREN).ru_minflt


@contextmanager
def guarded(*, processes: bool) -> Iterator[None]:
    """Refuse the network, and processes unless they are allowed, until the block ends."""
    global _forbidden  # noqa: PLW0603 - an audit hook stays for good, so what it refuses must change
    before, outer = children(), _forbidden
    _forbidden = NETWORK if processes else NETWORK | PROCESSES
    try:
        yield
    finally:
        _forbidden = outer
    if not processes and children() != before:
        pytest.fail("a unit test made compiled code start a process; what it does belongs in tests/integration")


@pytest.fixture(autouse=True)
def guard(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    for name in ("HTTP_PROXY", "HTTPS_PROXY", "ALL_PROXY", "http_proxy", "https_proxy", "all_proxy"):
        monkeypatch.setenv(name, CLOSED_PORT)
    processes = request.node.get_closest_marker("processes") is not None
    # as in a process that has its limits: a fork of this large process takes longer than the work of most tests
    monkeypatch.setattr(BoundedRunState, "inside", True)
    with guarded(processes=processes):
        yield


@pytest.fixture
def limited_process(monkeypatch: pytest.MonkeyPatch) -> None:
    """Do work on hostile input in a fork under the system's limits, as kiln does; for tests that meet a limit."""
    monkeypatch.setattr(BoundedRunState, "inside", False)


@pytest.fixture(scope="session", autouse=True)
def small_ledger_reserve() -> Iterator[None]:
    """Reserve a page in the ledger of each fleet run: writing the 4 MiB twice takes longer than a simulated run."""
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(records, "RESERVE", 4096)
        yield


@pytest.fixture(autouse=True)
def own_mask(monkeypatch: pytest.MonkeyPatch) -> None:
    """Forget the secrets of a test at its end: a process has one mask, and another test may print the same words."""
    monkeypatch.setattr(masking._ProcessMask, "mask", masking.current_mask())
