"""Make the environment: an empty one, then the locked packages, then the marker that calls it whole."""

from __future__ import annotations

import fcntl
import os
import re
import shutil
import subprocess
import sys
from collections import deque
from contextlib import contextmanager, suppress
from importlib.metadata import distributions, version
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple

from kiln.bootstrap import collections
from kiln.bootstrap.faults import explain_os_error, explain_pip, explain_venv
from kiln.bootstrap.state import (
    COLLECTIONS,
    LOCK,
    MARKER,
    base_python,
    digest,
    examine,
    python_of,
    recorded_locks,
    write_marker,
)
from kiln.errors import DownloadFailed, MissingTool, NotWritable

if TYPE_CHECKING:
    from collections.abc import Callable, Iterator, Mapping, Sequence
    from pathlib import Path

    Say = Callable[[str], None]

# The user's way to the network holds for us too. His other pip settings (a target folder, `user`, constraints, a
# dry run) are meant for his own installs and would put ours elsewhere or nowhere.
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
_ROOT_FROM_SITE_PACKAGES = "../../../.."  # relative, since a path file is read in the locale's encoding


class _Job(NamedTuple):
    """One set-up of the environment in ``folder``; ``lock`` is the open lock file, which the steps inherit."""

    folder: Path
    locks: tuple[str, ...]
    say: Say
    lock: int

    @property
    def root(self) -> Path:
        """The clone that the environment belongs to."""
        return self.folder.parent

    def list_of(self, name: str) -> Path:
        """The file of a lock."""
        return self.root / "requirements" / name


def make(folder: Path, locks: Sequence[str], say: Say) -> None:
    """Make or mend the environment in ``folder``, at the top of a clone, once, however many processes ask for it.

    Raises MissingTool, DownloadFailed, HashMismatch, NotWritable or DiskFull.
    """
    reason = examine(folder, locks).reason
    try:
        with _alone(folder, say) as lock:
            now = examine(folder, locks)  # another process may have made it while this one waited
            if now.reason:
                names = {*locks, *(recorded_locks(folder) if now.mendable else ())}
                _make(_Job(folder, tuple(sorted(names)), say, lock), reason, mendable=now.mendable)
    except OSError as failure:
        explain_os_error(failure, folder)


def _make(job: _Job, reason: str, *, mendable: bool) -> None:
    began, folder = monotonic(), job.folder
    job.say(f"{reason}: {'completing' if mendable else 'setting up'} {folder.name} (about 20 s)")
    digests = {name: digest(job.root, name) for name in job.locks}
    (folder / MARKER).unlink(missing_ok=True)  # from here to its return a killed run leaves what the next one redoes
    try:
        if not mendable:
            _clear(folder)
            _create(job)
        _install(job)
        if COLLECTIONS in job.locks:
            _unpack_collections(job)
        (_site_packages(folder) / _PATH_FILE).write_text(f"{_ROOT_FROM_SITE_PACKAGES}\n")
        write_marker(folder, digests)
    except BaseException:
        with suppress(OSError):
            _clear(folder)  # gives the room back, above all when the disk is full
        raise
    job.say(f"{folder.name} is ready ({monotonic() - began:.0f} s)")


def _create(job: _Job) -> None:
    """Make an empty environment, with a pip of its own where this Python can give it one."""
    base, with_pip = base_python(), _has("ensurepip")
    if not _has("venv") or not (with_pip or _can_lend_pip()):
        raise MissingTool(
            f"{base} cannot make an environment: its module 'venv' or 'ensurepip' is missing",
            why="Debian and Ubuntu keep these in a package of their own",
            hint="apt install python{}.{}-venv, or run this with another Python".format(*sys.version_info),
        )
    options = [] if with_pip else ["--without-pip"]
    code, tail = _call(job, [str(base), "-I", "-m", "venv", *options, str(job.folder)])
    if code:
        explain_venv(tail, base, job.root)


def _has(module: str) -> bool:
    spec = find_spec(module)
    return spec is not None and spec.origin is not None  # a mere folder of that name has no origin


def _can_lend_pip() -> bool:
    """Whether this Python's own pip can install into another environment, as pip can since 22.3."""
    return _has("pip") and tuple(int(part) for part in re.findall(r"\d+", version("pip"))[:2]) >= (22, 3)


