"""The Python of a rehearsal: searched on this machine, else downloaded."""

from __future__ import annotations

import contextlib
import json
import re
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

from kiln.base import files, process
from kiln.base.errors import (
    AlreadyRunning,
    DiskFull,
    DownloadFailed,
    KilnError,
    MissingTool,
    NotWritable,
    UnsupportedPython,
)
from kiln.base.patterns import lazy_pattern
from kiln.build.rehearsal.wheel_download import PYTHONS
from kiln.conda import solve

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence


def python_build_suffix(python: str) -> str:
    """Return the end of conda-forge's build strings of a Python: ``cpython`` until 3.12, the ABI tag later."""
    major, minor = python.split(".")
    return "cpython" if int(minor) <= 12 else f"cp{major}{minor}"


_PROBE = Path(__file__).with_name("interpreter_facts.py")
_PROBE_SECONDS = 60
_SYSTEM_PREFIX = Path("/usr")  # shared with all other programs: a library there does not belong to the interpreter
_LIBPYTHON = lazy_pattern(r"libpython3\.\d+\.so")
SYSTEM_FOLDERS = ("/usr/local/bin", "/usr/bin")  # also when they are not on PATH
_ANSWER_SECONDS = 60
_HINT = f"any CPython {PYTHONS[0]} to {PYTHONS[-1]} for Linux x86-64 works: the system's, pyenv's or uv's"


