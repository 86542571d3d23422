"""``kiln publish`` reads its options and prints its results."""

from __future__ import annotations

import argparse
import json
import zipfile
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import BrokenPackage, UsageError
from kiln.cli import publish
from kiln.publish.stores.s3 import Lease, S3Store
from kiln.publish.stores.target import StoreTarget
from kiln.publish.targets import parse_target, require_store_target
from kiln.recipe.feedstock import Feedstock
from tests import builders
from tests.packages import release_package

if TYPE_CHECKING:
    from pathlib import Path


def options(**values: object) -> argparse.Namespace:
    return argparse.Namespace(**{"json": False, "patch": None, "yank": [], "delete": False, **values})


def channel_of(folder: Path) -> StoreTarget:
    """Return an indexed channel with one package."""
    release_package(folder / "channel" / "linux-64", "little", depends=["zlib"])
    channel = require_store_target(parse_target(str(folder / "channel"), {}, journals=folder))
    publish.reindex_channel(channel, options())
    return channel


@pytest.mark.parametrize(
    ("given", "message"),
    [
        ("--delete", "--delete goes with --yank"),
        ("--patch {}", "--patch goes with --yank"),
        ("--patch=", "--patch goes with --yank"),
        ("--yank a --delete --patch {}", "--delete does not go with --patch"),
        ("--abort --reindex", "--reindex does not go with --abort"),
        ("--yank a --check", "--check does not go with --yank"),
        ("--reindex --attest key.pem", "--attest does not go with --reindex"),
        ("--reindex --allow-dirty", "--allow-dirty does not go with --reindex"),
        ("--yank a --skip-existing", "--skip-existing does not go with --yank"),
        ("--abort small-1-0.conda", "PACKAGE does not go with --abort"),
        ("--reindex", "channel does not exist"),
        ("--yank a", "channel does not exist"),
        ("--abort", "channel does not exist"),
    ],
)
def test_options_of_which_one_would_be_ignored_are_refused_before_anything_is_written(
    given: str, message: str, tmp_path: Path
) -> None:
    parser = argparse.ArgumentParser()
    publish.add_arguments(parser)
    with pytest.raises(UsageError) as error:
        publish.run(parser.parse_args(["--to", str(tmp_path / "channel"), *given.split()]), tmp_path)
    assert message in error.value.what
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize(("text", "message"), [("{", "not valid JSON"), ("[1]", "not a JSON object")])
def test_an_invalid_patch_is_refused(text: str, message: str, tmp_path: Path) -> None:
    with pytest.raises(UsageError, match=message):
        publish.yank_or_patch_packages(channel_of(tmp_path), options(patch=text, yank=["little"]))


def test_a_damaged_payload_is_named_and_left_out_of_the_index(tmp_path: Path) -> None:
    channel = channel_of(tmp_path)
    file = tmp_path / "channel" / "linux-64" / "little-1-0.conda"
    with zipfile.ZipFile(file) as archive:
        payload = next(member for member in archive.infolist() if member.filename.startswith("pkg-"))
    data = bytearray(file.read_bytes())
    data[payload.header_offset + 30 + len(payload.filename) + payload.compress_size // 2] ^= 1
    file.write_bytes(data)
    with pytest.raises(BrokenPackage) as error:
        publish.reindex_channel(channel, options())
    assert ["has another checksum" in other.why or "CRC" in other.why for other in error.value.others] == [True]
    assert channel.package_hashes() == {}


def test_a_bucket_is_not_indexed_from_files() -> None:
    lease = Lease(client=None, bucket="bucket", key="lease")
    bucket = StoreTarget(store=S3Store(client=None, bucket="bucket", prefix="", reading="", lease=lease))
    with pytest.raises(UsageError, match="s3://bucket is not a folder"):
        publish.reindex_channel(bucket, options())


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
    assert publish.environment_secrets({"MY_TOKEN": "01234567", "A_TOKEN": "0123456"}) == ("01234567",)


def test_a_platform_whose_packages_may_be_untested_exists() -> None:
    assert publish.parse_untested_platforms(["linux-aarch64"]) == ("linux-aarch64",)
    with pytest.raises(UsageError, match="no such platform: 'linux_aarch64'") as error:
        publish.parse_untested_platforms(["linux_aarch64"])
    assert "linux-aarch64" in error.value.hint


def test_the_platforms_of_a_release_are_those_of_its_configs(tmp_path: Path) -> None:
    recipe = "package:\n  name: a\n  version: 1\nbuild:\n  script: true  # [linux]\n"
    platforms = {"linux_64_": "linux-64", "linux_aarch64_": "linux-aarch64"}
    configs = {name: f"target_platform:\n- {platform}\n" for name, platform in platforms.items()}
    feedstock = builders.feedstock(tmp_path, recipe, configs=configs)
    assert publish.feedstock_platforms(feedstock) == {"linux-64", "linux-aarch64"}
    assert publish.feedstock_platforms(Feedstock(root=tmp_path / "elsewhere")) == frozenset()


def test_a_publication_ends_with_its_channel_and_the_command_that_installs_from_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("PATH", str(tmp_path))
    (tmp_path / "mamba").touch(mode=0o755)
    paths = ("linux-64/lib-a-1.0-h1_0.conda", "noarch/app-1.0-0.conda", "noarch/app-1.0-0.conda.sigs")
    lines = publish.channel_and_install_lines(
        "https://me:secret@host.example/c", paths, tmp_path, others=("conda-forge",)
    )
    assert lines == (
        "channel  https://host.example/c",
        "install  mamba create -n app --override-channels -c https://host.example/c -c conda-forge lib-a app",
    )
