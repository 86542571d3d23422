"""What all tests share: a test names what it needs of the machine, and is skipped by that name where it is missing."""

from __future__ import annotations

import atexit
import functools
import shutil
import subprocess
import sys

import hypothesis
import pytest

from kiln.__main__ import leave

# How to see that a program does more than lie there: a docker without its daemon is no docker.
PROBES = {"docker": ("docker", "info"), "podman": ("podman", "info"), "unshare": ("unshare", "--mount", "true")}


# The same examples in every run, however long a loaded machine takes over one of them.
hypothesis.settings.register_profile(
    "kiln", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.load_profile("kiln")

_ended: list[int] = []  # the exit code, once the session knows it


def pytest_sessionfinish(exitstatus: int) -> None:
    _ended.append(int(exitstatus))


@atexit.register
def _past_the_tear_down() -> None:
    """Leave as kiln does: threads of a loaded py-rattler can crash a Python that ends, though every test passed."""
    if _ended and "rattler" in sys.modules:
        leave(_ended[-1])


def pytest_configure(config: pytest.Config) -> None:
    config.addinivalue_line("markers", "needs(*programs): skipped where one of the programs is missing or fails")
    config.addinivalue_line("markers", "processes: a unit test that may start processes, small local ones")


def pytest_runtest_setup(item: pytest.Item) -> None:
    lacking = [reason for mark in item.iter_markers("needs") for name in mark.args if (reason := lack_of(name))]
    if lacking:
        pytest.skip("; ".join(lacking))


@functools.cache
def lack_of(program: str) -> str:
    """Why a program cannot be used on this machine, or nothing when it can."""
    if shutil.which(program) is None:
        return f"{program} is not on this machine"
    if program in PROBES and subprocess.run(PROBES[program], capture_output=True, check=False, timeout=60).returncode:
        return f"{program} is here, but '{' '.join(PROBES[program])}' fails"
    return ""
