"""From a config's variant to Bazel's flags: what each config gets, and what is refused before anything is compiled."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import TYPE_CHECKING, Any

import pytest

from kiln.feedstock import matrix
from kiln.recipe import feedstock

if TYPE_CHECKING:
    from collections.abc import Callable

    from kiln.recipe.feedstock import BuildConfig

RECIPE = Path(__file__).parents[3] / "recipe"
SETTINGS = RECIPE / "compile.ini"
CPU = {"cuda_compiler_version": "None", "cudnn": "undefined", "PY_VER": "3.12"}
CUDA_125 = {"cuda_compiler_version": "12.5", "cudnn": "9.3", "PY_VER": "3.11"}
CUDA_129 = {"cuda_compiler_version": "12.9", "cudnn": "9.8", "PY_VER": "3.11"}
ROOM = {"BAZEL_CPUS": "32", "BAZEL_MEMORY_MB": "64000"}

COMMON = (
    "--compilation_mode=opt",
    "--repo_env=USE_PYWRAP_RULES=True",
    "--incompatible_strict_action_env",
    "--jobs=32",
    "--local_resources=cpu=32",
    "--local_resources=memory=57600",
    "--copt=-Wno-gnu-offsetof-extensions",
    "--copt=-Wno-error=array-parameter",
    "--copt=-Wno-error=unused-command-line-argument",
    "--linkopt=-Wl,--undefined-version",
)
CUDA_COMMON = ("--config=cuda_wheel", "--repo_env=WHEEL_NAME=tensorflow")


@pytest.fixture
def flags(scripts: Any) -> Callable[..., tuple[str, ...]]:
    """Plans a config on a machine with disk space; keyword arguments are further variables."""

    def plan(config: dict[str, str], **more: str) -> tuple[str, ...]:
        made: tuple[str, ...] = scripts.compile_plan.make(
            scripts.compile_plan.read(SETTINGS), ROOM | config | more
        ).flags
        return made

    return plan


@pytest.fixture
def settings(scripts: Any, tmp_path: Path) -> Callable[[str, str], Any]:
    """Reads the recipe's settings with one text replaced."""

    def read(old: str, new: str) -> Any:
        text = SETTINGS.read_text()
        assert old in text
        (tmp_path / "compile.ini").write_text(text.replace(old, new))
        return scripts.compile_plan.read(tmp_path / "compile.ini")

    return read


def test_a_cpu_config(flags: Callable[..., tuple[str, ...]]) -> None:
    assert flags(CPU) == (
        *COMMON,
        "--repo_env=HERMETIC_PYTHON_VERSION=3.12",
        "--config=avx_linux",
        "--repo_env=WHEEL_NAME=tensorflow_cpu",
        "--noannounce_rc",
    )


@pytest.mark.parametrize(
    ("config", "compiler", "version", "cudnn", "capabilities"),
    [
        (CUDA_125, "clang", "12.5.1", "9.3.0", "sm_60,sm_70,sm_75,sm_80,sm_86,sm_89,sm_90,compute_90"),
        (CUDA_129, "nvcc", "12.9.1", "9.8.0", "sm_60,sm_70,sm_75,sm_80,sm_86,sm_89,sm_90,sm_100,sm_120,compute_120"),
    ],
)
def test_a_cuda_config(
    flags: Callable[..., tuple[str, ...]],
    config: dict[str, str],
    compiler: str,
    version: str,
    cudnn: str,
    capabilities: str,
) -> None:
    assert flags(config) == (
        *COMMON,
        "--repo_env=HERMETIC_PYTHON_VERSION=3.11",
        "--config=avx_linux",
        "--config=cuda",
        f"--config=cuda_{compiler}",
        *CUDA_COMMON,
        f"--repo_env=HERMETIC_CUDA_VERSION={version}",
        f"--repo_env=HERMETIC_CUDNN_VERSION={cudnn}",
        f"--repo_env=HERMETIC_CUDA_COMPUTE_CAPABILITIES={capabilities}",
        "--noannounce_rc",
    )


def test_every_config_of_the_matrix_can_be_planned(flags: Callable[..., tuple[str, ...]]) -> None:
    configs = matrix.configs(feedstock.load(RECIPE.parent))
    planned = {flags({**chosen(config), "PY_VER": config.variant["python"][0][:4]}) for config in configs}
    assert len(planned) == len(configs) == 36


