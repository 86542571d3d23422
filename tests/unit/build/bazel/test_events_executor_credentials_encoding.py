"""The folder of a remote executor's credentials becomes one secret variable."""

from __future__ import annotations

import base64
import json
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UsageError
from kiln.build.bazel import events

if TYPE_CHECKING:
    from pathlib import Path

PEM = "-----BEGIN CERTIFICATE-----\nYQ==\n-----END CERTIFICATE-----\n"


def folder(place: Path, **files: str) -> Path:
    place.mkdir()
    for name, text in files.items():
        path = place / name.replace("_", ".")
        path.write_text(text)
        path.chmod(0o600)
    return place


def test_all_files_are_in_the_variable_and_its_secrets_are_masked_one_by_one(tmp_path: Path) -> None:
    headers = "authorization: Bearer t0ken:1\n\nx-api-key:  k3y\n"
    place = folder(tmp_path / "c", ca_pem=PEM, client_pem=PEM, client_key=f"{PEM}k", headers=headers)
    variable = events.encode_credentials_folder(place)
    assert json.loads(base64.b64decode(variable)) == {
        "ca": PEM,
        "certificate": PEM,
        "key": f"{PEM}k",
        "headers": [["authorization", "Bearer t0ken:1"], ["x-api-key", "k3y"]],
    }
    assert events.is_encoded_credentials(variable)
    assert not events.is_encoded_credentials(str(place))
    assert not events.is_encoded_credentials(base64.b64encode(b'{"token": "a"}').decode())
    assert events.secrets_in_encoded_credentials(variable) == (
        "Bearer t0ken:1",
        "k3y",
        "t0ken:1",
        f"{PEM}k",
    )
    secrets = events.with_secrets_inside_credentials({events.CREDENTIALS: variable})
    assert set(secrets.values()) == {variable, "Bearer t0ken:1", "k3y", "t0ken:1", f"{PEM}k"}
    assert events.with_secrets_inside_credentials({"A": "b"}) == {"A": "b"}


@pytest.mark.parametrize(
    ("files", "words"),
    [
        ({}, "has no files"),
        ({"notes_txt": "a"}, "unknown file notes.txt"),
        ({"client_pem": PEM}, "needs both or none"),
        ({"ca_pem": "s3cret"}, "is not a PEM file"),
        ({"headers": "x-key: a\ns3cret\n"}, "headers:2: not a header"),
        ({"headers": "x-key: a\x07s3cret\n"}, "headers:1: not a header"),
        ({"ca_pem": "s3cret" * 20_000}, "larger than"),
    ],
)
def test_invalid_files_are_refused_without_their_content(tmp_path: Path, files: dict[str, str], words: str) -> None:
    with pytest.raises(UsageError, match=words) as error:
        events.encode_credentials_folder(folder(tmp_path / "c", **files))
    assert "s3cret" not in str(error.value)


def test_files_that_are_too_large_for_a_variable_together_are_refused(tmp_path: Path) -> None:
    large = 600 * PEM
    with pytest.raises(UsageError, match="too large together"):
        events.encode_credentials_folder(
            folder(tmp_path / "c", ca_pem=large, client_pem=large, client_key=large, headers="a: b")
        )
    variable = events.encode_credentials_folder(
        folder(tmp_path / "d", ca_pem=large, client_pem=large, client_key=large[:3000])
    )
    assert 90_000 < len(variable) < 1 << 17  # MAX_ARG_STRLEN of Linux


@pytest.mark.parametrize("name", ["headers", "client.key"])
def test_secrets_that_others_can_read_are_refused(tmp_path: Path, name: str) -> None:
    place = folder(tmp_path / "c", headers="a: b", client_key=PEM, client_pem=PEM, ca_pem=PEM)
    (place / "ca.pem").chmod(0o644)
    events.encode_credentials_folder(place)
    (place / name).chmod(0o640)
    with pytest.raises(UsageError, match="others can read") as error:
        events.encode_credentials_folder(place)
    assert error.value.hint == f"chmod 600 {place / name}"


def test_a_missing_folder_and_an_invalid_variable(tmp_path: Path) -> None:
    with pytest.raises(UsageError, match="cannot read the folder of credentials"):
        events.encode_credentials_folder(tmp_path / "none")
    assert events.secrets_in_encoded_credentials("") == events.secrets_in_encoded_credentials("?") == ()
