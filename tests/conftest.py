"""Hooks of all tests: a test names the programs that it needs, and is skipped with their names where one is missing."""

from __future__ import annotations

import atexit
import functools
import gc
import itertools
import random
import shutil
import signal
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import TYPE_CHECKING

import hypothesis
import pytest

from kiln.__main__ import flush_and_exit
from kiln.base import process
from tests import left_out

if TYPE_CHECKING:
    from collections.abc import Generator

SLOW = 5.0  # seconds; a slower test is named at the end, with its reason
# Commands that show that a program works: docker without its daemon does not.
PROBES = {"docker": ("docker", "info"), "podman": ("podman", "info"), "unshare": ("unshare", "--mount", "true")}


# The same examples in every run, however long a loaded machine takes over one of them.
hypothesis.settings.register_profile(
    "kiln", deadline=None, derandomize=True, suppress_health_check=[hypothesis.HealthCheck.too_slow]
)
hypothesis.settings.register_profile("fast", hypothesis.settings.get_profile("kiln"), max_examples=25)
hypothesis.settings.load_profile("kiln")

_exit_codes: list[int] = []  # the session's exit code, once it is known


@pytest.hookimpl(wrapper=True, tryfirst=True)
def pytest_sessionfinish(session: pytest.Session, exitstatus: int) -> Generator[None, object, object]:
    """Print the skipped tests in the very last line, after pytest's own output."""
    _exit_codes.append(int(exitstatus))
    outcome = yield
    reporter = session.config.pluginmanager.get_plugin("terminalreporter")
    if reporter is not None and reporter.stats:  # not when tests are only listed, nor in a worker
        reasons = [report.longrepr[2] for report in reporter.stats.get("skipped", ())]
        reporter.write_line(left_out.summary(reasons, process.package_manager() or "apt"))
    return outcome


@atexit.register
def _past_the_tear_down() -> None:
    """Exit as kiln does: threads of a loaded py-rattler can crash Python at its exit, though every test passed."""
    if _exit_codes and "rattler" in sys.modules:
        flush_and_exit(_exit_codes[-1])


def pytest_addoption(parser: pytest.Parser) -> None:
    parser.addoption("--only", metavar="FILE", help="run no other files of tests than those that FILE lists")
    parser.addoption("--shuffle", metavar="SEED", help="shuffle the files, and the tests in each: no order may matter")


def pytest_ignore_collect(collection_path: Path, config: pytest.Config) -> bool | None:
    """Ignore the files that are not listed, before they are imported."""
    only = config.getoption("--only")
    if not only or not collection_path.name.startswith("test_") or collection_path.is_dir():
        return None
    return collection_path.relative_to(config.rootpath).as_posix() not in listed_files(only) or None


@pytest.hookimpl(trylast=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Shuffle the tests if asked to; those of a file stay together, for they share what was built for them."""
    seed = config.getoption("--shuffle")
    if seed:
        dice = random.Random(seed)
        order = {path: dice.random() for path in sorted({item.path for item in items})}
        places = {item.nodeid: dice.random() for item in items}
        items.sort(key=lambda item: (order[item.path], places[item.nodeid]))


@functools.cache
def listed_files(path: str) -> frozenset[str]:
    """Return the lines of a file."""
    return frozenset(Path(path).read_text(encoding="utf-8").splitlines())


def pytest_configure(config: pytest.Config) -> None:
    # Each full collection looks through thousands of collected tests; rarer ones save a tenth of the unit tests.
    gc.set_threshold(20_000, 20, 50)
    if signal.getsignal(signal.SIGINT) is signal.SIG_IGN:
        # The caller (nohup, or a script's `&`) ignores Ctrl-C, and every process inherits that. Here it stays without
        # effect; but programs that tests start must receive it: a handler, unlike SIG_IGN, is reset in a new program.
        signal.signal(signal.SIGINT, lambda *_: None)
    config.addinivalue_line("markers", "needs(*programs): skipped where one of the programs is missing or fails")
    config.addinivalue_line("markers", "sampled: an integration test that only `python -m tests --all` runs")
    config.addinivalue_line("markers", "trial: what takes hours, or needs programs that CI has not; run by its name")
    config.addinivalue_line("markers", "slow(reason): why a test takes more than 5 s")
    config.addinivalue_line("markers", "processes: a unit test that may start processes, small local ones")


@pytest.hookimpl(wrapper=True)
def pytest_collection() -> Generator[None, object, object]:
    """Collect no garbage while the tests are collected, a third of that time."""
    # Not gc.freeze() afterwards: Hypothesis looks for referrers of its generator, and frozen ones are not found.
    gc.disable()
    try:
        return (yield)
    finally:
        gc.enable()


def pytest_terminal_summary(terminalreporter: pytest.TerminalReporter) -> None:
    """Name the slowest tests, each with the reason that its mark gives."""
    seconds: defaultdict[str, float] = defaultdict(float)
    reasons: dict[str, str] = {}
    for report in itertools.chain.from_iterable(terminalreporter.stats.values()):
        if isinstance(report, pytest.TestReport):
            seconds[report.nodeid] += report.duration
            reasons.update((report.nodeid, str(value)) for name, value in report.user_properties if name == "slow")
    slow = sorted(((took, test) for test, took in seconds.items() if took > SLOW), reverse=True)
    if slow:
        terminalreporter.section(f"tests of more than {SLOW:.0f} s")
    for took, test in slow:
        terminalreporter.write_line(f"{took:6.1f} s  {test}: {reasons.get(test, 'no reason is given')}")


def pytest_runtest_setup(item: pytest.Item) -> None:
    item.user_properties += [("slow", mark.args[0]) for mark in item.iter_markers("slow")]
    reasons = [reason for mark in item.iter_markers("needs") for name in mark.args if (reason := lack_of(name))]
    if reasons:
        pytest.skip("; ".join(reasons))


@functools.cache
def lack_of(program: str) -> str:
    """Return why a program cannot be used on this machine; empty when it can."""
    if shutil.which(program) is None:
        return f"{program} {left_out.MISSING}"
    if program in PROBES and subprocess.run(PROBES[program], capture_output=True, check=False, timeout=60).returncode:
        return f"{program} is here, but '{' '.join(PROBES[program])}' fails"
    return ""
