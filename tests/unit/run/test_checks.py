"""Configs that this machine cannot build are refused by name, or left out of ``--all`` with one line."""

from __future__ import annotations

import platform
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base.errors import OutOfMemory, UnsupportedPlatform, UsageError
from kiln.base.system.machine import MachineResources
from kiln.build.job import job
from kiln.build.job.job import BuildOptions, RunOptions
from kiln.container import emulation
from kiln.feedstock import config_file, matrix
from kiln.recipe import feedstock as recipe_feedstock
from kiln.recipe import render
from kiln.run import checks
from kiln.run.checks import (
    COPIES,
    LEAST_DISK,
    SMALL_DISK,
    divide_resources_among_jobs,
    estimated_disk_use,
    least_disk_of_config,
    require_memory_of_earlier_builds,
)
from kiln.run.images import BuildLocation
from kiln.run.plan import _input_hashes_of_configs
from tests import builders, small_tensorflow

if TYPE_CHECKING:
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
    result = builders.expanded(tmp_path, META, "", FORGE)
    assert result.config_names == tuple(sorted((*HERE, *ELSEWHERE)))
    return result


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
    assert checks.buildable_configs(feedstock, HERE, rehearsal=True)[0] == ("linux_64_",)


@pytest.mark.parametrize(
    ("name", "hint"),
    [
        ("linux_aarch64_", "build it without --rehearse"),
        ("win_64_", "build it on win-64 with another tool: kiln builds for Linux"),
    ],
)
def test_a_build_without_a_rehearsal_is_recommended_where_it_can_be(feedstock: Feedstock, name: str, hint: str) -> None:
    with pytest.raises(UnsupportedPlatform, match="cannot be rehearsed") as caught:
        checks.require_buildable_platforms(feedstock, config_file.read_configs(feedstock, (name,)), rehearsal=True)
    assert caught.value.hint == hint


def test_a_rehearsal_has_upstreams_wheel_for_another_platform(tmp_path: Path) -> None:
    made = builders.expanded(tmp_path, META.replace("name: a", "name: tensorflow"), "", FORGE)
    assert checks.buildable_configs(made, (*HERE, *ELSEWHERE), rehearsal=True)[0] == HERE


def test_upstreams_wheel_is_rehearsed_here_wherever_its_platform_is_built(tmp_path: Path) -> None:
    forge = "provider: {osx_arm64: default}\n"
    made = builders.expanded(tmp_path, META.replace("name: a", "name: tensorflow"), "", forge)
    assert checks.buildable_configs(made, ("osx_arm64_",), rehearsal=True)[0] == ("osx_arm64_",)
    with pytest.raises(UnsupportedPlatform, match="osx_arm64_ cannot be built"):
        checks.require_buildable_platforms(made, config_file.read_configs(made, ("osx_arm64_",)), rehearsal=False)


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


GB = 10**9

MACHINE = MachineResources(cores=8, memory=20 * GB)


def test_jobs_share_cores_and_memory_and_the_system_keeps_some() -> None:
    assert divide_resources_among_jobs(MACHINE, jobs=2, cores=None, memory=None) == MachineResources(
        cores=4, memory=9 * GB
    )
    assert divide_resources_among_jobs(MACHINE, jobs=3, cores=2, memory=GB) == MachineResources(cores=2, memory=GB)


def test_more_jobs_than_cores_are_refused() -> None:
    with pytest.raises(UsageError, match="9 jobs of 1 core each: 9 needed, this machine has 8") as caught:
        divide_resources_among_jobs(MACHINE, jobs=9, cores=None, memory=None)
    assert caught.value.hint == "-j 8"
    with pytest.raises(UsageError, match="10 needed"):
        divide_resources_among_jobs(MACHINE, jobs=2, cores=5, memory=None)
    with pytest.raises(UsageError, match="invalid number of jobs: -j 0"):
        divide_resources_among_jobs(MACHINE, jobs=0, cores=None, memory=None)
    with pytest.raises(UsageError, match="invalid number of cores: --cores 0"):
        divide_resources_among_jobs(MACHINE, jobs=2, cores=0, memory=None)
    with pytest.raises(UsageError, match="invalid amount of memory: --memory 0"):
        divide_resources_among_jobs(MACHINE, jobs=2, cores=None, memory=0)


def test_more_memory_than_there_is_is_refused() -> None:
    with pytest.raises(OutOfMemory, match=r"3 jobs of 8\.0 GB each: 24 GB needed") as caught:
        divide_resources_among_jobs(MACHINE, jobs=3, cores=None, memory=8 * GB)
    assert (caught.value.why, caught.value.hint) == ("this machine has 20 GB", "-j 2")
    with pytest.raises(OutOfMemory) as caught:
        divide_resources_among_jobs(MACHINE, jobs=1, cores=None, memory=99 * GB)
    assert caught.value.hint == "--memory 20000MB"


