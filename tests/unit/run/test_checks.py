"""Configs that this machine cannot build are refused by name, or left out of ``--all`` with one line."""

from __future__ import annotations

import platform
from typing import TYPE_CHECKING

import pytest

from kiln.base.errors import UnsupportedPlatform
from kiln.container import emulation
from kiln.feedstock import config_file, matrix, rerender
from kiln.run import checks
from kiln.run.images import BuildLocation
from kiln.run.plan import _input_hashes_of_configs
from tests import builders

if TYPE_CHECKING:
    from pathlib import Path

    from kiln.recipe.feedstock import Feedstock

META = "package:\n  name: a\n  version: 1\nrequirements:\n  build:\n    - {{ compiler('c') }}\n"
FORGE = """\
provider:
  linux_64: default
  linux_aarch64: default
  linux_ppc64le: default
  osx_64: default
  win_64: default
build_platform:
  linux_aarch64: linux_64
  osx_64: linux_64
"""
HERE = ("linux_64_", "linux_aarch64_")
ELSEWHERE = ("linux_ppc64le_", "osx_64_", "win_64_")


@pytest.fixture(autouse=True)
def _machine(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "x86_64")
    monkeypatch.setattr(platform, "system", lambda: "Linux")


@pytest.fixture
def feedstock(tmp_path: Path) -> Feedstock:
    """Return a feedstock with a config for each of five platforms, two of them cross-compiled on linux-64."""
    result = builders.feedstock(tmp_path, META, "", FORGE)
    rerender.write_ci_support(result, matrix.configs(result))
    assert result.config_names == tuple(sorted((*HERE, *ELSEWHERE)))
    return result


def test_the_machines_own_platform_and_cross_compiled_ones_of_its_system_are_built(feedstock: Feedstock) -> None:
    checks.require_buildable_platforms(feedstock, config_file.read_configs(feedstock, HERE), rehearsal=False)


