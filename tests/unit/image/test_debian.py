"""Debian packages in a slim image."""

from __future__ import annotations

from pathlib import Path

import pytest

from kiln.base.errors import MissingTool
from kiln.image import debian
from kiln.image.apt import AptFiles
from kiln.image.oci import LayerEntry


def test_mmdebstrap_only_downloads() -> None:
    apt = AptFiles(sources=Path("/s"), settings=Path("/c"), keyring=None)
    words = debian.download_command("trixie", ("libc6", "bash"), apt)
    assert words[:2] == ("mmdebstrap", "--include=bash,libc6")
    assert {"--variant=extract", "--format=null"} < set(words)
    assert words[-3:] == ("trixie", "/dev/null", "/s")


def test_the_file_name_of_a_deb_has_its_name_and_version() -> None:
    files = ("libc6_2.36-9+deb12u14_amd64.deb", "tzdata_1%3a2026f_all.deb")
    debs = [debian.DownloadedDeb(path=Path(file)) for file in files]
    assert [(deb.name, deb.upstream_version) for deb in debs] == [("libc6", "2.36"), ("tzdata", "2026f")]


def test_licenses_in_another_package_require_that_package() -> None:
    link = LayerEntry(path="/usr/share/doc/libgcc-s1", mode=0o777, link="gcc-12-base")
    text = LayerEntry(path="/usr/share/doc/gcc-12-base/copyright", mode=0o644, data=b"")
    inside = LayerEntry(path="/usr/share/doc/libc6/other", mode=0o777, link="copyright")
    assert debian.missing_license_packages([link, inside]) == {"gcc-12-base"}
    assert debian.missing_license_packages([link, inside, text]) == set()


def test_packages_that_are_there_are_not_downloaded_again(tmp_path: Path) -> None:
    store = tmp_path / "debian-trixie"
    store.mkdir()
    for name in ("libc6_2.36-9_amd64.deb", "bash_5.2-1_amd64.deb"):
        (store / name).touch()
    nothing = {"PATH": "/nowhere"}  # where mmdebstrap would be
    debs = debian.fetch_packages("trixie", ["libc6", "bash"], folder=tmp_path, env=nothing)
    assert [deb.name for deb in debs] == ["bash", "libc6"]
    with pytest.raises(MissingTool):
        debian.fetch_packages("trixie", ["zlib1g"], folder=tmp_path, env=nothing)