def chosen(config: BuildConfig) -> dict[str, str]:
    return {key: values[0] for key, values in config.variant.items()}


def test_what_the_caller_provides_becomes_flags(flags: Callable[..., tuple[str, ...]]) -> None:
    places = {
        "BAZEL_DISK_CACHE": "/cache",
        "BAZEL_REMOTE_CACHE": "grpc://cache:9092",
        "BAZEL_CACHE_KEY": "4f1c",
        "BAZEL_BUILD_EVENTS": "/config/events.json",
        "BAZEL_DISTDIR": "/downloads",
    }
    assert flags(CPU, **places)[-7:] == (
        "--noannounce_rc",
        "--bes_outerr_buffer_size=256",
        "--disk_cache=/cache",
        "--remote_cache=grpc://cache:9092",
        "--remote_default_exec_properties=cache-silo-key=4f1c",
        "--build_event_json_file=/config/events.json",
        "--distdir=/downloads",
    )


def test_the_libraries_are_compiled_by_a_call_with_flags_of_its_own(scripts: Any, tmp_path: Path) -> None:
    plan = scripts.compile_plan
    made = plan.make(plan.read(RECIPE / "compile.ini"), {**CPU, "BAZEL_CPUS": "2", "BAZEL_MEMORY_MB": "8000"})
    # An empty value: upstream takes any text for yes.
    assert plan.bazelrc(made)[-1] == "build:libraries --repo_env=USE_PYWRAP_RULES="
    assert "build --repo_env=USE_PYWRAP_RULES=True" in plan.bazelrc(made)
    told = plan.assignments(made, "bazel", "")
    assert (
        "library_targets='//tensorflow:libtensorflow.so //tensorflow:libtensorflow_cc.so //tensorflow:install_headers'"
        in told
    )
    assert "library_folder=bazel-bin/tensorflow" in told


@pytest.mark.parametrize(
    ("cpus", "memory", "jobs"), [("32", "64000", "32"), ("32", "16000", "8"), ("2", "64000", "2"), ("4", "900", "1")]
)
def test_no_more_jobs_than_cores_and_than_fit_into_memory(
    flags: Callable[..., tuple[str, ...]], cpus: str, memory: str, jobs: str
) -> None:
    assert f"--jobs={jobs}" in flags(CPU, BAZEL_CPUS=cpus, BAZEL_MEMORY_MB=memory)


@pytest.mark.parametrize(("level", "flag"), [("1", "--copt=-march=x86-64"), ("3", "--copt=-march=x86-64-v3")])
def test_the_level_of_instructions_follows_the_variant(
    flags: Callable[..., tuple[str, ...]], level: str, flag: str
) -> None:
    found = flags(CPU, microarch_level=level)
    assert flag in found
    assert "--config=avx_linux" not in found


def test_aarch64_is_cross_compiled_without_a_level_of_x86(flags: Callable[..., tuple[str, ...]]) -> None:
    found = flags(CPU, target_platform="linux-aarch64", microarch_level="1")
    assert not [flag for flag in found if "x86" in flag or "avx" in flag]
    assert "--platforms=@rules_ml_toolchain//common:linux_aarch64" in found
    names = [flag for flag in found if flag.startswith("--repo_env=WHEEL_NAME=")]
    assert names[-1] == "--repo_env=WHEEL_NAME=tensorflow"  # the last one counts
    with pytest.raises(Exception, match=r"no section \[platform osx-64\]; there are linux-aarch64, osx-arm64"):
        flags(CPU, target_platform="osx-64")


def test_macos_is_compiled_by_its_own_clang_into_its_own_libraries(scripts: Any) -> None:
    plan = scripts.compile_plan
    made = plan.make(plan.read(SETTINGS), {**ROOM, **CPU, "target_platform": "osx-arm64"})
    assert {"--config=clang_local", "--cpu=darwin_arm64", "--macos_minimum_os=12.0"} <= set(made.flags)
    assert not [flag for flag in made.flags if "undefined-version" in flag or "avx" in flag]
    assert made.library_targets.startswith("//tensorflow:libtensorflow.dylib //tensorflow:libtensorflow_cc.dylib ")


