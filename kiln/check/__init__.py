"""The check stage: each package is installed into a fresh prefix of its own, and its recipe's tests run there."""

from __future__ import annotations

import shutil
import time
from typing import TYPE_CHECKING

from kiln import channel, command, files
from kiln.check.plan import plan
from kiln.errors import TestsFailed, excerpt
from kiln.model.artifact import TestReport, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Mapping, Sequence
    from pathlib import Path

    from kiln.model.plan import TestStep

__all__ = ["execute", "plan"]

NOTE = "note: "  # a line of a test's output that begins so is shown to people


def execute(
    step: TestStep,
    *,
    channels: Sequence[str],
    cache: Path,
    virtual_packages: channel.VirtualPackages,
    environment: Mapping[str, str],
    log: Path,
    on_line: Callable[[str], None] | None = None,
) -> TestReport:
    """Install one package into its prefix and run its tests there; the prefix is removed when they pass.

    Raises:
        SolveFailed: when the package and what its tests need cannot be installed.
        TestsFailed: with the end of the tests' output; prefix and folder are kept.
    """
    start = time.monotonic()
    install(step, channels=channels, cache=cache, virtual_packages=virtual_packages)
    installed = time.monotonic() - start
    if not step.commands:
        files.remove(step.prefix)
        return TestReport(package=step.package, verdict=Verdict.NONE, install_seconds=installed, notes=step.notes)
    notes = list(step.notes)

    def listen(line: str) -> None:
        if line.startswith(NOTE):
            notes.append(line.removeprefix(NOTE))
        if on_line is not None:
            on_line(line)

    seconds = run_tests(step, environment=environment, log=log, on_line=listen)
    files.remove(step.prefix)
    files.remove(step.folder)
    return TestReport(
        package=step.package,
        verdict=Verdict.PASSED,
        commands=step.commands,
        install_seconds=installed,
        seconds=seconds,
        notes=tuple(notes),
        log=log,
    )


def install(step: TestStep, *, channels: Sequence[str], cache: Path, virtual_packages: channel.VirtualPackages) -> None:
    """Make the prefix of a test; what a compiler needs may have links that lead out of it."""
    files.remove(step.prefix)
    records = channel.solve(channels, step.specs, virtual_packages=virtual_packages)
    channel.install(records, step.prefix, cache=cache, carried=True)


def run_tests(step: TestStep, *, environment: Mapping[str, str], log: Path, on_line: Callable[[str], None]) -> float:
    """Run the script of a test in its folder and return the seconds it took.

    Raises:
        TestsFailed: with the end of the output.
    """
    files.remove(step.folder)
    step.folder.mkdir(parents=True)
    for file in step.files:
        if file.is_dir():
            shutil.copytree(file, step.folder / file.name, dirs_exist_ok=True)
        else:
            shutil.copy2(file, step.folder / file.name)
    script = step.folder / "run_test.sh"
    files.write_text(script, "\n".join([*step.script, ""]))
    ended = command.run(
        ("bash", str(script)), env={**environment, **step.environment}, cwd=step.folder, log=log, on_line=on_line
    )
    if not ended.ok:
        raise TestsFailed(
            f"the tests of {step.package} fail with exit code {ended.exit_code}",
            why=f"their output ends with\n{excerpt(ended.tail)}",
            hint=f"read {log}; the prefix is kept in {step.prefix}, the test's folder in {step.folder}",
        )
    return ended.seconds