def test_a_config_that_used_more_memory_before_is_refused() -> None:
    item = MachineResources(cores=1, memory=4 * GB)
    require_memory_of_earlier_builds({"a": 4 * GB}, item, jobs=2)
    require_memory_of_earlier_builds({}, item, jobs=2)
    with pytest.raises(OutOfMemory, match=r"b used 5\.0 GB of memory"):
        require_memory_of_earlier_builds({"a": GB, "b": 5 * GB}, item, jobs=2)


def test_the_disk_of_a_run_is_that_of_its_largest_configs_at_once() -> None:
    used = {"a": 4 * GB, "b": 8 * GB, "c": 2 * GB}
    assert estimated_disk_use(used, ("a", "b", "c"), jobs=2) == 15 * GB
    assert estimated_disk_use({}, ("a", "b", "c"), jobs=2) == 2 * LEAST_DISK
    assert estimated_disk_use(used, ("c",), jobs=2) == int(2.5 * GB)
    assert estimated_disk_use({"a": 3000}, ("a",), jobs=2) == SMALL_DISK


@pytest.mark.parametrize(
    ("recipe", "needed"),
    [
        ("", SMALL_DISK),
        ("source:\n  path: src\n", SMALL_DISK + COPIES * 8192),
        ("source:\n  url: https://host/a.tar.gz\n  sha256: abc\n", LEAST_DISK),
        ("requirements:\n  host:\n    - zlib\n", LEAST_DISK),
    ],
)
def test_the_disk_of_a_first_build_follows_from_what_it_fetches_and_its_sources(
    recipe: str, needed: int, tmp_path: Path
) -> None:
    files = {"recipe/src/a.c": "x" * 8192}
    feedstock = builders.feedstock(tmp_path, f"package:\n  name: a\n  version: '1'\n{recipe}", files=files)
    rendered = render.render(feedstock, *matrix.configs(feedstock))
    assert least_disk_of_config(feedstock, rendered) == needed


URL = "grpcs://executor.example.org"

SERVING = Path(__file__).parents[3] / "serving"


def options(*, build: BuildOptions | None = None, **more: Any) -> RunOptions:
    return RunOptions(configs=(), command="", **{"remote_executor": URL, **more}, build=build or BuildOptions())


def require(root: Path, chosen: RunOptions) -> None:
    found = recipe_feedstock.load(root)
    checks.refuse_ineffective_remote_options(found, [render.render(found, matrix.configs(found)[0])], chosen)


def test_the_small_tensorflow_uses_it(tmp_path: Path) -> None:
    require(small_tensorflow.FIXTURE, options())
    require(small_tensorflow.FIXTURE, options(remote_cache="grpcs://cache.example.org"))
    (tmp_path / "headers").write_text("authorization: x")
    (tmp_path / "headers").chmod(0o600)
    secrets = job.compile_secrets(options(remote_credentials=tmp_path))
    assert secrets.keys() == {"BAZEL_REMOTE_EXECUTOR", "BAZEL_REMOTE_CREDENTIALS"}
    assert job.compile_secrets(options(remote_executor=None)) == {}
    assert URL not in repr(options())


@pytest.mark.parametrize(
    ("chosen", "words"),
    [
        (options(build=BuildOptions(engine="conda-build")), "requires --engine rattler-build"),
        (options(build=BuildOptions(rehearsal=True)), "no effect with --rehearse"),
        (options(remote_cache="http://cache.example.org"), "cache over HTTP"),
        (options(remote_executor=None, remote_credentials=Path("/c")), "--remote-credentials requires"),
        (options(remote_executor=None, build=BuildOptions(remote_jobs=2)), "--remote-jobs requires"),
        (options(remote_executor=None, build=BuildOptions(remote_fallback=True)), "--remote-fallback requires"),
    ],
)
def test_other_builds_are_refused(chosen: RunOptions, words: str) -> None:
    with pytest.raises(UsageError, match=words):
        require(small_tensorflow.FIXTURE, chosen)


def test_a_recipe_whose_scripts_do_not_read_the_variable_is_refused(tmp_path: Path) -> None:
    shutil.copytree(small_tensorflow.FIXTURE, tmp_path / "f")
    for name in ("remote_execution.py", "build.sh", "compile_plan.py"):
        path = tmp_path / "f" / "recipe" / name
        path.write_text(path.read_text().replace("BAZEL_REMOTE_EXECUTOR", "OTHER"))
    with pytest.raises(UsageError, match="no file of the recipe reads BAZEL_REMOTE_EXECUTOR"):
        require(tmp_path / "f", options())


def test_a_recipe_without_a_compile_step_is_refused(tmp_path: Path) -> None:
    recipe = tmp_path / "f" / "recipe"
    recipe.mkdir(parents=True)
    (recipe / "meta.yaml").write_text(
        "package: {name: a, version: 1}\nbuild: {noarch: python, script: BAZEL_REMOTE_EXECUTOR}\n"
    )
    (tmp_path / "f" / ".ci_support").mkdir()
    (tmp_path / "f" / ".ci_support" / "linux_64_.yaml").write_text("channel_sources:\n- conda-forge\n")
    with pytest.raises(UsageError, match="no compile step"):
        require(tmp_path / "f", options())
