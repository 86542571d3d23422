"""The compile against upstream's release builds: each flag that only one of them has is named, with its reason."""

from __future__ import annotations

import fnmatch
import shlex
import shutil
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.base import files
from kiln.feedstock import config_file
from kiln.recipe import feedstock, render
from tests import bazelrc

if TYPE_CHECKING:
    from collections.abc import Callable

ROOT = Path(__file__).parents[3]
DIFFERENCES = bazelrc.TABLE.with_name("differences.csv")
ROOM = {"BAZEL_CPUS": "32", "BAZEL_MEMORY_MB": "64000", "PY_VER": "3.12"}
CONFIGS = {
    "linux_x86": {"cuda_compiler_version": "None"},
    "linux_x86_cuda": {"cuda_compiler_version": "12.5", "cudnn": "9.3"},
    "linux_arm64": {"cuda_compiler_version": "None", "target_platform": "linux-aarch64"},
    "macos_arm64": {"cuda_compiler_version": "None", "target_platform": "osx-arm64"},
}
# For one's own GPU, 8.6, as people type it after ./configure, with these variables in the environment.
TYPED = "--config=cuda --config=cuda_wheel --config=opt --copt=-Wno-gnu-offsetof-extensions"
VARIABLES = {
    "HERMETIC_CUDA_VERSION": "12.5.1",
    "HERMETIC_CUDNN_VERSION": "9.3.0",
    "HERMETIC_CUDA_COMPUTE_CAPABILITIES": "sm_86,compute_86",
}


@pytest.fixture
def planned(scripts: Any) -> Callable[[dict[str, str]], list[str]]:
    """A function that returns the flags of a config in full: of each configuration of upstream what it stands for."""

    def flags(variant: dict[str, str]) -> list[str]:
        plan = scripts.compile_plan
        made = plan.make(plan.read(ROOT / "recipe" / "compile.ini"), {**ROOM, **variant})
        return list(bazelrc.expanded(made.flags, bazelrc.table()))

    return flags


def differences(ours: set[str], theirs: set[str], build: str) -> list[tuple[str, str]]:
    """Return the differences that no row names."""
    rows = [row for row in files.csv_rows(DIFFERENCES) if build in row["builds"].split()]
    sides = [("ours", flag) for flag in sorted(ours - theirs)] + [("upstream", flag) for flag in sorted(theirs - ours)]
    return [
        (side, flag)
        for side, flag in sides
        if not any(row["side"] == side and fnmatch.fnmatchcase(flag, row["flag"]) for row in rows)
    ]


@pytest.mark.parametrize("build", CONFIGS)
def test_each_difference_to_upstreams_release_build_has_its_reason(
    planned: Callable[[dict[str, str]], list[str]], build: str
) -> None:
    upstream = bazelrc.table()
    theirs = set(bazelrc.expanded(upstream[f"ci {build}"], upstream))
    assert differences(set(planned(CONFIGS[build])), theirs, build) == []


def test_what_people_type_for_their_own_gpu_is_planned_but_for_named_differences(
    planned: Callable[[dict[str, str]], list[str]],
) -> None:
    upstream = bazelrc.table()
    typed = {*bazelrc.expanded(TYPED.replace("--config=opt", "").split(), upstream), *upstream["configure opt"]}
    # A variable of the environment counts for more than the default of a configuration.
    typed = {flag for flag in typed if flag.partition("=")[2].partition("=")[0] not in VARIABLES}
    typed |= {f"--repo_env={name}={value}" for name, value in VARIABLES.items()}
    ours = planned({**CONFIGS["linux_x86_cuda"], "cuda_compute_capabilities": "sm_86,compute_86"})
    last = {flag.rpartition("=")[0] if "--repo_env=HERMETIC" in flag else flag: flag for flag in ours}
    assert differences(set(last.values()), typed, "typed") == []


