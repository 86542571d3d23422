"""The set-up's arguments and environment of its steps, and the folders that it does not change."""

from __future__ import annotations

import io
import json
import os
import signal
import sys
import threading
import zipfile
from pathlib import Path
from typing import TYPE_CHECKING

import pytest
import yaml

from kiln.base import bootstrap
from kiln.base.environment import COLLECTIONS, FLEET, LOCK, MARKER, RUN, TEST
from kiln.base.errors import NotWritable, UnsupportedPython
from tests.waiting import CEILING

if TYPE_CHECKING:
    import subprocess
    from collections.abc import Mapping, Sequence

ENV = {"PATH": "/usr/bin:/bin"}
ROOT = Path(__file__).parents[3]


def test_the_way_to_the_network_is_the_users_and_the_rest_of_pips_settings_is_not() -> None:
    kept = {"PIP_INDEX_URL": "u", "PIP_PROXY": "p", "PIP_CERT": "c", "PIP_CONFIG_FILE": "f", "HTTPS_PROXY": "h"}
    strays = {
        **{f"PIP_{name}": "x" for name in ("USER", "TARGET", "PREFIX", "REQUIRE_VIRTUALENV", "CONSTRAINT", "DRY_RUN")},
        "PYTHONPATH": "x",
        "PYTHONHOME": "x",
    }
    assert bootstrap.setup_step_environment({**kept, **strays, "PATH": "/bin"}) == {**kept, "PATH": "/bin"}


def test_a_folder_that_is_not_an_environment_is_not_emptied(tmp_path: Path) -> None:
    folder = tmp_path / ".venv"
    folder.mkdir()
    (folder / "thesis.txt").write_text("years of work")
    with pytest.raises(NotWritable, match="is not a Python environment"):
        bootstrap.create_environment(tmp_path / ".venv", (), print, print)
    assert (folder / "thesis.txt").read_text() == "years of work"


def test_a_file_in_the_folders_place_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".venv").write_text("a file")
    with pytest.raises(NotWritable):
        bootstrap.create_environment(tmp_path / ".venv", (), print, print)


@pytest.mark.parametrize("marker", ['{"folder": "/other/clone/.venv", "locks": {}}', "damaged", None])
def test_a_link_to_another_clones_environment_is_not_emptied(tmp_path: Path, marker: str | None) -> None:
    other = tmp_path / "other" / ".venv"
    other.mkdir(parents=True)
    for name, text in {LOCK: "", "pyvenv.cfg": "", MARKER: marker}.items():
        if text is not None:
            (other / name).write_text(text)
    before = sorted(other.iterdir())
    (tmp_path / ".venv").symlink_to(other)
    with pytest.raises(NotWritable, match=r"is a link to the environment .*/other/\.venv") as caught:
        bootstrap.create_environment(tmp_path / ".venv", (RUN,), print, print)
    assert caught.value.hint.endswith(f"rm {tmp_path / '.venv'}")
    assert sorted(other.iterdir()) == before


