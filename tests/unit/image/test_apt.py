"""The arguments of mmdebstrap, from apt's configuration."""

from __future__ import annotations

from kiln.image.apt import connection_settings_in_dump, debian_codename, packages_not_found, sources_from_index_targets

TARGETS = """\
http://mirror.example/debian/ bookworm main Debian
http://mirror.example/debian/ bookworm contrib Debian
http://mirror.example/debian/ bookworm-updates main Debian
http://mirror.example/debian-security/ bookworm-security main Debian
http://mirror.example/debian/ bookworm-backports main Debian
http://vendor.example/linux/ bookworm stable Vendor
http://node.example/ nodistro main .
"""
OS_RELEASE = {"PRETTY_NAME": "Debian GNU/Linux 12 (bookworm)", "VERSION_CODENAME": "bookworm", "ID": "debian"}


def test_debians_own_sources_are_taken_and_nobody_elses() -> None:
    assert sources_from_index_targets("bookworm", TARGETS, codename="bookworm") == (
        "deb http://mirror.example/debian/ bookworm main contrib",
        "deb http://mirror.example/debian/ bookworm-updates main",
        "deb http://mirror.example/debian-security/ bookworm-security main",
    )
    others = sources_from_index_targets("trixie", TARGETS, codename="bookworm")
    assert [line.split()[2] for line in others] == ["trixie", "trixie-updates", "trixie-security"]


def test_a_system_that_is_no_debian_has_no_sources_of_debians() -> None:
    assert debian_codename(OS_RELEASE) == "bookworm"
    assert debian_codename({**OS_RELEASE, "ID": "ubuntu"}) == ""
    assert sources_from_index_targets("bookworm", TARGETS, codename="") == ()


def test_settings_are_those_that_decide_whether_a_mirror_is_reached() -> None:
    dump = (
        'APT::Architecture "amd64";\nAcquire::http::Proxy "http://proxy:3128";\nAcquire::https::CaInfo "/ca.pem";\n'
        'Acquire::Check-Date "false";\nAcquire::IndexTargets "";\nAcquire::httpx "no";\n'
    )
    assert connection_settings_in_dump(dump).splitlines() == [
        'Acquire::http::Proxy "http://proxy:3128";',
        'Acquire::https::CaInfo "/ca.pem";',
        'Acquire::Check-Date "false";',
    ]


def test_packages_that_there_are_not_are_found_in_what_apt_says() -> None:
    said = "Building dependency tree...\nE: Unable to locate package gxx\nE: Unable to locate package foo-1.0\nE: setup"
    assert packages_not_found(said) == ("gxx", "foo-1.0")
    assert packages_not_found("E: Failed to fetch http://mirror.example/") == ()
