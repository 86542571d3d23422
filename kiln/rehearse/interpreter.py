"""The Python that a rehearsal is made with: what it is, where its parts lie, whether it can be moved."""

from __future__ import annotations

import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln import command
from kiln.errors import MissingTool, UnsupportedPython
from kiln.rehearse.lock import PYTHONS

if TYPE_CHECKING:
    from collections.abc import Iterable, Iterator, Mapping

_PROBE = Path(__file__).with_name("probe.py")
_PROBE_SECONDS = 60
_SYSTEM_PREFIX = Path("/usr")  # shared with all other programs: no library there is the interpreter's own
_LIBPYTHON = re.compile(r"libpython3\.\d+\.so")


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A CPython that can be packaged; all paths are absolute and lie in ``base_prefix``.

    ``executable`` is the real program, never a virtual environment's. ``libraries`` are the shared libraries that
    belong to it and not to the system, libpython first among them where the program does not contain it.
    ``standard_layout`` is False where it looks for packages elsewhere than in lib/python3.X/site-packages, as
    Debian's does.
    """

    executable: Path
    version: str
    base_prefix: Path
    stdlib: Path
    lib_dynload: Path
    include: Path | None
    libraries: tuple[Path, ...]
    standard_layout: bool

    @property
    def python(self) -> str:
        """Major and minor version, ``3.11``."""
        return self.version.rpartition(".")[0]

    @property
    def libpython(self) -> Path | None:
        """The shared library that the program is linked to; None where it contains Python itself."""
        return next((library for library in self.libraries if _LIBPYTHON.match(library.name)), None)


def probe(executable: Path, *, env: Mapping[str, str]) -> Interpreter:
    """Ask an interpreter what it is; a virtual environment's answers for the Python that it was made from.

    Raises UnsupportedPython, saying why and what would work, for all that is not CPython 3.10-3.13 on Linux x86-64.
    """
    facts = _ask(executable, env)
    if facts.get("virtual"):  # Debian's own looks for packages elsewhere than the environments made from it
        facts = _ask(Path(facts["executable"]), env)
    require_supported(executable, facts)
    return described(facts)


def find(python: str, *, first: Iterable[Path] = (), last: Iterable[Path] = (), env: Mapping[str, str]) -> Interpreter:
    """Return an interpreter of a minor version, ``3.12``: of ``first``, on PATH, of pyenv, of uv, or of ``last``.

    Raises UnsupportedPython when none is at hand.
    """
    tried = []
    for executable in dict.fromkeys([*first, *candidates(python, env), *last]):
        try:
            found = probe(executable, env=env)
        except UnsupportedPython as error:
            tried.append(error.what)
            continue
        if found.python == python:
            return found
    raise UnsupportedPython(
        f"no Python {python} is at hand that a rehearsal can use",
        why="; ".join(tried) or f"there is no python{python} on PATH, in pyenv's or in uv's folder",
        hint=f"install one: 'pyenv install {python}', 'uv python install {python}' or the system's python{python}",
    )


def candidates(python: str, env: Mapping[str, str]) -> Iterator[Path]:
    """Yield the places where an interpreter of a minor version may lie, best first; only those where a file is."""
    home = Path(env.get("HOME", "/nonexistent"))
    pyenv = Path(env.get("PYENV_ROOT") or home / ".pyenv")
    data = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share")
    uv = Path(env.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")
    for folder in env.get("PATH", "").split(":"):
        if folder:
            yield from Path(folder).glob(f"python{python}")
    yield from _newest_first(pyenv.glob(f"versions/{python}.*/bin/python{python}"))
    yield from _newest_first(uv.glob(f"cpython-{python}.*/bin/python{python}"))


def _newest_first(paths: Iterable[Path]) -> list[Path]:
    def numbers(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", path.parts[-3])]

    return sorted(paths, key=numbers, reverse=True)


def _ask(executable: Path, env: Mapping[str, str]) -> dict[str, Any]:
    try:
        result = command.capture([executable, "-I", "-B", _PROBE], env=env, timeout=_PROBE_SECONDS)
        if result.ok:
            answer: dict[str, Any] = json.loads(result.stdout)
            return answer
        why = result.tail or f"it ended with exit code {result.exit_code}"
    except (MissingTool, OSError, ValueError) as error:
        why = str(error)
    raise UnsupportedPython(f"{executable} does not answer as a Python 3", why=why, hint=_what_works())


def require_supported(executable: Path, facts: Mapping[str, Any]) -> None:
    """Raise UnsupportedPython when what an interpreter told of itself is not what a rehearsal needs."""
    why = next(_objections(facts), None)
    if why is not None:
        raise UnsupportedPython(f"{executable} cannot be used for a rehearsal", why=why, hint=_what_works())


def _objections(facts: Mapping[str, Any]) -> Iterator[str]:
    python = ".".join(str(number) for number in facts["version"][:2])
    if facts["implementation"] != "cpython":
        yield f"it is {facts['implementation']}, and TensorFlow's extension modules are for CPython"
    if facts["system"] != "linux" or facts["machine"] not in {"x86_64", "AMD64"} or facts["bits"] != 64:
        yield f"it runs on {facts['system']} {facts['machine']} with {facts['bits']} bits, the wheels on linux x86_64"
    if facts["libc"] != "glibc":
        yield "its C library is not glibc, which the manylinux wheels need"
    if python not in PYTHONS:
        yield f"it is Python {python}, and this TensorFlow has wheels for {PYTHONS[0]} to {PYTHONS[-1]} only"
    if facts["free_threaded"] or facts["debug"]:
        kind = "free-threaded" if facts["free_threaded"] else "debug"
        yield f"it is a {kind} build, whose extension modules are not the usual ones"
    if facts["release"] != "final":
        yield f"it is a pre-release ({facts['release']})"
    yield from _immovable(facts, python)


def _immovable(facts: Mapping[str, Any], python: str) -> Iterator[str]:
    """Yield why an interpreter could not find its parts again in another prefix."""
    base = Path(facts["base_prefix"])
    if Path(facts["stdlib"]) not in {base / folder / f"python{python}" for folder in ("lib", "lib64")}:
        yield f"its standard library lies in {facts['stdlib']}, not where it would be found again after a move"
    if not facts["lib_dynload"] or base not in Path(facts["lib_dynload"][0]).parents:
        yield "its compiled modules do not lie in a folder lib-dynload of their own"
    if not _is_program(Path(facts["executable"])):
        yield f"{facts['executable']} is no program but a script, so the real one stays hidden"


def _is_program(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def _what_works() -> str:
    return f"any CPython {PYTHONS[0]} to {PYTHONS[-1]} for Linux x86-64 works: the system's, pyenv's or uv's"


def described(facts: Mapping[str, Any]) -> Interpreter:
    """Return the interpreter that told these facts of itself."""
    version = ".".join(str(number) for number in facts["version"])
    python = version.rpartition(".")[0]
    base = Path(facts["base_prefix"])
    packages = f"lib/python{python}/site-packages"
    include = Path(facts["include"])
    return Interpreter(
        executable=Path(facts["executable"]),
        version=version,
        base_prefix=base,
        stdlib=Path(facts["stdlib"]),
        lib_dynload=Path(facts["lib_dynload"][0]),
        include=include if include.is_dir() else None,
        libraries=own_libraries((Path(path) for path in facts["mapped"]), base=base, stdlib=Path(facts["stdlib"])),
        standard_layout=packages in facts["site_packages"] and Path(facts["scheme"]) == base / packages,
    )


def own_libraries(mapped: Iterable[Path], *, base: Path, stdlib: Path) -> tuple[Path, ...]:
    """Return which of the shared libraries in use belong to the interpreter: those in its prefix, and libpython."""
    outside = (path for path in mapped if stdlib not in path.parents and path.name.partition(".so")[1])
    own = {
        path
        for path in outside
        if _LIBPYTHON.match(path.name)
        or (base != _SYSTEM_PREFIX and base in path.parents and "lib-dynload" not in path.parts)
    }
    return tuple(sorted(own, key=lambda path: (not _LIBPYTHON.match(path.name), path)))