def test_a_link_to_a_disk_with_more_space_is_set_up(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    disk = tmp_path / "disk"
    disk.mkdir()
    (tmp_path / ".venv").symlink_to(disk)
    made: list[Path] = []

    def stop(job: bootstrap._EnvironmentSetup) -> None:
        made.append(job.folder)
        raise KeyboardInterrupt

    monkeypatch.setattr(bootstrap, "_create_empty_venv", stop)
    for marker in (None, json.dumps({"folder": str(tmp_path / ".venv")})):
        if marker is not None:
            (disk / MARKER).write_text(marker)
        with pytest.raises(KeyboardInterrupt):
            bootstrap.create_environment(tmp_path / ".venv", (), print, print)
    assert made == [tmp_path / ".venv"] * 2


def test_clearing_leaves_the_lock_and_follows_no_link(tmp_path: Path) -> None:
    folder, outside = tmp_path / ".venv", tmp_path / "outside"
    for item in (folder / "lib", outside):
        item.mkdir(parents=True)
        (item / "file").touch()
    (folder / LOCK).touch()
    (folder / "lib64").symlink_to(outside)
    bootstrap._clear_except_lock(folder)
    assert [entry.name for entry in folder.iterdir()] == [LOCK]
    assert (outside / "file").exists()


@pytest.mark.parametrize("name", [RUN, TEST])
def test_every_locked_package_has_a_hash(name: str) -> None:
    entries = (ROOT / "requirements" / name).read_text().replace("\\\n", " ").splitlines()
    assert entries
    assert [entry for entry in entries if "==" not in entry or "--hash=sha256:" not in entry] == []


def test_the_two_locks_agree() -> None:
    run, test = (
        dict(item.split("==") for item in bootstrap._unconditional_requirements(ROOT, name)) for name in (RUN, TEST)
    )
    assert {name for name in run.keys() & test.keys() if run[name] != test[name]} == set()
    assert {"jinja2", "py-rattler"} <= run.keys()
    assert {"pytest", "ruff"} <= test.keys()


def test_a_python_too_old_for_ansible_is_reported(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    monkeypatch.setattr(sys, "version_info", (3, 10, 14, "final", 0))
    with pytest.raises(UnsupportedPython, match=r"needs Python 3\.11 or newer") as caught:
        bootstrap.ensure_fleet_environment(tmp_path)
    assert "python3.11" in caught.value.hint
    assert list(tmp_path.iterdir()) == []


def test_only_the_wanted_collections_are_unpacked(tmp_path: Path) -> None:
    wheel = tmp_path / "all.whl"
    names = ("amazon/aws/plugins/a.py", "amazon/aws/tests/t.py", "amazon/awsome/b.py", "cisco/ios/c.py")
    with zipfile.ZipFile(wheel, "w") as archive:
        for name in names:
            archive.writestr(f"ansible_collections/{name}", "")
        archive.writestr("ansible-12.dist-info/METADATA", "")
    bootstrap.unpack_collections(wheel, tmp_path / "site")
    result = [str(file.relative_to(tmp_path / "site")) for file in (tmp_path / "site").rglob("*") if file.is_file()]
    assert result == ["ansible_collections/amazon/aws/plugins/a.py"]


def test_the_collections_are_one_wheel_with_its_hash() -> None:
    text = (ROOT / "requirements" / COLLECTIONS).read_text()
    assert text.count("--hash=sha256:") == text.count("==") == 1


def test_who_brings_an_ansible_of_his_own_gets_the_same_collections() -> None:
    expected = yaml.safe_load((ROOT / "ansible" / "requirements.yml").read_text())["collections"]
    assert tuple(sorted(item["name"] for item in expected)) == bootstrap.NEEDED_COLLECTIONS


def test_the_fleets_packages_are_those_of_a_run_and_more() -> None:
    run, fleet = (bootstrap._unconditional_requirements(ROOT, name) for name in (RUN, FLEET))
    assert run <= fleet


def test_a_set_up_tells_what_pip_has_done_so_far(tmp_path: Path) -> None:
    for name in ("pip-1", "setuptools-2"):
        (tmp_path / f"{name}.dist-info").mkdir()
    pip, told = bootstrap.PipOutput({"a==1", "b==1", "pip==3", "tomli==2 ; python_version < '3.11'"}, tmp_path), []
    for line in (
        "",
        "Ignoring tomli: markers 'python_version < \"3.11\"' don't match your environment",
        "Collecting a==1 (from -r run.txt (line 1))",
        "  Downloading a-1-py3-none-any.whl (1 kB)",
        "Requirement already satisfied: b==1 in ./.venv (from -r run.txt (line 3))",
        "Collecting pip==3 (from -r run.txt (line 5))",
        "Installing collected packages: pip, a",
    ):
        pip.add_line(line)
        told.append(pip.describe())
    assert told[:2] == ["fetching packages"] * 2
    assert told[2:] == [
        *["fetching packages: 0 of 3 done"] * 2,
        "fetching packages: 1 of 3 done",
        "fetching packages: 2 of 3 done",
        "installing packages: 0 of 2 done",
    ]
    (tmp_path / "pip-1.dist-info").rename(tmp_path / "pip-3.dist-info")  # an upgrade
    assert pip.describe() == "installing packages: 1 of 2 done"


def test_what_takes_long_is_not_silent(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(bootstrap, "_QUIET", 0.01)
    activity, shown, enough = bootstrap._Activity("making it"), list[str](), threading.Event()

    def show(line: str) -> None:
        shown.append(line)
        if activity.describe() == "fetching":
            enough.set()
        activity.describe = lambda: "fetching"

    with activity.shown(show):
        assert enough.wait(CEILING)
    assert shown[:2] == ["making it (0 s)", "fetching (0 s)"]
    assert not [thread for thread in threading.enumerate() if thread.name == "progress of the set-up"]


@pytest.mark.parametrize(("terminal", "term", "printed"), [(False, "xterm", 0), (True, "xterm", 1), (True, "dumb", 0)])
def test_on_a_terminal_a_line_of_progress_is_replaced(
    terminal: bool, term: str, printed: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stream = io.StringIO()
    monkeypatch.setattr(stream, "isatty", lambda: terminal)
    monkeypatch.setattr(sys, "stderr", stream)
    monkeypatch.setenv("TERM", term)
    bootstrap._show_progress("1 of 2")
    bootstrap._show_progress("2 of 2")
    bootstrap._print_line("ready")
    assert stream.getvalue() == ("1 of 2\n2 of 2\nready\n", "\r\x1b[K1 of 2\r\x1b[K2 of 2\r\x1b[Kready\n")[printed]


@pytest.fixture
def lock(tmp_path: Path) -> int:
    return os.open(tmp_path / "lock", os.O_RDWR | os.O_CREAT)


@pytest.mark.processes
def test_output_and_exit_code_are_returned(lock: int) -> None:
    assert bootstrap.run_step_process(["sh", "-c", "echo one; echo two >&2; exit 3"], env=ENV, lock=lock) == (
        3,
        "one\ntwo",
    )


@pytest.mark.processes
def test_of_an_interrupted_step_nothing_is_left(lock: int) -> None:
    children: list[int] = []

    def interrupt(line: str) -> None:
        children.append(int(line))
        raise KeyboardInterrupt

    script = "sleep 600 >/dev/null 2>&1 & echo $!; wait"
    with pytest.raises(KeyboardInterrupt):
        bootstrap.run_step_process(["sh", "-c", script], env=ENV, lock=lock, on_line=interrupt)
    assert not Path(f"/proc/{children[0]}").exists()


@pytest.mark.processes
def test_an_interrupt_while_a_step_is_started_ends_it(lock: int, monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal that comes between the start of a process and the knowledge of it must not leave it behind."""
    started: list[subprocess.Popen[str]] = []
    start = bootstrap._start_step_process

    def interrupted(arguments: Sequence[str], env: Mapping[str, str], lock: int) -> subprocess.Popen[str]:
        started.append(start(arguments, env, lock))
        os.kill(os.getpid(), signal.SIGINT)
        return started[0]

    monkeypatch.setattr(bootstrap, "_start_step_process", interrupted)
    before = signal.signal(signal.SIGINT, signal.default_int_handler)
    try:
        with pytest.raises(KeyboardInterrupt):
            bootstrap.run_step_process(["sleep", "600"], env=ENV, lock=lock)
    finally:
        signal.signal(signal.SIGINT, before)
    assert not Path(f"/proc/{started[0].pid}").exists()