def test_libraries_of_the_prefix_are_used_where_someone_asks_for_them(
    scripts: Any, flags: Callable[..., tuple[str, ...]], settings: Callable[[str, str], Any]
) -> None:
    assert not [flag for flag in flags(CPU) if "TF_SYSTEM_LIBS" in flag]
    plan = scripts.compile_plan
    asked = plan.make(settings("\nuse =\n", "\nuse = zlib com_google_protobuf\n"), {**ROOM, **CPU, "PREFIX": "/p"})
    assert {"--repo_env=TF_SYSTEM_LIBS=com_google_protobuf,zlib", "--define=INCLUDEDIR=/p/include"} <= set(asked.flags)
    with pytest.raises(plan.BadPlan, match="names absl; its packages name astor_archive, "):
        plan.make(settings("\nuse =\n", "\nuse = absl\n"), {**ROOM, **CPU, "PREFIX": "/p"})


def test_the_command_lines_of_a_config_are_shown_without_bazel(
    scripts: Any, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name, value in {**ROOM, "PATH": "", "BAZEL_REMOTE_CACHE": "https://user:secret@host/x"}.items():
        monkeypatch.setenv(name, value)
    file = (
        RECIPE.parent / ".ci_support" / "linux_64_cuda_compiler_version12.5microarch_level2python3.11.____cpython.yaml"
    )
    assert scripts.compile_plan.main([str(SETTINGS), "--show", str(file)]) == 0
    wheel, libraries = capsys.readouterr().out.split("bazel build ")[1:]
    assert "--repo_env=HERMETIC_PYTHON_VERSION=3.11 \\\n" in wheel
    assert "--repo_env=HERMETIC_CUDA_VERSION=12.5.1 \\\n" in wheel
    assert "--remote_cache=https://***@host/x \\\n" in wheel.replace("'", "")
    assert wheel.endswith("  //tensorflow/tools/pip_package:wheel\n")
    assert "  --repo_env=USE_PYWRAP_RULES= \\\n  //tensorflow:libtensorflow.so " in libraries
    assert scripts.compile_plan.main([str(SETTINGS), "--show", str(file.with_name("none.yaml"))]) == 1


def test_a_config_can_name_its_own_capabilities(flags: Callable[..., tuple[str, ...]]) -> None:
    found = flags(CUDA_129, cuda_compute_capabilities="sm_70, compute_70")
    assert "--repo_env=HERMETIC_CUDA_COMPUTE_CAPABILITIES=sm_70,compute_70" in found


@pytest.mark.parametrize(
    ("config", "more", "said"),
    [
        (
            CUDA_125,
            {"cuda_compute_capabilities": "sm_100"},
            r"sm_100 is not accepted by \[cuda 12.5\] with \[compiler cl",
        ),
        (CUDA_129, {"cuda_compute_capabilities": "sm_35"}, "sm_35 is not accepted by .* which accepts 50 52 53"),
        (CUDA_129, {"cuda_compute_capabilities": "sm_80,sm_70"}, "must begin with its oldest GPU, sm_70, not sm_80"),
        (CUDA_129, {"cuda_compute_capabilities": "8.0"}, "'8.0' is not a compute capability, such as sm_80"),
        (CPU, {"cuda_compiler_version": "11.2"}, r"no section \[cuda 11.2\]; there are 12.5, 12.9, None"),
        (CPU, {"microarch_level": "5"}, r"no section \[level 5\]; there are 1, 2, 3, 4"),
        (CPU, {"PY_VER": ""}, "the variable PY_VER is not set"),
        (CUDA_129, {"cudnn": "9.3"}, r"the variant asks for cuDNN 9.3, and \[cuda 12.9\] has 9.8.0"),
        (CPU, {"BAZEL_MEMORY_MB": "much"}, "BAZEL_MEMORY_MB 'much'; numbers are needed"),
    ],
)
def test_what_cannot_be_compiled_is_refused(
    scripts: Any, flags: Callable[..., tuple[str, ...]], config: dict[str, str], more: dict[str, str], said: str
) -> None:
    with pytest.raises(scripts.compile_plan.BadPlan, match=said):
        flags(config | more)


@pytest.mark.parametrize(
    ("old", "new", "said"),
    [
        ("version = 12.5.1", "version = 12.5", r"version = 12\.5 in \[cuda 12\.5\] is not complete"),
        (
            "architectures = 50 52 53 60 61 62 70 72 75 80 86 87 89 90\n\n[cuda 12.9]",
            "architectures = 35\n\n[cuda 12.9]",
            "accepts none of the architectures",
        ),
        ("{python}", "{ptyhon}", r"unknown name \{ptyhon\} in \[python\]"),
    ],
)
def test_settings_that_fit_no_compile_are_refused(
    scripts: Any, settings: Callable[[str, str], Any], old: str, new: str, said: str
) -> None:
    with pytest.raises(scripts.compile_plan.BadPlan, match=said):
        scripts.compile_plan.make(settings(old, new), CUDA_125)


def test_every_section_of_the_settings_names_its_source(scripts: Any) -> None:
    settings = scripts.compile_plan.read(SETTINGS)
    assert [name for name in settings.sections() if not settings[name].get("source")] == []


@pytest.mark.parametrize(
    ("flag", "written"),
    [
        ("--jobs=2", "build --jobs=2"),
        ("--copt=-DX=a b", 'build "--copt=-DX=a b"'),
        ('--define=x="#1"', r'build "--define=x=\"#1\""'),
    ],
)
def test_a_flag_is_quoted_for_the_file(scripts: Any, flag: str, written: str) -> None:
    assert scripts.compile_plan.line(flag) == written


def test_the_log_shows_no_password(scripts: Any) -> None:
    shown = scripts.compile_plan.without_password("--remote_cache=https://user:secret@host/x")
    assert shown == "--remote_cache=https://***@host/x"


@pytest.fixture
def bazel(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Callable[..., None]:
    """Puts a program that prints a version on an otherwise empty PATH; in {}, the version that it is asked for."""
    monkeypatch.setenv("PATH", str(tmp_path))
    monkeypatch.delenv("USE_BAZEL_VERSION", raising=False)

    def put(name: str, answer: str) -> None:
        code = f"import os; print({answer!r}.format(os.environ.get('USE_BAZEL_VERSION', '8.0.0')))"
        (tmp_path / name).write_text(f"#!{sys.executable} -IS\n{code}\n")
        (tmp_path / name).chmod(0o755)

    return put


@pytest.mark.processes
@pytest.mark.parametrize(
    ("programs", "found"),
    [
        ({"bazel": "bazel 7.4.1"}, ("bazel", "")),
        ({"bazel": "bazel 7.4.1- (@non-git)"}, ("bazel", "")),
        ({"bazel": "bazel {}"}, ("bazel", "7.4.1")),
        ({"bazel": "bazel 6.5.0", "bazelisk": "bazel {}"}, ("bazelisk", "7.4.1")),
        ({"bazelisk": "bazel {}"}, ("bazelisk", "7.4.1")),
    ],
)
def test_the_bazel_that_this_release_wants_is_found(
    scripts: Any, bazel: Callable[..., None], programs: dict[str, str], found: tuple[str, str]
) -> None:
    for name, answer in programs.items():
        bazel(name, answer)
    assert scripts.compile_plan.find_bazel("7.4.1", os.environ) == found


@pytest.mark.processes
@pytest.mark.parametrize(
    ("programs", "said"),
    [
        ({}, "compiled by Bazel 7.4.1, and bazel is not on PATH. Install Bazel 7.4.1"),
        ({"bazel": "bazel 6.5.0"}, "bazel is '6.5.0'; bazel with USE_BAZEL_VERSION=7.4.1 is '6.5.0'. Install"),
        ({"bazel": "no network"}, "bazel is 'no network'"),
    ],
)
def test_another_bazel_is_refused(
    scripts: Any, bazel: Callable[..., None], programs: dict[str, str], said: str
) -> None:
    for name, answer in programs.items():
        bazel(name, answer)
    with pytest.raises(scripts.compile_plan.BadPlan, match=said):
        scripts.compile_plan.find_bazel("7.4.1", os.environ)


@pytest.mark.processes
def test_the_compiler_of_the_kernels_has_the_last_word(scripts: Any, tmp_path: Path) -> None:
    nvcc = tmp_path / "nvcc"
    nvcc.write_text("#!/bin/sh\nprintf 'compute_75\\ncompute_80\\n'\n")
    nvcc.chmod(0o755)
    accepted = scripts.compile_plan.accepted_by(nvcc)
    scripts.compile_plan.require(("sm_75", "compute_80"), accepted, by="nvcc")
    with pytest.raises(scripts.compile_plan.BadPlan, match="sm_70 is not accepted by nvcc, which accepts 75 80"):
        scripts.compile_plan.require(("sm_70",), accepted, by="nvcc")
