"""The search for an interpreter of this machine that a rehearsal can use."""

from __future__ import annotations

import contextlib
import re
import shutil
from pathlib import Path
from typing import TYPE_CHECKING

from kiln import process_runner
from kiln.errors import MissingTool, UnsupportedPython
from kiln.rehearse.interpreter_facts import probe
from kiln.rehearse.wheel_locks import PYTHONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

    from kiln.rehearse.interpreter_facts import Interpreter

SYSTEM_FOLDERS = ("/usr/local/bin", "/usr/bin")  # also when they are not on PATH
_ANSWER_SECONDS = 60


def find(python: str, *, first: Iterable[Path] = (), last: Iterable[Path] = (), env: Mapping[str, str]) -> Interpreter:
    """Return an interpreter of a minor version, ``3.12``: from ``first``, from this machine, or from ``last``.

    Raises UnsupportedPython when there is no usable one.
    """
    refusals = []
    for executable in dict.fromkeys([*first, *candidates(python, env), *last]):
        try:
            interpreter = probe(executable, env=env, pythons=(*PYTHONS, python))
        except UnsupportedPython as error:
            refusals.append(f"{error.what}{f' ({error.why})' if error.why else ''}")
            continue
        if interpreter.python == python:
            return interpreter
    raise UnsupportedPython(
        f"no usable Python {python} for a rehearsal",
        why="; ".join(refusals)
        or f"python{python} not found on PATH, in the system's folders, or among those of pyenv, uv and conda",
    )


def first_available(
    *, first: Iterable[Path] = (), env: Mapping[str, str], pythons: Iterable[str] = PYTHONS[::-1]
) -> Interpreter | None:
    """Return an interpreter of the first of ``pythons`` that this machine has; None when it has no usable one."""
    for python in pythons:
        with contextlib.suppress(UnsupportedPython):
            return find(python, first=first, env=env)
    return None


def candidates(python: str, env: Mapping[str, str]) -> Iterator[Path]:
    """Yield the existing executables of a minor version's interpreters, best first.

    PATH comes first, then the system's folders, pyenv's versions, uv's, and conda's environments.
    """
    home = Path(env.get("HOME", "/nonexistent"))
    pyenv = Path(env.get("PYENV_ROOT") or home / ".pyenv")
    for folder in dict.fromkeys([*filter(None, env.get("PATH", "").split(":")), *SYSTEM_FOLDERS]):
        yield from Path(folder).glob(f"python{python}")
    yield from _newest_first(pyenv.glob(f"versions/{python}.*/bin/python{python}"))
    yield from _newest_first(_folder_of_uv(home, env).glob(f"cpython-{python}.*/bin/python{python}"))
    for prefix in _prefixes_of_conda(home):
        yield from (prefix / "bin").glob(f"python{python}")


def _folder_of_uv(home: Path, env: Mapping[str, str]) -> Path:
    """Return uv's folder of interpreters, as uv prints it; without uv, its default."""
    if shutil.which("uv", path=env.get("PATH", "")):
        with contextlib.suppress(MissingTool):
            answer = process_runner.capture(["uv", "python", "dir"], env=env, timeout=_ANSWER_SECONDS)
            if answer.ok and answer.stdout.strip():
                return Path(answer.stdout.strip())
    data = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share")
    return Path(env.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")


def _prefixes_of_conda(home: Path) -> Iterator[Path]:
    """Yield the prefixes of the user's environments, which conda and mamba list in a file."""
    with contextlib.suppress(OSError):
        for line in (home / ".conda" / "environments.txt").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("/"):
                yield Path(line.strip())


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    def numbers(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", path.parts[-3])]

    return sorted(paths, key=numbers, reverse=True)
