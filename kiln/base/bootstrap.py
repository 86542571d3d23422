"""The project's own environments, ``.venv`` and for the fleet ``.venv-fleet``: created from locked packages."""

from __future__ import annotations

import os
import re
import shlex
import signal
import sys
import threading
from collections import deque
from contextlib import ExitStack, contextmanager, suppress
from importlib.util import find_spec
from time import monotonic
from typing import TYPE_CHECKING, NamedTuple, NoReturn

from kiln.base import environment
from kiln.base.environment import (
    COLLECTIONS,
    FLEET,
    FLEET_FOLDER,
    FOLDER,
    LOCK,
    MARKER,
    PROGRAM,
    PROGRAM_TEXT,
    RUN,
    base_python,
    environment_python,
    examine_environment,
    has_marker_for_folder,
    installed_requirement_files,
    raise_os_error,
    raise_pip_error,
    raise_venv_error,
    requirements_digest,
    write_environment_marker,
)
from kiln.base.errors import DownloadFailed, Interrupted, KilnError, MissingTool, NotWritable, UnsupportedPython
from kiln.base.system import processes, user
from kiln.base.system.files import acquire_lock

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
    from pathlib import Path
    from types import FrameType

    Say = Callable[[str], None]


TAIL_LINES = 60


def run_step_process(
    arguments: Sequence[str], *, env: Mapping[str, str], lock: int, on_line: Callable[[str], None] = lambda _: None
) -> tuple[int, str]:
    """Run a step; return its exit code and the end of its output.

    The step also holds the open file ``lock``: if this process is killed, the next run waits for the step to end. If it
    is interrupted, the step and its children have ended when this returns, because their folder is emptied then.
    """
    lines: deque[str] = deque(maxlen=TAIL_LINES)
    with processes.adopt_orphans(), ExitStack() as cleanup:
        with _deferred_interrupt():  # else nothing would end a process that is being started
            process = _start_step_process(arguments, env, lock)
            cleanup.callback(_kill_step_and_children, process)
        assert process.stdout is not None
        for line in process.stdout:
            lines.append(line.rstrip())
            on_line(line.rstrip())
        return process.wait(), "\n".join(lines)


def _start_step_process(arguments: Sequence[str], env: Mapping[str, str], lock: int) -> subprocess.Popen[str]:
    import subprocess

    return subprocess.Popen(
        arguments,
        stdin=subprocess.DEVNULL,
        stdout=subprocess.PIPE,
        stderr=subprocess.STDOUT,
        env=env,
        pass_fds=[lock],
        start_new_session=True,  # a group, which can be killed as a whole
        encoding="utf-8",
        errors="replace",
    )


@contextmanager
def _deferred_interrupt() -> Iterator[None]:
    """Defer Ctrl-C to the end of the block, unless it is ignored or this is not the main thread."""
    before = signal.getsignal(signal.SIGINT)
    if before in {signal.SIG_IGN, None} or threading.current_thread() is not threading.main_thread():
        yield
        return
    pending: list[int] = []

    def record_interrupt(number: int, _frame: FrameType | None) -> None:
        pending.append(number)

    signal.signal(signal.SIGINT, record_interrupt)
    try:
        yield
    finally:
        signal.signal(signal.SIGINT, before)
        if pending:
            signal.raise_signal(signal.SIGINT)


def _kill_step_and_children(process: subprocess.Popen[str]) -> None:
    """Kill a running step with all of its child processes, wait until the last of them has ended, close its pipe."""
    if process.returncode is None:
        processes.signal_group(process, signal.SIGKILL)
        process.wait()
        processes.wait_for_group(process)
    if process.stdout is not None:
        process.stdout.close()


OLDEST_FOR_THE_FLEET = (3, 11)  # ansible-core 2.19's, by its own metadata


def exec_in_environment(root: Path, *arguments: str, locks: Sequence[str] = (RUN,)) -> NoReturn:
    """Replace this process by the environment's Python with ``arguments``, or exit with a failure's exit code.

    The entry scripts call this before there is a command line, so failures are printed and mapped to exit codes here.
    The interpreter runs isolated: neither PYTHONPATH nor the current folder can replace one of kiln's modules.
    """
    user.add_missing_home_variables()
    try:
        python = ensure_environment(root, locks=locks, say=_print_line, show=_show_progress)
    except KeyboardInterrupt:
        sys.exit(Interrupted.exit_code)
    except KilnError as failure:
        _print_line(f"error: {failure}")
        sys.exit(failure.exit_code)
    os.execv(python, [str(python), "-I", *arguments])  # noqa: S606 - it needs no shell


