"""Create the environment: an empty one, then the locked packages, then the marker that completes it."""

from __future__ import annotations

import os
import re
import shlex
import shutil
import sys
import zipfile
from contextlib import contextmanager, suppress
from functools import partial
from importlib.metadata import distributions, version
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from kiln.bootstrap import setup_process
from kiln.bootstrap.environment_state import (
    COLLECTIONS,
    LOCK,
    MARKER,
    base_python,
    environment_python,
    examine_environment,
    has_marker_for_folder,
    installed_requirement_files,
    requirements_digest,
    write_environment_marker,
)
from kiln.bootstrap.setup_errors import raise_os_error, raise_pip_error, raise_venv_error
from kiln.errors import DownloadFailed, MissingTool, NotWritable
from kiln.operating_system import file_locks
from kiln.operating_system.venv_layout import PROGRAM, PROGRAM_TEXT, ROOT_FROM_PACKAGES, site_packages

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    Say = Callable[[str], None]

# The user's network settings apply here too. The user's other pip settings (a target folder, `user`, constraints, a
# dry run) are for the user's own installs and would send these packages elsewhere or nowhere.
_PIP_NETWORK = frozenset(
    f"PIP_{name}"
    for name in (
        *("CERT", "CLIENT_CERT", "KEYRING_PROVIDER", "PROXY", "TRUSTED_HOST"),
        *("EXTRA_INDEX_URL", "FIND_LINKS", "INDEX_URL", "NO_INDEX"),
        *("CACHE_DIR", "CONFIG_FILE", "DEFAULT_TIMEOUT", "NO_CACHE_DIR", "RETRIES", "TIMEOUT"),
    )
)
_LOCKED = (
    *("--require-hashes", "--no-deps", "--only-binary=:all:"),
    *("--disable-pip-version-check", "--no-input", "--progress-bar=off"),
)
_INSTALL = ("install", "--no-user", "--no-warn-script-location", *_LOCKED)
_DOWNLOAD = ("download", *_LOCKED)
_PATH_FILE = "kiln-root.pth"
# The collections of the playbooks. The wheel of PyPI's `ansible` also holds a hundred others, ten times their size.
NEEDED_COLLECTIONS = ("amazon.aws", "openstack.cloud")


class _EnvironmentSetup(NamedTuple):
    """One set-up of the environment in ``folder``; the steps inherit the open lock file ``lock``."""

    folder: Path
    locks: tuple[str, ...]
    say: Say
    lock: int

    @property
    def clone_root(self) -> Path:
        """The clone of the environment."""
        return self.folder.parent

    def requirements_path(self, name: str) -> Path:
        """Return the path of a lock."""
        return self.clone_root / "requirements" / name


def create_environment(folder: Path, locks: Sequence[str], say: Say) -> None:
    """Create or complete the environment in ``folder``, at the top of a clone; concurrent processes do it once.

    Raises MissingTool, DownloadFailed, HashMismatch, NotWritable or DiskFull.
    """
    reason = examine_environment(folder, locks).reason
    try:
        with _environment_lock(folder, say) as lock:
            state = examine_environment(folder, locks)  # another process may have created it while this one waited
            if state.reason:
                names = {*locks, *(installed_requirement_files(folder) if state.completable else ())}
                _set_up_environment(
                    _EnvironmentSetup(folder, tuple(sorted(names)), say, lock), reason, completable=state.completable
                )
    except OSError as failure:
        raise_os_error(failure, folder)


def _set_up_environment(job: _EnvironmentSetup, reason: str, *, completable: bool) -> None:
    started_at, folder = monotonic(), job.folder
    _refuse_link_to_other_clone(folder)
    job.say(f"{reason}: {'completing' if completable else 'setting up'} {folder.name} (about 20 s)")
    digests = {name: requirements_digest(job.clone_root, name) for name in job.locks}
    (folder / MARKER).unlink(missing_ok=True)  # until it is written again, the next run redoes the work of a killed one
    try:
        if not completable:
            _clear_except_lock(folder)
            _create_empty_venv(job)
        _install_locked_packages(job)
        if COLLECTIONS in job.locks:
            _install_ansible_collections(job)
        # relative, because a path file is read in the locale's encoding
        (site_packages(folder) / _PATH_FILE).write_bytes(f"{ROOT_FROM_PACKAGES}\n".encode())
        # the program ``kiln``, which can be started from anywhere, also through a link
        (folder / PROGRAM).write_bytes(PROGRAM_TEXT.encode())
        (folder / PROGRAM).chmod(0o755)
        write_environment_marker(folder, digests)
    except BaseException:
        with suppress(OSError):
            _clear_except_lock(folder)  # frees the space, above all when the disk is full
        raise
    job.say(f"{folder.name} is ready ({monotonic() - started_at:.0f} s)")


def _create_empty_venv(job: _EnvironmentSetup) -> None:
    """Create an empty environment, with its own pip if this Python has ensurepip."""
    base, with_pip = base_python(), _has_module("ensurepip")
    if not _has_module("venv") or not (with_pip or _has_pip_with_python_option()):
        raise MissingTool(
            f"{base} cannot make an environment: its module 'venv' or 'ensurepip' is missing",
            why="Debian and Ubuntu keep these in a package of their own",
            hint="apt install python{}.{}-venv, or run this with another Python".format(*sys.version_info),
        )
    options = [] if with_pip else ["--without-pip"]
    code, tail = _run_setup_step(job, [str(base), "-I", "-m", "venv", *options, str(job.folder)])
    if code:
        raise_venv_error(tail, base, job.clone_root)