@dataclass(frozen=True, slots=True, kw_only=True)
class Interpreter:
    """A CPython that can be packaged; all paths are absolute and inside ``base_prefix``.

    ``executable`` is the real program, never a virtual environment's. ``libraries`` are the shared libraries that
    belong to it and not to the system, starting with libpython where the program does not contain it.
    ``standard_layout`` is False when its packages are elsewhere than in lib/python3.X/site-packages, as
    Debian's are.
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
    def minor_version(self) -> str:
        """Major and minor version, ``3.11``."""
        return self.version.rpartition(".")[0]


def probe_interpreter(executable: Path, *, env: Mapping[str, str], pythons: Sequence[str] = PYTHONS) -> Interpreter:
    """Return the interpreter of an executable; for a virtual environment's, the Python that it was made from.

    Raises UnsupportedPython, with the reason and a hint, for all but CPython of one of ``pythons`` on Linux x86-64.
    """
    facts = interpreter_facts(executable, env=env)
    require_supported_interpreter(executable, facts, pythons)
    return interpreter_from_facts(facts)


def interpreter_facts(executable: Path, *, env: Mapping[str, str]) -> dict[str, Any]:
    """Return the probe's facts about an interpreter; for a virtual environment's, the Python that it was made from.

    Raises UnsupportedPython when it does not answer.
    """
    facts = _run_probe(executable, env)
    if facts.get("virtual"):  # Debian's own has another package folder than the environments made from it
        facts = _run_probe(Path(facts["executable"]), env)
    return facts


def _run_probe(executable: Path, env: Mapping[str, str]) -> dict[str, Any]:
    try:
        result = process.capture([executable, "-I", "-B", _PROBE], env=env, timeout=_PROBE_SECONDS)
        if result.ok:
            answer: dict[str, Any] = json.loads(result.stdout)
            return answer
        why = result.tail or f"it ended with exit code {result.exit_code}"
    except (MissingTool, OSError, ValueError) as error:
        why = str(error)
    raise UnsupportedPython(f"{executable} does not answer as a Python 3", why=why, hint=_HINT)


def require_supported_interpreter(executable: Path, facts: Mapping[str, Any], pythons: Sequence[str] = PYTHONS) -> None:
    """Raise UnsupportedPython when a rehearsal cannot use an interpreter with these facts."""
    why = next(_unsupported_reasons(facts, pythons), None)
    if why is not None:
        raise UnsupportedPython(f"{executable} cannot be used for a rehearsal", why=why, hint=_HINT)


def _unsupported_reasons(facts: Mapping[str, Any], pythons: Sequence[str]) -> Iterator[str]:
    python = ".".join(str(number) for number in facts["version"][:2])
    if facts["implementation"] != "cpython":
        yield f"it is {facts['implementation']}, but TensorFlow's extension modules are for CPython"
    if facts["system"] != "linux" or facts["machine"] not in {"x86_64", "AMD64"} or facts["bits"] != 64:
        yield f"it runs on {facts['system']} {facts['machine']} with {facts['bits']} bits, the wheels on linux x86_64"
    if facts["libc"] != "glibc":
        yield "its C library is not glibc, which the manylinux wheels need"
    if python not in pythons:
        yield f"it is Python {python}, and this TensorFlow has wheels for {PYTHONS[0]} to {PYTHONS[-1]} only"
    if facts["free_threaded"] or facts["debug"]:
        kind = "free-threaded" if facts["free_threaded"] else "debug"
        yield f"it is a {kind} build, whose extension modules are not the usual ones"
    if facts["release"] != "final":
        yield f"it is a pre-release ({facts['release']})"
    yield from _relocation_obstacles(facts, python)


def _relocation_obstacles(facts: Mapping[str, Any], python: str) -> Iterator[str]:
    """Yield the reasons why an interpreter would not find its parts in another prefix."""
    base = Path(facts["base_prefix"])
    if Path(facts["stdlib"]) not in {base / folder / f"python{python}" for folder in ("lib", "lib64")}:
        yield f"its standard library is in {facts['stdlib']}, where it would not be found after a move"
    if not facts["lib_dynload"] or base not in Path(facts["lib_dynload"][0]).parents:
        yield "its compiled modules are not in a folder lib-dynload"
    if not _is_elf_file(Path(facts["executable"])):
        yield f"{facts['executable']} is a script, so the path of the real program is unknown"


def _is_elf_file(path: Path) -> bool:
    try:
        with path.open("rb") as file:
            return file.read(4) == b"\x7fELF"
    except OSError:
        return False


def interpreter_from_facts(facts: Mapping[str, Any]) -> Interpreter:
    """Return the interpreter with these facts."""
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
        libraries=interpreter_libraries(
            (Path(path) for path in facts["mapped"]), base=base, stdlib=Path(facts["stdlib"])
        ),
        standard_layout=packages in facts["site_packages"] and Path(facts["scheme"]) == base / packages,
    )


def interpreter_libraries(mapped: Iterable[Path], *, base: Path, stdlib: Path) -> tuple[Path, ...]:
    """Return the mapped libraries that belong to the interpreter: those in its prefix, and libpython."""
    outside = (path for path in mapped if stdlib not in path.parents and path.name.partition(".so")[1])
    libraries = {
        path
        for path in outside
        if _LIBPYTHON.match(path.name)
        or (base != _SYSTEM_PREFIX and base in path.parents and "lib-dynload" not in path.parts)
    }
    return tuple(sorted(libraries, key=lambda path: (not _LIBPYTHON.match(path.name), path)))


def find_interpreter(
    python: str, *, first: Iterable[Path] = (), last: Iterable[Path] = (), env: Mapping[str, str]
) -> Interpreter:
    """Return an interpreter of a minor version, ``3.12``: from ``first``, from this machine, or from ``last``.

    Raises UnsupportedPython when there is no usable one.
    """
    refusals = []
    for executable in dict.fromkeys([*first, *candidate_executables(python, env), *last]):
        try:
            interpreter = probe_interpreter(executable, env=env, pythons=(*PYTHONS, python))
        except UnsupportedPython as error:
            refusals.append(f"{error.what}{f' ({error.why})' if error.why else ''}")
            continue
        if interpreter.minor_version == python:
            return interpreter
    raise UnsupportedPython(
        f"no usable Python {python} for a rehearsal",
        why="; ".join(refusals)
        or f"python{python} not found on PATH, in the system's folders, or among those of pyenv, uv and conda",
    )


def first_available_interpreter(
    *, first: Iterable[Path] = (), env: Mapping[str, str], pythons: Iterable[str] = PYTHONS[::-1]
) -> Interpreter | None:
    """Return an interpreter of the first of ``pythons`` that this machine has; None when it has no usable one."""
    for python in pythons:
        with contextlib.suppress(UnsupportedPython):
            return find_interpreter(python, first=first, env=env)
    return None


def candidate_executables(python: str, env: Mapping[str, str]) -> Iterator[Path]:
    """Yield the existing executables of a minor version's interpreters, best first.

    PATH comes first, then the system's folders, pyenv's versions, uv's, and conda's environments.
    """
    home = Path(env.get("HOME", "/nonexistent"))
    pyenv = Path(env.get("PYENV_ROOT") or home / ".pyenv")
    for folder in dict.fromkeys([*filter(None, env.get("PATH", "").split(":")), *SYSTEM_FOLDERS]):
        yield from _matching_files(Path(folder), f"python{python}")
    yield from _newest_version_first(_matching_files(pyenv, f"versions/{python}.*/bin/python{python}"))
    uv = _uv_python_folder(home, env)
    yield from _newest_version_first(_matching_files(uv, f"cpython-{python}.*/bin/python{python}"))
    for prefix in _conda_prefixes(home):
        yield from _matching_files(prefix, f"bin/python{python}")


def _matching_files(folder: Path, pattern: str) -> Iterator[Path]:
    """Yield the files below a folder that match; none where it may not be read, as a shell takes PATH."""
    with contextlib.suppress(OSError):
        yield from folder.glob(pattern)


def _uv_python_folder(home: Path, env: Mapping[str, str]) -> Path:
    """Return uv's folder of interpreters, as uv prints it; without uv, its default."""
    if process.program_on_path("uv", env=env):
        with contextlib.suppress(MissingTool):
            answer = process.capture(["uv", "python", "dir"], env=env, timeout=_ANSWER_SECONDS)
            if answer.ok and answer.stdout.strip():
                return Path(answer.stdout.strip())
    data = Path(env.get("XDG_DATA_HOME") or home / ".local" / "share")
    return Path(env.get("UV_PYTHON_INSTALL_DIR") or data / "uv" / "python")