def ensure_environment(
    root: Path,
    *,
    locks: Sequence[str] = (RUN,),
    say: Callable[[str], None] = lambda _: None,
    show: Callable[[str], None] | None = None,
) -> Path:
    """Return the Python of the environment of the clone at ``root``, after creating or completing it if needed.

    ``locks`` are the files of requirements/ whose packages it must have; ``say`` gets one line for each step, and
    ``show``, or else ``say``, what a step has done so far when nothing was said for a while. Raises MissingTool,
    DownloadFailed, HashMismatch, NotWritable, DiskFull or Interrupted; the next call then starts again.
    """
    return _ensure_environment_in(root / FOLDER, locks, say, show or say)


def ensure_fleet_environment(root: Path, *, say: Callable[[str], None] = lambda _: None) -> Path:
    """Return the Python of the environment for ``kiln fleet``, which also holds kiln's own packages.

    ``ansible-playbook`` and Ansible's other programs are in the same folder, and find the collections. Raises the
    same as ``environment``, MissingTool when ``root`` is not a clone, and UnsupportedPython when this Python is too old
    for Ansible.
    """
    if sys.version_info < OLDEST_FOR_THE_FLEET:
        raise UnsupportedPython(
            f"kiln fleet needs Python 3.11 or newer, and this is {sys.version.split()[0]}",
            why="ansible-core 2.19, which it drives, does not run on older ones",
            hint="start it with another: python3.14 -m kiln fleet ..., or python3.13, python3.12, python3.11",
        )
    environment.require_clone("kiln fleet", root)
    return _ensure_environment_in(root / FLEET_FOLDER, (FLEET, COLLECTIONS), say, say)


def has_fleet_environment(root: Path) -> bool:
    """Return whether the environment for ``kiln fleet`` is there and up to date."""
    return (
        sys.version_info >= OLDEST_FOR_THE_FLEET
        and not examine_environment(root / FLEET_FOLDER, (FLEET, COLLECTIONS)).reason
    )


def _ensure_environment_in(folder: Path, locks: Sequence[str], say: Say, show: Say) -> Path:
    """Return the Python of the environment in ``folder``, after creating it if needed."""
    if examine_environment(folder, locks).reason:
        if "_ARGCOMPLETE" in os.environ:
            sys.exit(1)  # a shell's completion does not wait for an environment

        try:
            create_environment(folder, locks, say, show)
        except KeyboardInterrupt as stop:
            what = f"the set-up of {folder} was interrupted"
            raise Interrupted(what, hint="the next run starts it again") from stop
    return environment_python(folder)


def _print_line(line: str) -> None:
    sys.stderr.write(f"{_start_of_line()}{line}\n")
    sys.stderr.flush()


def _show_progress(line: str) -> None:
    """Print a line, which the next one replaces on a terminal."""
    start = _start_of_line()
    sys.stderr.write(f"{start}{line}" if start else f"{line}\n")
    sys.stderr.flush()


def _start_of_line() -> str:
    """Return what clears the line of a terminal; empty elsewhere."""
    return "\r\x1b[K" if sys.stderr.isatty() and os.environ.get("TERM", "dumb") != "dumb" else ""


_QUIET = 1.5  # seconds after which a step shows what it has done so far


class _Activity:
    """What a set-up does at present, by ``describe``; while it is shown, a thread tells it with the seconds so far."""

    def __init__(self, text: str) -> None:
        self.describe: Callable[[], str] = lambda: text
        self.began = monotonic()

    @contextmanager
    def shown(self, show: Say) -> Iterator[None]:
        """Show what the block does."""
        over = threading.Event()

        def show_until_over() -> None:
            while not over.wait(_QUIET):
                with suppress(OSError):  # a folder that is being emptied, or nobody reads it
                    show(f"{self.describe()} ({self.seconds:.0f} s)")

        thread = threading.Thread(target=show_until_over, name="progress of the set-up", daemon=True)
        thread.start()
        try:
            yield
        finally:
            over.set()
            thread.join()

    @property
    def seconds(self) -> float:
        """The seconds since its start."""
        return monotonic() - self.began


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
    activity: _Activity

    @property
    def clone_root(self) -> Path:
        """The clone of the environment."""
        return self.folder.parent

    def requirements_path(self, name: str) -> Path:
        """Return the path of a lock."""
        return self.clone_root / "requirements" / name