def test_an_emulated_config_is_built_in_a_container_where_the_kernel_runs_its_programs(
    feedstock: Feedstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    configs = config_file.read_configs(feedstock, ("linux_ppc64le_",))
    with pytest.raises(UnsupportedPlatform) as caught:
        checks.require_buildable_platforms(feedstock, configs, rehearsal=False)
    assert "no interpreter for linux-ppc64le that containers can use" in caught.value.hint
    monkeypatch.setattr(
        emulation, "can_run_platform", lambda subdir, in_container: in_container and subdir == "linux-ppc64le"
    )
    checks.require_buildable_platforms(feedstock, configs, rehearsal=False)
    assert checks.image_platforms(feedstock, configs)[configs[0].name] == "linux/ppc64le"
    with pytest.raises(UnsupportedPlatform) as caught:
        checks.require_buildable_platforms(feedstock, configs, rehearsal=False, containers=False)
    assert "or emulate it in a container (docker or podman)" in caught.value.hint
    names, note = checks.buildable_configs(feedstock, (*HERE, *ELSEWHERE), rehearsal=False)
    assert set(names) == {*HERE, "linux_ppc64le_"}
    assert "linux-ppc64le" not in note
    assert checks.image_platforms(feedstock, config_file.read_configs(feedstock, ("linux_aarch64_",))) == {
        "linux_aarch64_": "linux/amd64"
    }


def test_the_key_of_build_platforms_may_be_spelled_with_escapes(feedstock: Feedstock) -> None:
    text = feedstock.conda_forge_yml.read_text()
    assert "build_platform:" in text
    feedstock.conda_forge_yml.write_text(text.replace("build_platform:", '"build\\x5fplatform":'))
    configs = config_file.read_configs(feedstock, ("linux_aarch64_",))
    assert checks.image_platforms(feedstock, configs) == {"linux_aarch64_": "linux/amd64"}


@pytest.mark.parametrize(
    ("name", "why"),
    [
        ("linux_ppc64le_", "it is built for linux-ppc64le on linux-ppc64le, this machine is linux-64"),
        ("osx_64_", "it is for osx-64, this machine is linux-64"),
        ("win_64_", "it is for win-64, this machine is linux-64"),
    ],
)
def test_others_are_refused_with_the_reason_and_a_way(feedstock: Feedstock, name: str, why: str) -> None:
    with pytest.raises(UnsupportedPlatform) as caught:
        checks.require_buildable_platforms(feedstock, config_file.read_configs(feedstock, (name,)), rehearsal=False)
    assert (caught.value.what, caught.value.why) == (f"{name} cannot be built on this machine", why)
    assert str(caught.value.at) == f".ci_support/{name}.yaml"
    assert "build it on" in caught.value.hint


@pytest.mark.parametrize("machine", ["arm64", "x86_64"])
def test_macos_builds_for_linux_in_containers_alone(
    feedstock: Feedstock, monkeypatch: pytest.MonkeyPatch, machine: str
) -> None:
    monkeypatch.setattr(platform, "system", lambda: "Darwin")
    monkeypatch.setattr(platform, "machine", lambda: machine)
    checks.require_buildable_platforms(feedstock, config_file.read_configs(feedstock, HERE), rehearsal=False)
    assert checks.buildable_configs(feedstock, (*HERE, *ELSEWHERE), rehearsal=False)[0] == HERE
    with pytest.raises(UnsupportedPlatform) as caught:
        checks.require_buildable_platforms(
            feedstock, config_file.read_configs(feedstock, HERE), rehearsal=False, containers=False
        )
    assert caught.value.hint == "start Docker, which builds it here"
    with pytest.raises(UnsupportedPlatform, match="osx_64_ cannot be built"):
        checks.require_buildable_platforms(
            feedstock, config_file.read_configs(feedstock, ("osx_64_",)), rehearsal=False
        )


def test_a_rehearsal_has_wheels_for_this_machine_alone(feedstock: Feedstock) -> None:
    with pytest.raises(UnsupportedPlatform, match="linux_aarch64_ cannot be rehearsed"):
        checks.require_buildable_platforms(feedstock, config_file.read_configs(feedstock, HERE), rehearsal=True)


def test_of_all_configs_those_for_here_are_built_and_one_line_names_the_others(feedstock: Feedstock) -> None:
    names = tuple(sorted((*HERE, *ELSEWHERE)))
    left_out = "left out: 3 configs for linux-ppc64le, osx-64, win-64, which this machine (linux-64) cannot build"
    assert checks.buildable_configs(feedstock, names, rehearsal=False) == (HERE, left_out)
    assert checks.buildable_configs(feedstock, HERE, rehearsal=False) == (HERE, "")


def test_when_none_can_be_built_each_is_refused(feedstock: Feedstock) -> None:
    with pytest.raises(UnsupportedPlatform) as caught:
        checks.buildable_configs(feedstock, ELSEWHERE, rehearsal=False)
    assert [error.what.split()[0] for error in (caught.value, *caught.value.others)] == list(ELSEWHERE)


def test_another_machine_builds_other_configs(feedstock: Feedstock, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(platform, "machine", lambda: "ppc64le")
    assert emulation.machine_subdir() == "linux-ppc64le"
    assert checks.buildable_configs(feedstock, (*HERE, *ELSEWHERE), rehearsal=False)[0] == ("linux_ppc64le_",)


def test_a_cross_compiled_config_is_built_again_once_its_tests_can_run(
    feedstock: Feedstock, monkeypatch: pytest.MonkeyPatch
) -> None:
    def keys(registered: str, *, in_container: bool = True, engine: str = "rattler-build") -> dict[str, str]:
        monkeypatch.setattr(
            emulation,
            "can_run_platform",
            lambda subdir, in_container: in_container and subdir in {registered, "linux-64"},
        )
        configs, places = config_file.read_configs(feedstock, HERE), dict.fromkeys(HERE, BuildLocation())
        hashes = _input_hashes_of_configs(feedstock, configs, places, {}, engine=engine, in_container=in_container)
        return {name: entry.key for name, entry in hashes.items()}

    without, with_emulator = keys(""), keys("linux-aarch64")
    assert without["linux_aarch64_"] != with_emulator["linux_aarch64_"]
    assert without["linux_64_"] == with_emulator["linux_64_"]
    assert keys("linux-aarch64", in_container=False) == keys("linux-ppc64le") == without
    other = keys("linux-aarch64", engine="conda-build"), keys("", engine="conda-build")
    assert other[0] == other[1], "its tests are skipped in any case"
