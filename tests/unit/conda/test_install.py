"""An install requires attestations of all packages, or of those of one channel."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path
from typing import Any

import pytest

from kiln.base.errors import KilnError, NotWritable, ProvenanceBroken, UsageError
from kiln.conda import install
from kiln.conda.install import RequiredSigners, environment_folders, prefix_of_environment
from kiln.conda.provenance import bundles
from kiln.conda.provenance.check import TrustedSigner
from kiln.conda.rattler.client import records_from_json
from tests.publishing import KEY, another_key

FILE, SHA256 = "small-1-0.conda", "ab" * 32
OTHER = another_key()
SIGNERS = {"us": TrustedSigner(key=KEY.public), "them": TrustedSigner(key=OTHER.public)}


def rules(*texts: str, channels: tuple[str, ...] = ("https://a.example/c",)) -> RequiredSigners:
    names = {**{name: name for name in channels}, "c": channels[0]}
    return RequiredSigners.parse(texts, channel_of=names.get, signers=lambda text: (SIGNERS[text],))


def record(folder: Path, *made: bytes, channel: str = "https://a.example/c", **changed: Any) -> Any:
    """Return the record of a package whose attestations are in a folder."""
    data = bundles.serialize_sidecar(made)
    digest = hashlib.sha256(data).hexdigest()
    (folder / f"{FILE}.sigs.{digest}").write_bytes(data)
    fields = {"name": "small", "version": "1", "build": "0", "build_number": 0, "depends": [], "subdir": "noarch"}
    place = {"fn": FILE, "url": (folder / FILE).as_uri(), "channel": channel}
    values = {**fields, **place, "sha256": SHA256, "attestations_sha256": digest, **changed}
    (one,) = records_from_json([{key: value for key, value in values.items() if value is not None}])
    return one


def published(channel: str = "https://a.example/c", sha256: str = SHA256) -> bytes:
    return KEY.sign_statement(bundles.publication_statement(FILE, sha256, channel))


def test_what_a_required_signer_published_to_the_channel_is_accepted(tmp_path: Path) -> None:
    one = record(tmp_path, published())
    for words in (
        ("us",),
        ("them", "us"),
        ("c=us",),
        ("https://a.example/c=us",),
        ("c=them", "c=us"),
        ("c=them", "us"),
    ):
        install.verify_attestations([one], rules(*words))


@pytest.mark.parametrize("words", [("them",), ("c=them",), ("https://a.example/c=them",)])
def test_what_another_signer_published_is_refused(tmp_path: Path, words: tuple[str, ...]) -> None:
    with pytest.raises(ProvenanceBroken, match="no valid attestation of small-1-0"):
        install.verify_attestations([record(tmp_path, published())], rules(*words))


def test_packages_of_other_channels_need_none_where_a_rule_names_one(tmp_path: Path) -> None:
    elsewhere = record(tmp_path, published(), channel="https://b.example/c", attestations_sha256=None)
    install.verify_attestations([elsewhere], rules("c=us"))
    with pytest.raises(ProvenanceBroken, match="the index has no attestation of small-1-0"):
        install.verify_attestations([elsewhere], rules("us"))


def test_every_package_that_lacks_one_is_named(tmp_path: Path) -> None:
    wrong = [
        record(tmp_path, published(), sha256=None),
        record(tmp_path, published(), attestations_sha256="0" * 64),
        record(tmp_path, published("https://b.example/c")),
        record(tmp_path, published(sha256="cd" * 32)),
    ]
    with pytest.raises(ProvenanceBroken, match=r"no SHA-256 of small-1-0.conda; and 3 more") as refused:
        install.verify_attestations([*wrong, record(tmp_path, published())], rules("us"))
    text = str(refused.value)
    assert all(why in text for why in ("are missing", "https://b.example/c", "of the hash cdcd"))


def test_attestations_that_were_replaced_are_not_read(tmp_path: Path) -> None:
    one = record(tmp_path, published())
    (place,) = tmp_path.glob("*.sigs.*")
    place.write_bytes(bundles.serialize_sidecar([published(), published()]))
    with pytest.raises(ProvenanceBroken, match="are not those of the index"):
        install.verify_attestations([one], rules("us"))


@pytest.mark.parametrize("changed", [{"name": "numpy"}, {"version": "2"}, {"build": "1"}], ids=str)
def test_a_signed_file_is_not_accepted_as_another_package(tmp_path: Path, changed: dict[str, str]) -> None:
    with pytest.raises(ProvenanceBroken, match=r"the index has small-1-0.conda as"):
        install.verify_attestations([record(tmp_path, published(), **changed)], rules("us"))


def test_a_rule_for_a_text_that_is_no_channel_is_a_signer() -> None:
    asked: list[str] = []

    def signers(text: str) -> tuple[TrustedSigner, ...]:
        asked.append(text)
        raise UsageError("no key")

    with pytest.raises(UsageError):
        RequiredSigners.parse(["d=https://github.com/a?b=c"], channel_of=lambda _: None, signers=signers)
    assert asked == ["d=https://github.com/a?b=c"]


NOTHING = {"PATH": ""}


@pytest.fixture
def home(tmp_path: Path) -> Path:
    (tmp_path / "home").mkdir()
    return tmp_path / "home"


@pytest.fixture
def conda(tmp_path: Path) -> Path:
    """An installation of conda."""
    root = tmp_path / "miniforge"
    for folder in ("bin", "conda-meta", "envs"):
        (root / folder).mkdir(parents=True)
    (root / "bin" / "conda").touch(mode=0o755)
    return root


def test_without_conda_it_is_in_mambas_folder_or_the_users_own(home: Path, tmp_path: Path) -> None:
    own = home / ".conda" / "envs" / "tf"
    assert prefix_of_environment("tf", env=NOTHING, home=home) == own
    for name in ("mamba", "bin"):
        (tmp_path / name).mkdir()
    env = NOTHING | {"MAMBA_ROOT_PREFIX": str(tmp_path / "mamba")}
    assert prefix_of_environment("tf", env=env, home=home) == tmp_path / "mamba" / "envs" / "tf"
    (tmp_path / "bin" / "conda").touch(mode=0o755)  # a program of that name that is no installation
    assert prefix_of_environment("tf", env={"PATH": str(tmp_path / "bin")}, home=home) == own


@pytest.mark.parametrize("variable", ["PATH", "CONDA_EXE"])
def test_a_new_environment_is_in_condas_first_folder(home: Path, conda: Path, variable: str) -> None:
    env = NOTHING | {variable: str(conda / "bin" / ("conda" if variable == "CONDA_EXE" else ""))}
    assert environment_folders(env, home) == (conda / "envs", home / ".conda" / "envs")
    assert prefix_of_environment("tf", env=env, home=home) == conda / "envs" / "tf"


def test_an_environment_that_exists_is_found_in_any_folder(home: Path, conda: Path) -> None:
    (home / ".conda" / "envs" / "tf").mkdir(parents=True)
    env = NOTHING | {"CONDA_EXE": str(conda / "bin" / "conda")}
    assert prefix_of_environment("tf", env=env, home=home) == home / ".conda" / "envs" / "tf"


def test_the_users_settings_come_first(home: Path, conda: Path, tmp_path: Path) -> None:
    (home / ".condarc").write_text("envs_dirs:\n  - ~/mine\n  - $SCRATCH/envs\n")
    (conda / ".condarc").write_text("channels: [conda-forge]\nenvs_dirs: [/shared/envs]\n")
    env = NOTHING | {"CONDA_EXE": str(conda / "bin" / "conda"), "SCRATCH": str(tmp_path)}
    env["CONDA_ENVS_PATH"] = os.pathsep.join(["/one", "/two"])
    expected = ("/one", "/two", home / "mine", tmp_path / "envs", "/shared/envs", conda / "envs", home / ".conda/envs")
    assert environment_folders(env, home) == tuple(Path(place) for place in expected)
    del env["CONDA_ENVS_PATH"]
    assert prefix_of_environment("tf", env=env, home=home) == home / "mine" / "tf"


@pytest.mark.parametrize("text", ["envs_dirs: /one\n", "envs_dirs: [{a: b}]\n", "envs_dirs: [\n"])
def test_settings_that_cannot_be_read_are_named(home: Path, text: str) -> None:
    (home / ".condarc").write_text(text)
    with pytest.raises(KilnError) as caught:
        prefix_of_environment("tf", env=NOTHING, home=home)
    assert caught.value.at is not None
    assert caught.value.at.file == str(home / ".condarc")


@pytest.mark.parametrize("name", ["", ".", "..", "a/b", "a b", "a:b", "a#b", "a\n", "base", "root"])
def test_an_invalid_name_and_condas_own_environment_are_refused(home: Path, name: str) -> None:
    with pytest.raises(UsageError):
        prefix_of_environment(name, env=NOTHING, home=home)


@pytest.mark.parametrize("reason", ["a file in the place of the folder"])
def test_where_nothing_can_be_written_a_prefix_is_asked_for(home: Path, reason: str) -> None:
    (home / ".conda").write_text(reason)
    with pytest.raises(NotWritable) as caught:
        prefix_of_environment("tf", env=NOTHING, home=home)
    assert caught.value.hint == "-p DIR"