def test_the_command_that_a_dry_run_names_shows_the_same_flags(
    planned: Callable[[dict[str, str]], list[str]],
    scripts: Any,
    tmp_path: Path,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    """A clone whose config has the capability 8.6 alone."""
    name = "linux_64_cuda_compiler_version12.5microarch_level2python3.12.____cpython"
    shutil.copytree(ROOT / "recipe", tmp_path / "recipe")
    (tmp_path / "conda-forge.yml").write_bytes((ROOT / "conda-forge.yml").read_bytes())
    text = (ROOT / ".ci_support" / f"{name}.yaml").read_text()
    before = "cuda_compute_capabilities:\n- ''\n"
    assert before in text
    (tmp_path / ".ci_support").mkdir()
    config = tmp_path / ".ci_support" / f"{name}.yaml"
    config.write_text(text.replace(before, "cuda_compute_capabilities:\n- sm_86,compute_86\n"))
    clone = feedstock.load(tmp_path)
    command = render.render(clone, config_file.read_config(clone, name)).plan_command.replace("CONFIG", name)
    program, script, *arguments = shlex.split(command)
    assert (program, script) == ("python3", "recipe/compile_plan.py")
    assert (ROOT / script).is_file()
    monkeypatch.chdir(tmp_path)
    for variable, value in {**ROOM, "BAZEL_REMOTE_CACHE": "", "BAZEL_DISK_CACHE": ""}.items():
        monkeypatch.setenv(variable, value)
    assert scripts.compile_plan.main(arguments) == 0
    shown = capsys.readouterr().out.replace("\\\n", "")  # shlex keeps a newline that a shell leaves out
    wheel = shlex.split(shown.split("bazel build ")[1])[:-1]
    assert list(bazelrc.expanded(wheel, bazelrc.table())) == planned(
        {**CONFIGS["linux_x86_cuda"], "cuda_compute_capabilities": "sm_86,compute_86"}
    )


def test_no_difference_is_named_that_is_none(planned: Callable[[dict[str, str]], list[str]]) -> None:
    upstream = bazelrc.table()
    rows = files.csv_rows(DIFFERENCES)
    for row in rows:
        assert row["reason"]
        for build in row["builds"].split():
            if build in CONFIGS:
                ours, theirs = set(planned(CONFIGS[build])), set(bazelrc.expanded(upstream[f"ci {build}"], upstream))
                assert fnmatch.filter(ours - theirs if row["side"] == "ours" else theirs - ours, row["flag"]), row


def test_the_table_is_made_of_upstreams_files(tmp_path: Path) -> None:
    (tmp_path / "ci/official/envs").mkdir(parents=True)
    for name in bazelrc.RELEASES:
        (tmp_path / "ci/official/envs" / name).write_text(
            '# a comment\nTFCI_BAZEL_COMMON_ARGS="--repo_env=HERMETIC_PYTHON_VERSION=$V --config release_cpu"\n'
            'TFCI_BUILD_PIP_PACKAGE_ARGS="--repo_env=WHEEL_NAME=a"\nTFCI_LIB_SUFFIX="-cpu"\n'
        )
    (tmp_path / ".bazelrc").write_text(
        'build -c opt\n# build --not\nbuild:linux --copt="-Wall" --copt=-O3 # why\ncommon:release_cpu --config=base\n'
        "build:base --repo_env TF_NEED=1\ntest:base --test_output=errors\nbuild:other --copt=-x\n"
    )
    assert list(bazelrc.of_sources(tmp_path))[:7] == [
        ("", "-c opt", ".bazelrc"),
        ("linux", "--copt=-Wall", ".bazelrc"),
        ("linux", "--copt=-O3", ".bazelrc"),
        ("release_cpu", "--config=base", ".bazelrc"),
        ("base", "--repo_env=TF_NEED=1", ".bazelrc"),
        ("ci linux_x86", "--repo_env=HERMETIC_PYTHON_VERSION=$V", "ci/official/envs/linux_x86"),
        ("ci linux_x86", "--config=release_cpu", "ci/official/envs/linux_x86"),
    ]
