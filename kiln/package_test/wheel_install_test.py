"""Test a wheel as its users would use it: install it with pip into a fresh venv and import its modules."""

from __future__ import annotations

import re
import shlex
import sys
import zipfile
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from kiln import files, process_runner
from kiln.errors import BrokenPackage, TestsFailed, program_output_with_margin
from kiln.model.build_results import TestReport, TestVerdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kiln.package_test.wheel_name import WheelName

SCRIPT = "run_test.sh"  # the name of a script that may run in a separate container
SINGLE = 'import sys; print("%d%d" % sys.version_info[:2])'


@dataclass(frozen=True, slots=True, kw_only=True)
class WheelTestPlan:
    """The test of a wheel: ``python`` makes the venv in ``folder``, ``modules`` are imported there.

    ``resolved`` when the wheel's requirements are installed with it; without them nothing can be imported if it
    ``needs`` any.
    """

    wheel: Path
    python: Path
    folder: Path
    modules: tuple[str, ...]
    needs: bool
    resolved: bool


def plan_wheel_test(wheel: Path, *, python: Path, folder: Path, network: bool) -> WheelTestPlan:
    """Plan the test of a wheel; its requirements are installed with it where there is a network.

    Raises:
        BrokenPackage: when the file is not a wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            (metadata,) = (name for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            required = HeaderParser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", [])
    except (zipfile.BadZipFile, ValueError) as error:
        raise BrokenPackage(f"{wheel.name} is not a wheel", why=str(error)) from error
    needs = any("extra ==" not in str(requirement) for requirement in required)
    modules = tuple(sorted({module for name in names if (module := _top_level_module(name))}))
    return WheelTestPlan(
        wheel=wheel, python=python, folder=folder, modules=modules, needs=needs, resolved=network or not needs
    )


def _top_level_module(name: str) -> str | None:
    """Return the module that a file at a wheel's top level provides; None for other files."""
    match = re.fullmatch(r"([A-Za-z]\w*)(?:/__init__\.py|\.py|(?:\.[\w-]+)?\.so)", name)
    return match[1] if match else None


def find_wheel_interpreter(
    wheel: WheelName, candidates: Iterable[Path], *, environment: Mapping[str, str]
) -> Path | None:
    """Return the first interpreter that a wheel is for."""
    for candidate in candidates:
        if not candidate.is_file():
            continue
        result = process_runner.capture((candidate, "-I", "-c", SINGLE), env=environment, timeout=60.0)
        if result.ok and wheel.python in {f"cp{result.stdout.strip()}", "py3", "py2.py3"}:
            return candidate
    return None


def install_commands(step: WheelTestPlan) -> tuple[tuple[str, ...], ...]:
    """Return the commands that install a wheel, without running its code: make a venv without pip, run kiln's pip."""
    pip = (sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "--python", _venv_python(step))
    index_options = ("--only-binary", ":all:") if step.needs and step.resolved else ("--no-index",)
    alone = () if step.resolved else ("--no-deps",)
    return (
        (str(step.python), "-I", "-m", "venv", "--without-pip", str(step.folder)),
        (*pip, "install", "--no-cache-dir", *index_options, *alone, str(step.wheel)),
        *(((*pip, "check"),) if step.resolved else ()),
    )


def import_script_lines(step: WheelTestPlan) -> tuple[str, ...]:
    """Return the shell lines that run the wheel's code; empty when nothing can be imported."""
    if not (step.resolved and step.modules):
        return ()
    words = (_venv_python(step), "-I", "-c", f"import {', '.join(step.modules)}")
    return (f"cd {shlex.quote(str(step.folder))}", shlex.join(words))


def _venv_python(step: WheelTestPlan) -> str:
    return str(step.folder / "bin" / "python")


def execute_wheel_test(
    step: WheelTestPlan,
    *,
    environment: Mapping[str, str],
    apart: Callable[[], AbstractContextManager[Mapping[str, str]]],
    log: Path,
    on_line: Callable[[str], None] | None = None,
) -> TestReport:
    """Install a wheel into a venv and import its modules there; the venv is removed when that works.

    ``environment`` is for pip, ``apart`` yields the one for the wheel's own code.

    Raises:
        TestsFailed: with the end of the output.
    """
    files.remove(step.folder)
    installing = [_run_test_command(step, words, environment, log, on_line) for words in install_commands(step)]
    testing = 0.0
    if lines := import_script_lines(step):
        files.write_text(step.folder / SCRIPT, "\n".join(("set -e", *lines, "")))
        with apart() as variables:
            testing = _run_test_command(step, ("bash", str(step.folder / SCRIPT)), variables, log, on_line)
    files.remove(step.folder)
    note = "installed without its requirements, since there is no network, and not imported"
    return TestReport(
        package=step.wheel.name,
        verdict=TestVerdict.PASSED,
        commands=len(installing) - 2 + bool(lines),
        install_seconds=sum(installing),
        seconds=testing,
        notes=() if step.resolved else (note,),
        log=log,
    )


def _run_test_command(
    step: WheelTestPlan,
    words: tuple[str, ...],
    environment: Mapping[str, str],
    log: Path,
    on_line: Callable[[str], None] | None,
) -> float:
    result = process_runner.run(words, env=environment, cwd=step.folder.parent, log=log, on_line=on_line)
    if not result.ok:
        raise TestsFailed(
            f"the wheel {step.wheel.name} cannot be used after pip install: exit code {result.exit_code}",
            why=f"the output ends with\n{program_output_with_margin(result.tail)}",
            hint=f"read {log}; the venv is kept in {step.folder}",
        )
    return result.seconds