def create_environment(folder: Path, locks: Sequence[str], say: Say, show: Say) -> None:
    """Create or complete the environment in ``folder``, at the top of a clone; concurrent processes do it once.

    ``say`` and ``show`` are as for `ensure_environment`.

    Raises MissingTool, DownloadFailed, HashMismatch, NotWritable or DiskFull.
    """
    reason = examine_environment(folder, locks).reason
    try:
        with _environment_lock(folder, say, show) as lock:
            state = examine_environment(folder, locks)  # another process may have created it while this one waited
            if state.reason:
                names = {*locks, *(installed_requirement_files(folder) if state.completable else ())}
                activity = _Activity(f"making {folder.name}")
                job = _EnvironmentSetup(folder, tuple(sorted(names)), say, lock, activity)
                with activity.shown(show):
                    _set_up_environment(job, reason, completable=state.completable)
                say(f"{folder.name} is ready ({activity.seconds:.0f} s)")
    except OSError as failure:
        raise_os_error(failure, folder)


def _set_up_environment(job: _EnvironmentSetup, reason: str, *, completable: bool) -> None:
    folder = job.folder
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
        (_site_packages(folder) / _PATH_FILE).write_bytes(b"../../../..\n")
        # the program ``kiln``, which can be started from anywhere, also through a link
        (folder / PROGRAM).write_bytes(PROGRAM_TEXT.encode())
        (folder / PROGRAM).chmod(0o755)
        write_environment_marker(folder, digests)
    except BaseException:
        with suppress(OSError):
            _clear_except_lock(folder)  # frees the space, above all when the disk is full
        raise


def _create_empty_venv(job: _EnvironmentSetup) -> None:
    """Create an empty environment, with its own pip if this Python has ensurepip."""
    from importlib.metadata import version

    base, with_pip = base_python(), _has_module("ensurepip")
    # Without it, this Python's pip installs into the environment, which pip 22.3 or newer can.
    can_do_without = _has_module("pip") and tuple(map(int, re.findall(r"\d+", version("pip"))[:2])) >= (22, 3)
    if not _has_module("venv") or not (with_pip or can_do_without):
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


_INSTALLING = "Installing collected packages:"  # pip's second long part, in which it prints nothing


class PipOutput:
    """Counts the packages that pip has fetched, by its output, and then those that it has installed, by their folders.

    ``requirements`` are the entries of the locks; those with a condition may not apply.
    """

    def __init__(self, requirements: Collection[str], site_packages: Path) -> None:
        self._requirements, self._site_packages = len(requirements), site_packages
        self._ignored: set[str] = set()
        self._before: set[str] = set()
        self._begun = self.count = 0

    def add_line(self, line: str) -> None:
        """Add a line of pip's output."""
        if line.startswith("Ignoring "):
            self._ignored.add(line.partition(":")[0])
        elif line.startswith(("Collecting ", "Requirement already satisfied")):
            self._begun += 1
        elif line.startswith(_INSTALLING):
            self._before, self.count = self._installed(), line.count(",") + 1

    def _installed(self) -> set[str]:
        return {path.name for path in self._site_packages.glob("*.dist-info")}

    def describe(self) -> str:
        """Return what pip does now."""
        if self.count:
            return f"installing packages: {len(self._installed() - self._before)} of {self.count} done"
        if not self._begun:  # which ones do not apply comes before
            return "fetching packages"
        total = max(self._begun, self._requirements - len(self._ignored))
        return f"fetching packages: {self._begun - 1} of {total} done"


