"""When an environment is used as it is, completed, or made anew."""

from __future__ import annotations

import errno
import json
import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING

import pytest

from kiln.base import environment
from kiln.base.environment import (
    CURRENT,
    LOCK,
    MARKER,
    RUN,
    TEST,
    EnvironmentState,
    examine_environment,
    raise_os_error,
    raise_pip_error,
    raise_venv_error,
    requirements_digest,
    write_environment_marker,
)
from kiln.base.errors import DiskFull, DownloadFailed, HashMismatch, KilnError, MissingTool, NotWritable


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """A clone whose environment was made for a run, by the Python that runs the tests."""
    (tmp_path / "requirements").mkdir()
    for name in (RUN, TEST):
        (tmp_path / "requirements" / name).write_text(f"a lock called {name}\n")
    (tmp_path / ".venv" / "bin").mkdir(parents=True)
    (tmp_path / ".venv" / "bin" / "python").symlink_to(sys.executable)
    write_environment_marker(tmp_path / ".venv", {RUN: requirements_digest(tmp_path, RUN)})
    return tmp_path


def marker_of(root: Path) -> Path:
    return root / ".venv" / MARKER


def rewrite(root: Path, **changes: object) -> None:
    marker_of(root).write_text(json.dumps({**json.loads(marker_of(root).read_text()), **changes}))


def kill_set_up(root: Path) -> None:
    marker_of(root).unlink()
    (root / ".venv" / LOCK).touch()


OTHER_PYTHON = ["/elsewhere/python", 1, 1]
DAMAGED = ("", "{", "[]", "{}", '{"folder": 1}', "null", '{"folder": "", "locks": 3}', "\x00")


@pytest.mark.processes
@pytest.mark.parametrize(
    ("change", "locks", "reason"),
    [
        (lambda _: None, (RUN,), ""),
        (lambda root: marker_of(root).unlink(), (RUN,), "first run"),
        (kill_set_up, (RUN,), "the last set-up did not end"),
        (lambda root: (root / "requirements" / RUN).write_text("another\n"), (RUN,), "the list of packages changed"),
        (lambda _: None, (RUN, TEST), "the packages of the tests are missing"),
        (lambda root: rewrite(root, interpreter=OTHER_PYTHON), (RUN,), ""),  # a patch release, of the same ABI
        (
            lambda root: rewrite(root, interpreter=OTHER_PYTHON, abi="cpython-39-x86_64-linux-gnu"),
            (RUN,),
            "its Python is missing or another one",
        ),
        (lambda root: (root / ".venv" / "bin" / "python").unlink(), (RUN,), "its Python is missing or another one"),
        *(
            (lambda root, text=text: marker_of(root).write_text(text), (RUN,), "its marker file is damaged")
            for text in DAMAGED
        ),
    ],
)
def test_an_environment_is_current_or_made_anew_for_a_reason(
    root: Path, change: Callable[[Path], object], locks: tuple[str, ...], reason: str
) -> None:
    change(root)
    completable = reason in {"", "the packages of the tests are missing"}
    assert examine_environment(root / ".venv", locks) == EnvironmentState(reason, completable=completable)


def test_what_failed_and_was_cleared_is_a_first_run_again(tmp_path: Path) -> None:
    (tmp_path / ".venv").mkdir()
    (tmp_path / ".venv" / LOCK).touch()
    assert examine_environment(tmp_path / ".venv", (RUN,)) == EnvironmentState("first run", completable=False)


def test_a_run_does_not_care_what_became_of_the_tests_lock(root: Path) -> None:
    write_environment_marker(root / ".venv", {name: requirements_digest(root, name) for name in (RUN, TEST)})
    (root / "requirements" / TEST).write_text("another\n")
    assert examine_environment(root / ".venv", (RUN,)) == CURRENT
    assert examine_environment(root / ".venv", (RUN, TEST)).reason == "the list of packages changed"


def test_a_clone_that_was_moved_makes_a_new_one(root: Path, tmp_path_factory: pytest.TempPathFactory) -> None:
    moved = root.rename(tmp_path_factory.mktemp("elsewhere") / "clone")
    assert examine_environment(moved / ".venv", (RUN,)) == EnvironmentState("the folder was moved", completable=False)


