"""The causes of a failed set-up are explained."""

from __future__ import annotations

import errno
import os
from pathlib import Path

import pytest

from kiln.base import environment
from kiln.base.environment import raise_os_error, raise_pip_error, raise_venv_error
from kiln.base.errors import DiskFull, DownloadFailed, HashMismatch, KilnError, MissingTool, NotWritable

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


def test_a_message_gives_the_last_lines_of_pip_and_a_way_out(tmp_path: Path) -> None:
    with pytest.raises(DownloadFailed) as caught:
        raise_pip_error(NO_WHEEL, tmp_path)
    assert str(caught.value) == (
        "pip could not fetch the packages that kiln runs on\n"
        "  why: ERROR: Could not find a version that satisfies the requirement py-rattler==0.28.0"
        " (from versions: 0.27.0)\n"
        "       ERROR: No matching distribution found for py-rattler==0.28.0\n"
        "  try: check that the index has these versions, and use a Python from 3.10 to 3.14"
    )


def test_of_many_attempts_on_a_dead_network_one_is_shown(tmp_path: Path) -> None:
    retries = "\n".join(f"WARNING: Retrying (total={left}) {'x' * 400}" for left in (4, 3, 2, 1, 0))
    with pytest.raises(DownloadFailed) as caught:
        raise_pip_error(f"{retries}\n{NO_ROUTE}", tmp_path)
    assert caught.value.why.count("WARNING: Retrying") == 1
    assert max(map(len, caught.value.why.splitlines())) < 320
