"""Users without a home or a name are given one; all others keep their own."""

from __future__ import annotations

import os
import pwd
import tempfile
from pathlib import Path

import pytest

from kiln.base.system.user import missing_home_variables

NOBODY = 4_000_000_000  # a number that no system gives to a user


@pytest.fixture(autouse=True)
def temporary(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Path:
    folder = tmp_path / "temporary"
    folder.mkdir()
    monkeypatch.setattr(tempfile, "tempdir", str(folder))
    return folder


def test_who_has_a_home_and_a_name_keeps_them(tmp_path: Path) -> None:
    assert missing_home_variables({"HOME": str(tmp_path), "USER": "me"}, NOBODY) == {}
    assert missing_home_variables({"HOME": str(tmp_path / "to" / "be" / "made"), "LOGNAME": "me"}, NOBODY) == {}


def test_who_has_neither_is_given_both_the_same_each_time(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def getpwuid(_: int) -> pwd.struct_passwd:
        raise KeyError

    monkeypatch.setattr(pwd, "getpwuid", getpwuid)
    home = temporary / f"kiln-home-{os.getuid()}"
    expected = {"HOME": str(home), "LOGNAME": f"uid{os.getuid()}"}
    assert missing_home_variables({}, os.getuid()) == expected
    assert missing_home_variables({"HOME": ""}, os.getuid()) == expected
    assert home.stat().st_mode & 0o777 == 0o700


def test_a_home_that_cannot_be_written_is_replaced(temporary: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "access", lambda *_: False)
    assert missing_home_variables({"HOME": "/", "USER": "me"}, os.getuid()) == {
        "HOME": f"{temporary}/kiln-home-{os.getuid()}"
    }


def test_a_folder_that_others_could_have_prepared_is_not_taken(temporary: Path, tmp_path: Path) -> None:
    bait = temporary / f"kiln-home-{os.getuid()}"
    bait.symlink_to(tmp_path)
    added = missing_home_variables({"HOME": "relative", "USER": "me"}, os.getuid())
    assert Path(added["HOME"]).parent == temporary
    assert Path(added["HOME"]) != bait
