"""The pinning of a rerender: given by file, folder or version, set in conda-forge.yml, or fetched from a channel."""

from __future__ import annotations

import os
import shutil
import time
from typing import TYPE_CHECKING

import pytest

from kiln import __version__
from kiln.base.errors import PinningNeeded, RecipeFault, UsageError
from kiln.cli.main import run
from kiln.conda.channel import LocalChannel
from kiln.feedstock import pinning
from tests import builders
from tests.git_repositories import git
from tests.packages import release_package

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock

META = "package:\n  name: app\n  version: 1\nrequirements:\n  host:\n    - alpha {{ alpha }}\n"
OLD, NEW = "2026.01.02.03.04.05", "2026.02.02.03.04.05"
MIGRATION = b"__migrator:\n  kind: version\n  migration_number: 1\nmigrator_ts: 1\nalpha:\n  - '9'\n"


@pytest.fixture(autouse=True)
def _own_cache(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("XDG_CACHE_HOME", str(tmp_path / "cache"))


@pytest.fixture
def feedstock(tmp_path: Path) -> Feedstock:
    return builders.feedstock(tmp_path / "feedstock", META)


@pytest.fixture
def channel(tmp_path: Path) -> LocalChannel:
    """A channel with two versions of a pinning; the newer one has a migration."""
    channel = LocalChannel(root=tmp_path / "channel")
    for version, more in ((OLD, {}), (NEW, {"share/conda-forge/migrations/alpha9.yaml": MIGRATION})):
        add(channel, tmp_path / "packages", version, more)
    return channel


def add(channel: LocalChannel, folder: Path, version: str, more: dict[str, bytes]) -> None:
    payload = {"conda_build_config.yaml": f"alpha:\n  - '{version}'\n".encode(), **more}
    package = release_package(folder, pinning.PACKAGE, version, payload=payload, subdir="noarch", noarch="generic")
    channel.add([(package, "noarch")])


def rerendered(feedstock: Feedstock, *words: str) -> int:
    return run(["-C", str(feedstock.root), "rerender", *words])


def config(feedstock: Feedstock) -> str:
    (file,) = feedstock.config_folder.glob("*.yaml")
    return file.read_text()


def test_the_newest_pinning_is_fetched_where_keys_have_no_value(
    feedstock: Feedstock, channel: LocalChannel, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rerendered(feedstock, "--pinning-channel", str(channel.root)) == 0
    assert f"pinning: conda-forge-pinning {NEW}" in capsys.readouterr().err
    assert NEW in config(feedstock)
    assert rerendered(feedstock, "--pinning-channel", str(channel.root), "--check") == 0


def test_its_migrations_apply(feedstock: Feedstock, channel: LocalChannel) -> None:
    migrations = feedstock.config_folder / "migrations"
    migrations.mkdir(parents=True)
    (migrations / "alpha9.yaml").write_bytes(MIGRATION)
    assert rerendered(feedstock, "--pinning-channel", str(channel.root)) == 0
    assert "- '9'" in config(feedstock)


def test_a_version_is_fetched_once(feedstock: Feedstock, channel: LocalChannel) -> None:
    words = ("-e", OLD, "--pinning-channel", channel.url)
    assert rerendered(feedstock, *words) == 0
    assert OLD in config(feedstock)
    shutil.rmtree(channel.root)
    assert rerendered(feedstock, *words, "--check") == 0


def test_the_newest_version_is_asked_for_again_after_an_hour(
    feedstock: Feedstock, channel: LocalChannel, tmp_path: Path
) -> None:
    words = ("--pinning-channel", channel.url)
    assert rerendered(feedstock, *words) == 0
    newer = NEW.replace("2026.02", "2026.03")
    add(channel, tmp_path / "packages", newer, {})
    assert rerendered(feedstock, *words) == 0
    assert NEW in config(feedstock)
    (record,) = (tmp_path / "cache").rglob("newest.json")
    os.utime(record, (time.time() - 4000, time.time() - 4000))
    assert rerendered(feedstock, *words) == 0
    assert newer in config(feedstock)


def test_without_a_channel_nothing_is_written_and_the_keys_are_listed(
    feedstock: Feedstock, channel: LocalChannel, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rerendered(feedstock, "-e", OLD, "--pinning-channel", channel.url) == 0
    shutil.rmtree(feedstock.config_folder)
    shutil.rmtree(channel.root)
    assert rerendered(feedstock, "--pinning-channel", channel.url) == PinningNeeded.exit_code
    message = capsys.readouterr().err
    assert "alpha has no value without a pinning" in message
    assert "recipe/meta.yaml:6:7" in message
    assert "cannot fetch the newest conda-forge-pinning" in message
    assert f"try: -e {OLD}, which was fetched before" in message
    assert not feedstock.config_folder.exists()


def test_a_channel_without_it_has_none(
    feedstock: Feedstock, channel: LocalChannel, capsys: pytest.CaptureFixture[str]
) -> None:
    absent = "2020.01.01.00.00.00"
    assert rerendered(feedstock, "-e", absent, "--pinning-channel", channel.url) == PinningNeeded.exit_code
    assert f"cannot fetch conda-forge-pinning {absent}" in capsys.readouterr().err


def test_a_pinning_is_a_file_or_its_folder(
    feedstock: Feedstock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    assert rerendered(feedstock, "-e", str(tmp_path)) == UsageError.exit_code
    assert "pinning not found" in capsys.readouterr().err
    file = tmp_path / "conda_build_config.yaml"
    file.write_text("alpha:\n  - '7'\n")
    assert rerendered(feedstock, "-e", str(tmp_path)) == rerendered(feedstock, "-e", str(file), "--check") == 0
    assert "- '7'" in config(feedstock)


def test_conda_forge_yml_names_a_file_in_the_place_of_a_pinning(feedstock: Feedstock) -> None:
    settings = feedstock.root / "conda-forge.yml"
    settings.write_text(f"{settings.read_text()}exclusive_config_file: recipe/own.yaml\n")
    assert rerendered(feedstock) == RecipeFault.exit_code
    (feedstock.recipe / "own.yaml").write_text("alpha:\n  - '7'\n")
    assert rerendered(feedstock) == 0
    assert "- '7'" in config(feedstock)


def test_a_file_outside_of_the_feedstock_is_refused(
    feedstock: Feedstock, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    (tmp_path / "secret.yaml").write_text("alpha:\n  - 'secret'\n")
    (feedstock.root / "conda-forge.yml").write_text("exclusive_config_file: ../secret.yaml\n")
    assert rerendered(feedstock) == RecipeFault.exit_code
    assert "conda-forge.yml:1:1: exclusive_config_file is '../secret.yaml'" in capsys.readouterr().err


def test_a_commit_names_the_version_of_the_pinning_and_has_the_written_files_alone(
    feedstock: Feedstock, channel: LocalChannel, capsys: pytest.CaptureFixture[str]
) -> None:
    for words in (("init", "-q"), ("add", "recipe"), ("commit", "-qm", "begin")):
        git(feedstock.root, *words)
    for key in ("user.name", "user.email"):
        git(feedstock.root, "config", key, "a@example.org")
    (feedstock.root / "notes.txt").write_text("mine\n")
    git(feedstock.root, "add", "notes.txt")
    assert rerendered(feedstock, "--pinning-channel", str(channel.root), "--commit") == 0
    subject, _, body = git(feedstock.root, "log", "-1", "--format=%B").partition("\n\n")
    assert subject == f"MNT: Re-rendered with kiln {__version__} and conda-forge-pinning {NEW}"
    assert body.startswith("Other tools:\n- py-rattler-build ")
    assert git(feedstock.root, "show", "--format=", "--name-only").split() == [".ci_support/linux_64_.yaml"]
    assert git(feedstock.root, "status", "--porcelain", "notes.txt") == "A  notes.txt"
    capsys.readouterr()
    assert rerendered(feedstock, "--pinning-channel", str(channel.root), "--commit") == 0
    assert "nothing to commit" in capsys.readouterr().out
    (file := feedstock.root.parent / "pinning.yaml").write_text("alpha:\n  - '5'\n")
    assert rerendered(feedstock, "-e", str(file), "--commit") == 0
    assert git(feedstock.root, "log", "-1", "--format=%s") == f"MNT: Re-rendered with kiln {__version__}"
