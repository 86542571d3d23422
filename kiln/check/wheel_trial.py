"""A wheel tried out as its users would: installed by pip into a fresh venv, its modules imported there."""

from __future__ import annotations

import re
import shlex
import sys
import zipfile
from dataclasses import dataclass
from email.parser import HeaderParser
from typing import TYPE_CHECKING

from kiln import command, files
from kiln.errors import BrokenPackage, TestsFailed, excerpt
from kiln.model.artifact import TestReport, Verdict

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from contextlib import AbstractContextManager
    from pathlib import Path

    from kiln.check.wheel import Wheel

SCRIPT = "run_test.sh"  # the name of a script that may run in a container of its own
SINGLE = 'import sys; print("%d%d" % sys.version_info[:2])'


@dataclass(frozen=True, slots=True, kw_only=True)
class Plan:
    """The test of a wheel: ``python`` makes the venv in ``folder``, ``modules`` are imported there.

    ``resolved`` is whether what the wheel requires is installed with it; else nothing can be imported if it ``needs``
    something.
    """

    wheel: Path
    python: Path
    folder: Path
    modules: tuple[str, ...]
    needs: bool
    resolved: bool


def plan(wheel: Path, *, python: Path, folder: Path, network: bool) -> Plan:
    """Plan the test of a wheel; what it requires is installed with it where there is a network.

    Raises:
        BrokenPackage: when the file is no wheel.
    """
    try:
        with zipfile.ZipFile(wheel) as archive:
            names = archive.namelist()
            (metadata,) = (name for name in names if re.fullmatch(r"[^/]+\.dist-info/METADATA", name))
            required = HeaderParser().parsestr(archive.read(metadata).decode()).get_all("Requires-Dist", [])
    except (zipfile.BadZipFile, ValueError) as error:
        raise BrokenPackage(f"{wheel.name} is no wheel", why=str(error)) from error
    needs = any("extra ==" not in str(requirement) for requirement in required)
    modules = tuple(sorted({found for name in names if (found := _module(name))}))
    return Plan(wheel=wheel, python=python, folder=folder, modules=modules, needs=needs, resolved=network or not needs)


def _module(name: str) -> str | None:
    """The module that a file at a wheel's top makes importable, if it does."""
    match = re.fullmatch(r"([A-Za-z]\w*)(?:/__init__\.py|\.py|(?:\.[\w-]+)?\.so)", name)
    return match[1] if match else None


def interpreter(wheel: Wheel, candidates: Iterable[Path], *, environment: Mapping[str, str]) -> Path | None:
    """Return the first interpreter that a wheel is for."""
    for candidate in candidates:
        if not candidate.is_file():
            continue
        said = command.capture((candidate, "-I", "-c", SINGLE), env=environment, timeout=60.0)
        if said.ok and wheel.python in {f"cp{said.stdout.strip()}", "py3", "py2.py3"}:
            return candidate
    return None


def commands(step: Plan) -> tuple[tuple[str, ...], ...]:
    """Return what installs a wheel, which runs no code of it: a venv without pip of its own, then kiln's pip."""
    pip = (sys.executable, "-m", "pip", "--isolated", "--disable-pip-version-check", "--python", _inside(step))
    found = ("--only-binary", ":all:") if step.needs and step.resolved else ("--no-index",)
    alone = () if step.resolved else ("--no-deps",)
    return (
        (str(step.python), "-I", "-m", "venv", "--without-pip", str(step.folder)),
        (*pip, "install", "--no-cache-dir", *found, *alone, str(step.wheel)),
        *(((*pip, "check"),) if step.resolved else ()),
    )


def script(step: Plan) -> tuple[str, ...]:
    """Return the shell lines that run code of the wheel; none when nothing of it can be imported."""
    if not (step.resolved and step.modules):
        return ()
    words = (_inside(step), "-I", "-c", f"import {', '.join(step.modules)}")
    return (f"cd {shlex.quote(str(step.folder))}", shlex.join(words))


def _inside(step: Plan) -> str:
    return str(step.folder / "bin" / "python")


def execute(
    step: Plan,
    *,
    environment: Mapping[str, str],
    apart: Callable[[], AbstractContextManager[Mapping[str, str]]],
    log: Path,
    on_line: Callable[[str], None] | None = None,
) -> TestReport:
    """Install a wheel into a venv and import its modules there; the venv is removed when that works.

    ``environment`` is for pip, ``apart`` gives the one in which the wheel's own code runs.

    Raises:
        TestsFailed: with the end of the output.
    """
    files.remove(step.folder)
    installing = [_run(step, words, environment, log, on_line) for words in commands(step)]
    testing = 0.0
    if lines := script(step):
        files.write_text(step.folder / SCRIPT, "\n".join(("set -e", *lines, "")))
        with apart() as given:
            testing = _run(step, ("bash", str(step.folder / SCRIPT)), given, log, on_line)
    files.remove(step.folder)
    note = "installed without what it requires, for want of a network, and not imported"
    return TestReport(
        package=step.wheel.name,
        verdict=Verdict.PASSED,
        commands=len(installing) - 2 + bool(lines),
        install_seconds=sum(installing),
        seconds=testing,
        notes=() if step.resolved else (note,),
        log=log,
    )


def _run(
    step: Plan,
    words: tuple[str, ...],
    environment: Mapping[str, str],
    log: Path,
    on_line: Callable[[str], None] | None,
) -> float:
    ended = command.run(words, env=environment, cwd=step.folder.parent, log=log, on_line=on_line)
    if not ended.ok:
        raise TestsFailed(
            f"the wheel {step.wheel.name} cannot be used after pip install: exit code {ended.exit_code}",
            why=f"the output ends with\n{excerpt(ended.tail)}",
            hint=f"read {log}; the venv is kept in {step.folder}",
        )
    return ended.seconds
