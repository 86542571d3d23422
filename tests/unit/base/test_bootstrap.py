"""The set-up's arguments and environment of its steps, and the folders that it does not change."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from kiln.base import bootstrap
from kiln.base.environment import LOCK, MARKER, RUN, TEST
from kiln.base.errors import NotWritable

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
        bootstrap.create_environment(tmp_path / ".venv", (), print)
    assert (folder / "thesis.txt").read_text() == "years of work"


def test_a_file_in_the_folders_place_is_left_alone(tmp_path: Path) -> None:
    (tmp_path / ".venv").write_text("a file")
    with pytest.raises(NotWritable):
        bootstrap.create_environment(tmp_path / ".venv", (), print)


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
        bootstrap.create_environment(tmp_path / ".venv", (RUN,), print)
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
            bootstrap.create_environment(tmp_path / ".venv", (), print)
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