def _has_module(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and spec.origin is not None  # a mere folder of that name has no origin


def _has_pip_with_python_option() -> bool:
    """Return whether this Python's pip can install into another environment, which needs pip 22.3 or newer."""
    return _has_module("pip") and tuple(int(part) for part in re.findall(r"\d+", version("pip"))[:2]) >= (22, 3)


def _install_locked_packages(job: _EnvironmentSetup) -> None:
    """Install the packages of the lock files, each verified against its hash, and check that they are installed."""
    folder, locks = job.folder, [name for name in job.locks if name != COLLECTIONS]
    files = [argument for name in locks for argument in ("-r", str(job.requirements_path(name)))]
    code, tail = _run_setup_step(
        job, [*_pip_command(folder), *_INSTALL, *files], on_line=partial(_report_installing, job.say)
    )
    if code:
        raise_pip_error(tail, job.clone_root)
    absent = {
        requirement for name in locks for requirement in _unconditional_requirements(job.clone_root, name)
    } - _installed_distributions(folder)
    if absent:
        raise DownloadFailed(
            f"pip reported success, but {', '.join(sorted(absent))} are not installed in {folder}",
            hint="see `pip config list`: a setting such as target, prefix, root or dry-run sends packages elsewhere",
        )


def _install_ansible_collections(job: _EnvironmentSetup) -> None:
    """Fetch the wheel of Ansible's collections, and unpack those that the playbooks use into site-packages."""
    scratch = job.folder / "collections"
    job.say("fetching Ansible's collections (52 MB)")
    code, tail = _run_setup_step(
        job,
        [*_pip_command(job.folder), *_DOWNLOAD, "--dest", str(scratch), "-r", str(job.requirements_path(COLLECTIONS))],
    )
    if code:
        raise_pip_error(tail, job.clone_root)
    for wheel in scratch.iterdir():
        unpack_collections(wheel, site_packages(job.folder))
    shutil.rmtree(scratch)


def unpack_collections(wheel: Path, site_packages: Path) -> None:
    """Unpack the needed collections where Ansible finds them; the caller has verified the wheel's hash."""
    parts = tuple(f"ansible_collections/{name.replace('.', '/')}/" for name in NEEDED_COLLECTIONS)
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.startswith(parts) and "/tests/" not in name]
        archive.extractall(site_packages, members)


def _pip_command(folder: Path) -> list[str]:
    """Return the command of the environment's own pip, or of this Python's if it has none (without ensurepip)."""
    if (site_packages(folder) / "pip").is_dir():
        return [str(environment_python(folder)), "-I", "-m", "pip"]
    return [sys.executable, "-I", "-m", "pip", "--python", str(environment_python(folder))]


def _report_installing(say: Say, line: str) -> None:
    """Report when a line of pip's says that it begins to install, the second long part of the set-up."""
    if line.startswith("Installing collected packages:"):
        count = line.count(",") + 1
        say("fetched 1 package, installing it" if count == 1 else f"fetched {count} packages, installing them")


def _run_setup_step(job: _EnvironmentSetup, arguments: Sequence[str], on_line: Say = lambda _: None) -> tuple[int, str]:
    """Run one step; return its exit code and the end of its output."""
    return setup_process.run_step_process(
        arguments, env=setup_step_environment(os.environ), lock=job.lock, on_line=on_line
    )


def setup_step_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment without variables that would send a step's packages or imports elsewhere."""
    strays = {name for name in env if name.startswith("PIP_")} - _PIP_NETWORK | {"PYTHONHOME", "PYTHONPATH"}
    return {name: value for name, value in env.items() if name not in strays}


@contextmanager
def _environment_lock(folder: Path, say: Say) -> Iterator[int]:
    """Hold the environment's lock, after waiting for another process that holds it; yield the open file."""
    _require_environment_or_new_folder(folder)
    folder.mkdir(exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            file_locks.acquire_lock(lock, wait=False)
        except BlockingIOError:
            say(f"another process is setting up {folder.name}: waiting for it")
            file_locks.acquire_lock(lock, wait=True)
        yield lock
    finally:
        with suppress(OSError):  # an error before the lock was held
            file_locks.release_lock(lock)
        os.close(lock)


def _require_environment_or_new_folder(folder: Path) -> None:
    """Raise NotWritable for a folder of the environment's name that is not an environment, which stays unchanged."""
    if not os.path.lexists(folder) or (folder / LOCK).exists() or (folder / "pyvenv.cfg").exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise NotWritable(f"{folder} is not a Python environment", hint="move it away: kiln creates its own there")


def _refuse_link_to_other_clone(folder: Path) -> None:
    """Raise NotWritable for a link to an environment that is not recorded as this clone's, before it is emptied."""
    if (
        folder.is_symlink()
        and not has_marker_for_folder(folder)
        and any(entry.name != LOCK for entry in folder.iterdir())
    ):
        raise NotWritable(
            f"{folder} is a link to the environment {folder.resolve()}, which is not recorded as this clone's",
            why="setting it up would remove the packages that another clone uses",
            hint=f"remove the link, and run this again: rm {shlex.quote(str(folder))}",
        )


def _clear_except_lock(folder: Path) -> None:
    """Empty the folder except for the lock file, for which other processes may be waiting."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()


def _unconditional_requirements(root: Path, lock: str) -> set[str]:
    """Return a lock file's ``name==version`` entries that apply everywhere: those without a marker after ``;``."""
    lines = (root / "requirements" / lock).read_text(encoding="utf-8").splitlines()
    return {line.rstrip(" \\") for line in lines if line[:1].isalnum() and ";" not in line}


def _installed_distributions(folder: Path) -> set[str]:
    installed = distributions(path=[str(site_packages(folder))])
    return {
        f"{re.sub(r'[-_.]+', '-', distribution.metadata['Name']).lower()}=={distribution.version}"
        for distribution in installed
    }