def _install(job: _Job) -> None:
    """Install what the lock files name, each file checked against its hash, and see that it is there."""
    folder, locks = job.folder, [name for name in job.locks if name != COLLECTIONS]
    files = [argument for name in locks for argument in ("-r", str(job.list_of(name)))]
    code, tail = _call(job, [*_pip_for(folder), *_INSTALL, *files], on_line=_progress(job.say))
    if code:
        explain_pip(tail, job.root)
    missing = {each for name in locks for each in _unconditional(job.root, name)} - _installed(folder)
    if missing:
        raise DownloadFailed(
            f"pip reported success, but {', '.join(sorted(missing))} did not arrive in {folder}",
            hint="see `pip config list`: a setting such as target, prefix, root or dry-run sends packages elsewhere",
        )


def _unpack_collections(job: _Job) -> None:
    """Fetch the wheel that holds Ansible's collections, and unpack those that the playbooks use beside the packages."""
    scratch = job.folder / "collections"
    job.say("fetching Ansible's collections (52 MB)")
    code, tail = _call(
        job, [*_pip_for(job.folder), *_DOWNLOAD, "--dest", str(scratch), "-r", str(job.list_of(COLLECTIONS))]
    )
    if code:
        explain_pip(tail, job.root)
    for wheel in scratch.iterdir():
        collections.unpack(wheel, _site_packages(job.folder))
    shutil.rmtree(scratch)


def _pip_for(folder: Path) -> list[str]:
    """The environment's own pip, or where it got none (without ensurepip) the pip of this Python, lent."""
    if (_site_packages(folder) / "pip").is_dir():
        return [str(python_of(folder)), "-I", "-m", "pip"]
    return [sys.executable, "-I", "-m", "pip", "--python", str(python_of(folder))]


def _progress(say: Say) -> Callable[[str], None]:
    """Say when pip turns from fetching to installing, the two long parts of the set-up."""

    def on_line(line: str) -> None:
        if line.startswith("Installing collected packages:"):
            say(f"fetched {line.count(',') + 1} packages, installing them")

    return on_line


def _call(job: _Job, arguments: Sequence[str], on_line: Say = lambda _: None) -> tuple[int, str]:
    """Run one step; returns its exit code and the end of what it said.

    The step holds the lock open too: should this process be killed, the next run waits for the step to end.
    """
    tail: deque[str] = deque(maxlen=60)
    process = subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=step_environment(os.environ),
        pass_fds=(job.lock,),
        encoding="utf-8",
        errors="replace",
    )
    assert process.stdout is not None
    try:
        for line in process.stdout:
            tail.append(line.rstrip())
            on_line(line.rstrip())
        return process.wait(), "\n".join(tail)
    finally:
        process.kill()  # no-op after the end; on Ctrl-C nothing may write on into a folder that is being emptied
        process.wait()
        process.stdout.close()


def step_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment without what would send a step's packages or imports elsewhere."""
    strays = {name for name in env if name.startswith("PIP_")} - _PIP_NETWORK | {"PYTHONHOME", "PYTHONPATH"}
    return {name: value for name, value in env.items() if name not in strays}


@contextmanager
def _alone(folder: Path, say: Say) -> Iterator[int]:
    """Hold the environment's lock, waiting for another process that works on it; gives the open file."""
    _refuse_foreign(folder)
    folder.mkdir(exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            say(f"another process is setting up {folder.name}: waiting for it")
            fcntl.flock(lock, fcntl.LOCK_EX)
        yield lock
    finally:
        os.close(lock)


def _refuse_foreign(folder: Path) -> None:
    """Stop before something that only happens to have the environment's name is emptied."""
    if not os.path.lexists(folder) or (folder / LOCK).exists() or (folder / "pyvenv.cfg").exists():
        return
    if not folder.is_dir() or any(folder.iterdir()):
        raise NotWritable(f"{folder} is no environment of Python", hint="move it away: kiln makes its own there")


def _clear(folder: Path) -> None:
    """Empty the folder but for the lock, whose file others may be waiting on."""
    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()


def _site_packages(folder: Path) -> Path:
    return next(folder.glob("lib/*/site-packages"))


def _unconditional(root: Path, lock: str) -> set[str]:
    """The ``name==version`` of a lock file that hold everywhere: those without a marker after ``;``."""
    lines = (root / "requirements" / lock).read_text().splitlines()
    return {line.rstrip(" \\") for line in lines if line[:1].isalnum() and ";" not in line}


def _installed(folder: Path) -> set[str]:
    found = distributions(path=[str(_site_packages(folder))])
    return {f"{re.sub(r'[-_.]+', '-', each.metadata['Name']).lower()}=={each.version}" for each in found}
