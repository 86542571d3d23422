"""``kiln publish`` reads its options and prints its results."""

from __future__ import annotations

import argparse
import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.cli import publish
from kiln.publish.targets import parse_target, require_store_target
from kiln.recipe.feedstock import Feedstock
from tests import builders
from tests.packages import release_package

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.publish.stores.target import StoreTarget


def options(**values: object) -> argparse.Namespace:
    return argparse.Namespace(**{"json": False, "patch": None, "yank": [], "delete": False, **values})


def channel_of(folder: Path) -> StoreTarget:
    """Return an indexed channel with one package."""
    release_package(folder / "channel" / "linux-64", "little", depends=["zlib"])
    channel = require_store_target(parse_target(str(folder / "channel"), {}, journals=folder))
    publish.reindex_channel(channel, options())
    return channel


@pytest.mark.parametrize(("text", "message"), [("{", "not valid JSON"), ("[1]", "not a JSON object")])
def test_an_invalid_patch_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        publish.yank_or_patch_packages(channel_of(tmp_path), options(patch=text, yank=["little"]))


def test_results_are_printed_as_lines_or_json(capsys: pytest.CaptureFixture[str]) -> None:
    publish.print_results(options(), published=("linux-64/a.conda", "noarch/b.conda"), read=3)
    publish.print_results(options(), yanked=())
    publish.print_results(options(json=True), published=("linux-64/a.conda",))
    out, err = capsys.readouterr()
    lines = out.splitlines()
    assert lines[:3] == ["published linux-64/a.conda", "published noarch/b.conda", "read 3"]
    assert json.loads(lines[3]) == {"published": ["linux-64/a.conda"]}
    assert err == "nothing was yanked\n"


def test_only_long_secrets_are_searched_in_packages() -> None:
    assert publish.environment_secrets({"MY_TOKEN": "0123456789abcdef", "A_TOKEN": "short"}) == ("0123456789abcdef",)


def test_a_platform_whose_packages_may_be_untested_exists() -> None:
    assert publish.parse_untested_platforms(["linux-aarch64"]) == ("linux-aarch64",)
    with pytest.raises(UsageError, match="no such platform: 'linux_aarch64'") as error:
        publish.parse_untested_platforms(["linux_aarch64"])
    assert "linux-aarch64" in error.value.hint


def test_the_platforms_of_a_release_are_those_of_its_configs(tmp_path: Path) -> None:
    feedstock = builders.feedstock(tmp_path, "package:\n  name: a\n  version: 1\nbuild:\n  script: true  # [linux]\n")
    feedstock.config_folder.mkdir()
    for name in ("linux_64_", "linux_aarch64_"):
        (feedstock.config_folder / f"{name}.yaml").write_text(f"target_platform:\n- {name[:-1].replace('_', '-')}\n")
    assert publish.feedstock_platforms(feedstock) == {"linux-64", "linux-aarch64"}
    assert publish.feedstock_platforms(Feedstock(root=tmp_path / "elsewhere")) == frozenset()


def test_a_publication_ends_with_its_channel_and_the_command_that_installs_from_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "mamba").touch(mode=0o755)
    paths = ("linux-64/lib-a-1.0-h1_0.conda", "noarch/app-1.0-0.conda", "noarch/app-1.0-0.conda.sigs")
    lines = publish.channel_and_install_lines("https://me:secret@host.example/c", paths, tmp_path)
    assert lines == (
        "channel  https://host.example/c",
        "install  mamba create -n NAME -c https://host.example/c lib-a app",
    )