def _install_locked_packages(job: _EnvironmentSetup) -> None:
    """Install the packages of the lock files, each verified against its hash, and check that they are installed."""
    folder, locks = job.folder, [name for name in job.locks if name != COLLECTIONS]
    files = [argument for name in locks for argument in ("-r", str(job.requirements_path(name)))]
    pip = PipOutput({entry for name in locks for entry in _requirements(job.clone_root, name)}, _site_packages(folder))
    job.activity.describe = pip.describe

    def report_installing(line: str) -> None:
        pip.add_line(line)
        if line.startswith(_INSTALLING):
            count = pip.count
            fetched = "fetched 1 package, installing it" if count == 1 else f"fetched {count} packages, installing them"
            job.say(fetched)

    code, tail = _run_setup_step(job, [*_pip_command(folder), *_INSTALL, *files], on_line=report_installing)
    job.activity.describe = lambda: "checking the packages"
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
    import shutil

    scratch = job.folder / "collections"
    job.say("fetching Ansible's collections (52 MB)")
    job.activity.describe = lambda: "fetching Ansible's collections"
    code, tail = _run_setup_step(
        job,
        [*_pip_command(job.folder), *_DOWNLOAD, "--dest", str(scratch), "-r", str(job.requirements_path(COLLECTIONS))],
    )
    if code:
        raise_pip_error(tail, job.clone_root)
    job.activity.describe = lambda: "unpacking Ansible's collections"
    for wheel in scratch.iterdir():
        unpack_collections(wheel, _site_packages(job.folder))
    shutil.rmtree(scratch)


def unpack_collections(wheel: Path, site_packages: Path) -> None:
    """Unpack the needed collections where Ansible finds them; the caller has verified the wheel's hash."""
    import zipfile

    parts = tuple(f"ansible_collections/{name.replace('.', '/')}/" for name in NEEDED_COLLECTIONS)
    with zipfile.ZipFile(wheel) as archive:
        members = [name for name in archive.namelist() if name.startswith(parts) and "/tests/" not in name]
        archive.extractall(site_packages, members)


def _site_packages(folder: Path) -> Path:
    return next(folder.glob("lib/*/site-packages"))


def _pip_command(folder: Path) -> list[str]:
    """Return the command of the environment's own pip, or of this Python's if it has none (without ensurepip)."""
    if (_site_packages(folder) / "pip").is_dir():
        return [str(environment_python(folder)), "-I", "-m", "pip"]
    return [sys.executable, "-I", "-m", "pip", "--python", str(environment_python(folder))]


def _run_setup_step(job: _EnvironmentSetup, arguments: Sequence[str], on_line: Say = lambda _: None) -> tuple[int, str]:
    return run_step_process(arguments, env=setup_step_environment(os.environ), lock=job.lock, on_line=on_line)


def setup_step_environment(env: Mapping[str, str]) -> dict[str, str]:
    """Return the user's environment without variables that would send a step's packages or imports elsewhere."""
    strays = {name for name in env if name.startswith("PIP_")} - _PIP_NETWORK | {"PYTHONHOME", "PYTHONPATH"}
    return {name: value for name, value in env.items() if name not in strays}


@contextmanager
def _environment_lock(folder: Path, say: Say, show: Say) -> Iterator[int]:
    """Hold the environment's lock, after waiting for another process that holds it; yield the open file."""
    is_environment = (folder / LOCK).exists() or (folder / "pyvenv.cfg").exists()
    if os.path.lexists(folder) and not is_environment and (not folder.is_dir() or any(folder.iterdir())):
        raise NotWritable(f"{folder} is not a Python environment", hint="move it away: kiln creates its own there")
    folder.mkdir(exist_ok=True)
    lock = os.open(folder / LOCK, os.O_RDWR | os.O_CREAT, 0o666)
    try:
        try:
            acquire_lock(lock, wait=False)
        except BlockingIOError:
            say(f"another process is setting up {folder.name}: waiting for it")
            with _Activity("waiting for it").shown(show):
                acquire_lock(lock, wait=True)
        yield lock
    finally:
        os.close(lock)


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
    import shutil

    for entry in folder.iterdir():
        if entry.is_dir() and not entry.is_symlink():
            shutil.rmtree(entry)
        elif entry.name != LOCK:
            entry.unlink()


def _requirements(root: Path, lock: str) -> set[str]:
    """Return a lock file's entries: ``name==version``, with a marker after ``;`` if they do not apply everywhere."""
    lines = (root / "requirements" / lock).read_text(encoding="utf-8").splitlines()
    return {line.rstrip(" \\") for line in lines if line[:1].isalnum()}


def _unconditional_requirements(root: Path, lock: str) -> set[str]:
    return {entry for entry in _requirements(root, lock) if ";" not in entry}


def _installed_distributions(folder: Path) -> set[str]:
    from importlib.metadata import distributions

    installed = distributions(path=[str(_site_packages(folder))])
    return {
        f"{re.sub(r'[-_.]+', '-', distribution.metadata['Name']).lower()}=={distribution.version}"
        for distribution in installed
    }
