"""The download of a Python for a rehearsal when this machine has no usable one: from a conda channel, or with uv.

It is installed into kiln's own folder for each minor version, where the next rehearsal finds it. Nothing of the
user's is changed: neither the shell, nor PATH, nor uv's folders.
"""

from __future__ import annotations

import shutil
from dataclasses import dataclass
from typing import TYPE_CHECKING

from kiln import files, process_runner, solve_and_install, system_package_advice, virtual_packages
from kiln.errors import AlreadyRunning, DiskFull, DownloadFailed, KilnError, MissingTool, NotWritable, UnsupportedPython
from kiln.rehearse.python_package_from_interpreter import python_build_suffix
from kiln.rehearse.usable_python_search import Interpreter, probe_interpreter

if TYPE_CHECKING:
    from collections.abc import Callable, Iterable, Mapping
    from pathlib import Path


DEFAULT_CHANNEL = "conda-forge"
NO_CHANNEL = "none"
SPACE = 1_000_000_000  # bytes: a Python with its dependencies, packed and unpacked
_SECONDS = 600
_ANSWER_SECONDS = 60


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

    Raises:
        UnsupportedPython: all attempts failed; it gives each reason, and the command that installs a Python here.
        DiskFull: there is not enough disk space.
        AlreadyRunning: another process fetches it, and does not end.
        NotWritable: a link is in the place of its folder.
    """
    if request.channel == NO_CHANNEL:
        raise _no_python_error(request, ["--python-channel none forbids a download"], env)
    files.require_disk_space(request.folder, SPACE, for_what=f"fetching Python {request.python}")
    reasons = []
    methods = [(request.channel, _install_from_channel)]
    methods += [("uv", _install_with_uv)] if _is_on_path("uv", env) else []
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
    manager = system_package_advice.package_manager()
    if manager == "dnf" or (manager == "apt" and _is_available_in_apt(f"python{python}", env)):
        return system_package_advice.installation_command([f"python{python}"], manager)
    if _is_on_path("pyenv", env):
        return f"pyenv install {python}"
    conda = next((name for name in ("conda", "mamba", "micromamba") if _is_on_path(name, env)), None)
    if conda is not None:
        return f"{conda} create --name py{python} --channel conda-forge python={python}"
    if _is_on_path("uv", env):
        return f"uv python install {python}"
    return f"python3 -m venv ~/.uv && ~/.uv/bin/pip install uv && ~/.uv/bin/uv python install {python}"


def _install_from_channel(request: PythonRequest, env: Mapping[str, str]) -> Path:
    """Install a channel's Python into a prefix, atomically."""
    python, prefix = request.python, files.safe_path_inside(request.folder / request.python, request.folder)
    unusable = solve_and_install.folder_identity(prefix)
    specs = [f"python {python}.* *_{python_build_suffix(python)}"]
    records = solve_and_install.solve(
        [request.channel], specs, virtual_packages=virtual_packages.machine_virtual_packages(env)
    )
    solve_and_install.install_atomically(records, prefix, replaced=unusable, wait=_SECONDS)
    return prefix / "bin" / f"python{python}"


def _install_with_uv(request: PythonRequest, env: Mapping[str, str]) -> Path:
    folder = files.safe_path_inside(request.folder / "uv", request.folder)
    uv_variables = {"UV_PYTHON_INSTALL_DIR": str(folder), "UV_PYTHON_INSTALL_BIN": "0"}
    result = process_runner.run(
        ["uv", "python", "install", request.python], env={**env, **uv_variables}, timeout=_SECONDS
    )
    paths = _uv_installed_pythons(request.python, request.folder)
    if not result.ok or not paths:
        raise DownloadFailed(f"it ended with exit code {result.exit_code}", why=result.tail)
    return paths[-1]


def _uv_installed_pythons(python: str, folder: Path) -> list[Path]:
    return sorted((folder / "uv").glob(f"cpython-{python}.*/bin/python{python}"))


def _is_available_in_apt(name: str, env: Mapping[str, str]) -> bool:
    try:
        answer = process_runner.capture(
            ["apt-cache", "policy", name], env={**env, "LC_ALL": "C"}, timeout=_ANSWER_SECONDS
        )
    except MissingTool:
        return False
    return "Candidate: " in answer.stdout and "Candidate: (none)" not in answer.stdout


def _is_on_path(program: str, env: Mapping[str, str]) -> bool:
    return shutil.which(program, path=env.get("PATH", "")) is not None


def _one_line_error(error: KilnError) -> str:
    """Return an error's message with the last line of its reason, which names the cause."""
    lines = [line.strip() for line in error.why.splitlines() if line.strip()]
    return f"{error.what}{f' ({lines[-1][:300]})' if lines else ''}"