def _conda_prefixes(home: Path) -> Iterator[Path]:
    """Yield the prefixes of the user's environments, which conda and mamba list in a file."""
    with contextlib.suppress(OSError):
        for line in (home / ".conda" / "environments.txt").read_text(encoding="utf-8", errors="replace").splitlines():
            if line.startswith("/"):
                yield Path(line.strip())


def _newest_version_first(paths: Iterable[Path]) -> list[Path]:
    def version_numbers_in_path(path: Path) -> list[int]:
        return [int(number) for number in re.findall(r"\d+", path.parts[-3])]

    return sorted(paths, key=version_numbers_in_path, reverse=True)


DEFAULT_CHANNEL = "conda-forge"
NO_CHANNEL = "none"
SPACE = 1_000_000_000  # bytes: a Python with its dependencies, packed and unpacked
_SECONDS = 600


@dataclass(frozen=True, slots=True, kw_only=True)
class PythonRequest:
    """A request for a Python: a minor version, ``3.12``, and kiln's folder into which it is installed.

    ``channel`` is the name or URL of a conda channel, or ``none`` to fetch nothing. ``refusal`` is the reason why this
    machine's Pythons cannot be used.
    """

    python: str
    folder: Path
    channel: str = DEFAULT_CHANNEL
    refusal: str = ""


def fetched_pythons(python: str, folder: Path) -> tuple[Path, ...]:
    """Return the interpreters of a minor version that exist in ``folder``."""
    from_channel = folder / python / "bin" / f"python{python}"
    return tuple(path for path in (from_channel, *_uv_installed_pythons(python, folder)) if path.exists())