NO_ROUTE = """WARNING: Retrying (Retry(total=0)) after connection broken by 'NewConnectionError(...)': /simple/jinja2/
ERROR: Could not find a version that satisfies the requirement jinja2==3.1.6 (from versions: none)
ERROR: No matching distribution found for jinja2==3.1.6"""

NO_WHEEL = """ERROR: Could not find a version that satisfies the requirement py-rattler==0.28.0 (from versions: 0.27.0)
ERROR: No matching distribution found for py-rattler==0.28.0"""

ALTERED = """ERROR: THESE PACKAGES DO NOT MATCH THE HASHES FROM THE REQUIREMENTS FILE. [...]
    jinja2==3.1.6 from (...):
        Expected sha256 aa
             Got        bb"""

FULL = "ERROR: Could not install packages due to an OSError: [Errno 28] No space left on device"


@pytest.mark.parametrize(
    ("tail", "failure", "hint"),
    [
        (NO_ROUTE, DownloadFailed, "check the network"),
        (NO_WHEEL, DownloadFailed, "use a Python from 3.10 to 3.14"),
        (ALTERED, HashMismatch, "a mirror or a proxy may have altered it"),
        (FULL, DiskFull, "free some"),
    ],
)
def test_the_end_of_pips_output_gives_the_error(tail: str, failure: type[KilnError], hint: str, tmp_path: Path) -> None:
    with pytest.raises(failure) as caught:
        raise_pip_error(tail, tmp_path)
    assert hint in caught.value.hint
    assert tail.splitlines()[-1].strip() in caught.value.why


def test_venv_may_fail_of_a_full_disk_or_of_itself(tmp_path: Path) -> None:
    with pytest.raises(DiskFull):
        raise_venv_error("OSError: [Errno 28] No space left on device: 'x'", Path("/usr/bin/python3"), tmp_path)
    with pytest.raises(MissingTool, match="/usr/bin/python3 could not make an environment"):
        raise_venv_error("Error: nothing works", Path("/usr/bin/python3"), tmp_path)


def test_a_full_disk_is_seen_where_the_step_does_not_name_it(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(environment, "_MIN_FREE", 1 << 80)
    with pytest.raises(DiskFull) as caught:
        raise_venv_error("Error: exit status 1", Path("/usr/bin/python3"), tmp_path)
    assert caught.value.why.endswith(f" MB are left in {tmp_path}")


@pytest.mark.parametrize(
    ("number", "failure", "message"),
    [
        (errno.ENOSPC, DiskFull, "the disk is full"),
        (errno.EDQUOT, DiskFull, "the disk is full"),
        (errno.EROFS, NotWritable, "/clone/.venv cannot be written"),
        (errno.EACCES, NotWritable, "/clone/.venv cannot be written"),
        (errno.EPERM, NotWritable, "/clone/.venv cannot be written"),
        (errno.EIO, OSError, os.strerror(errno.EIO)),
    ],
)
def test_an_error_of_the_operating_system_keeps_its_meaning(
    number: int, failure: type[Exception], message: str
) -> None:
    with pytest.raises(failure, match=message):
        raise_os_error(OSError(number, os.strerror(number), "/clone/.venv"), Path("/clone/.venv"))


def test_of_many_attempts_on_a_dead_network_one_is_shown(tmp_path: Path) -> None:
    retries = "\n".join(f"WARNING: Retrying (total={left}) {'x' * 400}" for left in (4, 3, 2, 1, 0))
    with pytest.raises(DownloadFailed) as caught:
        raise_pip_error(f"{retries}\n{NO_ROUTE}", tmp_path)
    assert caught.value.why.count("WARNING: Retrying") == 1
    assert max(map(len, caught.value.why.splitlines())) < 320


if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]


def test_this_clone_is_one() -> None:
    environment.require_clone("a test")
    assert environment.requirements_file("run.txt") == ROOT / "requirements" / "run.txt"


def test_an_installed_package_is_not_a_clone_and_has_its_own_list(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(environment, "PACKAGE", tmp_path / "kiln")
    assert environment.requirements_file("run.txt") == tmp_path / "kiln" / "requirements" / "run.txt"
    with pytest.raises(MissingTool, match="a test needs a clone of kiln's repository") as caught:
        environment.require_clone("a test", tmp_path)
    assert "FEEDSTOCK" in caught.value.hint
