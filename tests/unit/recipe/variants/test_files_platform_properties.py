"""A platform's names and defaults, which are conda-build's."""

from __future__ import annotations

import pytest

from kiln.recipe.variants.files import Platform

LINUX = Platform(system="linux", arch="64", environ={"CI": "1", "unix": "hidden"})


@pytest.mark.parametrize(
    ("system", "arch", "compiler"),
    [("linux", "aarch64", "gcc"), ("osx", "arm64", "clang"), ("win", "64", "vs2017"), ("zos", "z", None)],
)
def test_the_defaults_are_those_of_the_system(system: str, arch: str, compiler: str | None) -> None:
    defaults = Platform(system=system, arch=arch).default_variant()
    assert defaults["target_platform"] == f"{system}-{arch}"
    assert defaults.get("c_compiler") == compiler
    assert ("vc" in defaults) == (system == "win")


def test_names_come_from_the_host_the_variant_and_the_environment() -> None:
    names = LINUX.fixed_names({"python": "3.13.* *_cp313", "numpy": "2.0"}, "osx-arm64")
    assert (names["linux"], names["osx"], names["arm64"]) == (False, True, True)
    assert (names["py"], names["np"], names["py3k"]) == (313, 20, True)
    assert (names["build_platform"], names["CI"]) == ("linux-64", "1")
    assert names["unix"] == "hidden", "a variable of the environment hides a platform's name"
    assert names["os"].environ == names["environ"] == {"CI": "1", "unix": "hidden"}


def test_languages_without_a_variant_have_conda_builds_versions() -> None:
    names = LINUX.fixed_names({"python": None}, "linux-64")
    assert (names["py"], names["np"], names["pl"], names["lua"]) == (311, 123, "5.26.2", "5")


def test_the_build_platform_is_that_of_a_cross_compilation() -> None:
    platform = Platform(system="linux", arch="aarch64", build="linux-64")
    assert platform.subdir == "linux-aarch64"
    assert platform.fixed_names({}, platform.subdir)["build_platform"] == "linux-64"


def test_each_host_has_names_of_its_own() -> None:
    """The names are cached: noarch after linux-64 must not have those of linux-64."""
    assert LINUX.fixed_names({}, "linux-64")["linux64"] is True
    assert LINUX.fixed_names({}, "noarch")["linux64"] is False
    assert LINUX.fixed_names({}, "linux-64")["linux64"] is True


def test_defaults_are_not_shared_between_callers() -> None:
    LINUX.default_variant()["pin_run_as_build"]["python"]["max_pin"] = "x"
    LINUX.default_variant()["extend_keys"].append("x")
    assert LINUX.default_variant()["pin_run_as_build"]["python"]["max_pin"] == "x.x"
    assert "x" not in LINUX.default_variant()["extend_keys"]