def fetch_python(
    request: PythonRequest, *, env: Mapping[str, str], say: Callable[[str], None] = lambda _: None
) -> Interpreter:
    """Fetch an interpreter: from a conda channel, else with uv if it is on PATH.

    ``say`` gets a line for each attempt.
    """
    if request.channel == NO_CHANNEL:
        raise _no_python_error(request, ["--python-channel none forbids a download"], env)
    files.require_disk_space(request.folder, SPACE, for_what=f"fetching Python {request.python}")
    reasons = []
    methods = [(request.channel, _install_from_channel)]
    methods += [("uv", _install_with_uv)] if process.program_on_path("uv", env=env) else []
    for name, attempt in methods:
        say(f"no usable Python {request.python} on this machine: fetching it from {name}")
        try:
            return probe_interpreter(attempt(request, env), env=env)
        except (AlreadyRunning, DiskFull, NotWritable):
            raise
        except KilnError as error:
            reasons.append(f"{name}: {_one_line_error(error)}")
    if len(reasons) == 1:
        reasons.append("uv is not on PATH")
    raise _no_python_error(request, reasons, env)


def _no_python_error(request: PythonRequest, reasons: Iterable[str], env: Mapping[str, str]) -> UnsupportedPython:
    """Return the error for a machine without a Python, with the command that installs one."""
    return UnsupportedPython(
        f"no usable Python {request.python} on this machine, and the download failed",
        why="\n       ".join((*filter(None, (request.refusal,)), *reasons)),
        hint=install_command(request.python, env=env),
    )


def install_command(python: str, *, env: Mapping[str, str]) -> str:
    """Return the command that installs a Python of a minor version on this system."""
    manager = process.package_manager()
    if manager == "dnf" or (manager == "apt" and _is_available_in_apt(f"python{python}", env)):
        return process.installation_command([f"python{python}"], manager)
    if process.program_on_path("pyenv", env=env):
        return f"pyenv install {python}"
    conda = next((name for name in ("conda", "mamba", "micromamba") if process.program_on_path(name, env=env)), None)
    if conda is not None:
        return f"{conda} create --name py{python} --channel conda-forge python={python}"
    if process.program_on_path("uv", env=env):
        return f"uv python install {python}"
    return f"python3 -m venv ~/.uv && ~/.uv/bin/pip install uv && ~/.uv/bin/uv python install {python}"


def _install_from_channel(request: PythonRequest, env: Mapping[str, str]) -> Path:
    """Install a channel's Python into a prefix, atomically."""
    python, prefix = request.python, files.safe_path_inside(request.folder / request.python, request.folder)
    unusable = solve.folder_identity(prefix)
    specs = [f"python {python}.* *_{python_build_suffix(python)}"]
    records = solve.solve([request.channel], specs, virtual_packages=solve.machine_virtual_packages(env))
    solve.install_atomically(records, prefix, replaced=unusable, wait=_SECONDS)
    return prefix / "bin" / f"python{python}"


def _install_with_uv(request: PythonRequest, env: Mapping[str, str]) -> Path:
    folder = files.safe_path_inside(request.folder / "uv", request.folder)
    uv_variables = {"UV_PYTHON_INSTALL_DIR": str(folder), "UV_PYTHON_INSTALL_BIN": "0"}
    result = process.run(["uv", "python", "install", request.python], env={**env, **uv_variables}, timeout=_SECONDS)
    paths = _uv_installed_pythons(request.python, request.folder)
    if not result.ok or not paths:
        raise DownloadFailed(f"it ended with exit code {result.exit_code}", why=result.tail)
    return paths[-1]


def _uv_installed_pythons(python: str, folder: Path) -> list[Path]:
    return sorted((folder / "uv").glob(f"cpython-{python}.*/bin/python{python}"))


def _is_available_in_apt(name: str, env: Mapping[str, str]) -> bool:
    try:
        answer = process.capture(["apt-cache", "policy", name], env={**env, "LC_ALL": "C"}, timeout=_ANSWER_SECONDS)
    except MissingTool:
        return False
    return "Candidate: " in answer.stdout and "Candidate: (none)" not in answer.stdout


def _one_line_error(error: KilnError) -> str:
    """Return an error's message with the last line of its reason, which names the cause."""
    lines = [line.strip() for line in error.why.splitlines() if line.strip()]
    return f"{error.what}{f' ({lines[-1][:300]})' if lines else ''}"
