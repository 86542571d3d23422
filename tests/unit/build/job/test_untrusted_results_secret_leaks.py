"""A package that contains a secret of its script is refused, with the names of the variables and of the files."""

from __future__ import annotations

import base64
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import SecretInPackage
from kiln.build.job.untrusted_results import require_no_secrets
from tests.packages import conda_package, release_package

if TYPE_CHECKING:
    from pathlib import Path

TOKEN = "x7Kq-93hV_2mPzLw4RtY"


def test_a_package_with_a_secret_is_refused_without_the_value(tmp_path: Path) -> None:
    files = {"etc/a.conf": f"token={TOKEN}\n".encode(), "etc/b.conf": b"token=\n"}
    package = release_package(tmp_path, "a", payload=files)
    with pytest.raises(SecretInPackage) as caught:
        require_no_secrets(package, {"API_TOKEN": TOKEN, "OTHER_TOKEN": TOKEN[::-1]})
    assert caught.value.what == "a-1-0.conda contains the value of API_TOKEN in etc/a.conf"
    assert TOKEN not in str(caught.value)


def test_a_secret_in_another_form_is_a_secret(tmp_path: Path) -> None:
    package = release_package(tmp_path, "a", payload={"a": base64.b64encode(f"user:{TOKEN}".encode())})
    with pytest.raises(SecretInPackage, match="API_TOKEN in a"):
        require_no_secrets(package, {"API_TOKEN": TOKEN})


def test_a_secret_in_the_metadata_of_a_package_is_found(tmp_path: Path) -> None:
    package = conda_package(tmp_path / "a-1-0.conda", {"about.json": {"home": f"https://{TOKEN}@a.org"}}, payload={})
    with pytest.raises(SecretInPackage, match=r"API_TOKEN in info/about\.json"):
        require_no_secrets(package, {"API_TOKEN": TOKEN})


def test_of_many_files_the_first_ones_are_named(tmp_path: Path) -> None:
    package = release_package(tmp_path, "a", payload={f"f{number}": TOKEN.encode() for number in range(7)})
    with pytest.raises(SecretInPackage) as caught:
        require_no_secrets(package, {"API_TOKEN": TOKEN})
    assert caught.value.what.endswith("API_TOKEN in f0, f1, f2, f3, f4 and 2 more")


def test_values_that_are_no_secrets_may_be_in_a_package(tmp_path: Path) -> None:
    package = release_package(tmp_path, "a", payload={"a": b"/usr/local/lib 12.9.1"})
    require_no_secrets(package, {"PREFIX": "/usr/local/lib", "API_TOKEN": TOKEN})
    require_no_secrets(package, {"SOME_FOLDER": "/usr/local/lib", "SOME_VERSION": "12.9.1"})
